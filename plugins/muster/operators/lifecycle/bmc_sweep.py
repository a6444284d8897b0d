"""Reads the BMCs of nodes in service, separately from the sweep of the nodes, which it neither delays nor stops.

A BMC is a computer of its own: if it does not answer, that is recorded of the BMC, and says nothing about the node.
"""

from __future__ import annotations

import logging

from muster import store
from muster.judging import policies
from muster.model.health import BMC, BmcCursor, Report
from muster.model.states import SERVING
from muster.operators.lifecycle import sweep
from muster.remote.bmc import sweeping as bmc_sweeping
from muster_criteria.health import bmc

log = logging.getLogger(__name__)


def sweep_bmcs() -> str:
    """Read the BMCs that are due, of nodes in service that no run holds and whose tests are not paused.

    Returns a sentence. Raises BadSettings for a policy that cannot be used.
    """
    policy = policies.health().bmc
    if not policy.every_s:
        return "the health policy reads no BMC"
    leased = {lease.node for lease in store.leases.live()}
    nodes = {
        each.name: each
        for each in store.nodes.find(states=SERVING)
        if each.bmc and each.name not in leased and not each.pause
    }
    due = {each.node: each for each in store.bmcs.due(nodes, policy.every_s, store.clock.now())}
    skus = {name: nodes[name].sku for name in due}
    read = silent = new = 0
    waiting: list[Report] = []
    for node, shown in bmc_sweeping.read_all([nodes[name] for name in due], policy):
        read += 1
        if shown.trouble:
            silent += 1
            log.warning("%s: %s", node.name, shown.trouble)
        name, before, now = node.name, due[node.name], store.clock.now()
        seen, known = bmc.read(shown, before.known, policy)
        after = BmcCursor(name, known, now, before.read_at if shown.trouble else now)
        waiting.append(Report(name, BMC, tuple(seen), bmc=after))
        if len(waiting) >= sweep.BATCH:
            new += len(sweep.recorded(waiting, skus))
            waiting = []
    new += len(sweep.recorded(waiting, skus))
    later = f"; {len(due) - read} come first in the next pass" if read < len(due) else ""
    return f"{read} BMCs, of which {silent} did not answer whole; {new} observations are new{later}"
