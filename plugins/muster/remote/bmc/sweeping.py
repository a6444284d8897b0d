"""Reads many BMCs at once, each in a thread of its own and within a time limit: one that hangs delays no other."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterable, Iterator

from muster import store
from muster.model.nodes import Node
from muster.remote.bmc import redfish
from muster.remote.bmc.bmc import BadBmc, login, parse_bmc
from muster_criteria.health.bmc import Shown
from muster_criteria.health.policy import Bmcs


def read_all(nodes: Iterable[Node], policy: Bmcs) -> Iterator[tuple[Node, Shown]]:
    """Yields what the BMC of each node shows, as they come, until ``pass_s`` are over; then no other is begun.

    Logins and serials are looked up by the caller's thread, since Airflow's connections are its own.
    """
    queue, until = iter(nodes), time.monotonic() + policy.pass_s
    limits = {"timeout_s": min(redfish.ANSWER_S, policy.limit_s), "limit_s": policy.limit_s}
    with concurrent.futures.ThreadPoolExecutor(policy.together, thread_name_prefix="bmc-sweep") as threads:
        running: dict[concurrent.futures.Future[Shown], Node] = {}
        while True:
            while len(running) < policy.together and time.monotonic() < until and (node := next(queue, None)):
                try:
                    if (bmc := parse_bmc(node.bmc)) is None:
                        raise BadBmc("no BMC is enrolled for the node")
                    serial = store.parts.system_serial(node.name)
                    running[threads.submit(redfish.read_health, bmc, login(bmc), serial=serial, **limits)] = node
                except BadBmc as error:
                    yield node, Shown(trouble=str(error))
            if not running:
                return
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for each in done:
                yield running.pop(each), each.result()
