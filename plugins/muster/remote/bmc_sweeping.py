"""Reads many BMCs at once, each in a thread of its own and within a time limit: one that hangs delays no other."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from muster.model.nodes import Node
from muster.remote import redfish
from muster.remote.bmc import BadBmc, Bmc, Login, login, parse_bmc
from muster_criteria.health.bmc import Shown
from muster_criteria.health.policy import Bmcs

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class BmcAnswer:
    """What the BMC of a node shows."""

    node: Node
    shown: Shown


def read_all(
    nodes: Iterable[Node],
    policy: Bmcs,
    *,
    who: Callable[[Bmc], Login] = login,
    answer_s: float = redfish.ANSWER_S,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[BmcAnswer]:
    """Yields an answer for each node, as they come, until ``pass_s`` are over; then no other is begun.

    Logins are looked up by the caller's thread, since Airflow's connections are its own.
    """
    queue, until = iter(nodes), clock() + policy.pass_s
    with concurrent.futures.ThreadPoolExecutor(policy.together, thread_name_prefix="bmc-sweep") as threads:
        running: set[concurrent.futures.Future[BmcAnswer]] = set()
        while True:
            while len(running) < policy.together and clock() < until and (node := next(queue, None)) is not None:
                begun = _begin(node, who)
                if isinstance(begun, BmcAnswer):
                    yield begun
                else:
                    running.add(threads.submit(_read, node, *begun, policy.limit_s, answer_s))
            if not running:
                return
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for each in done:
                yield each.result()


def _begin(node: Node, who: Callable[[Bmc], Login]) -> tuple[Bmc, Login] | BmcAnswer:
    try:
        bmc = parse_bmc(node.bmc)
        if bmc is None:
            raise BadBmc("no BMC is enrolled for the node")
        return bmc, who(bmc)
    except BadBmc as error:
        return BmcAnswer(node, Shown(trouble=str(error)))


def _read(node: Node, bmc: Bmc, who: Login, limit_s: float, answer_s: float) -> BmcAnswer:
    return BmcAnswer(node, redfish.read_health(bmc, who, timeout_s=min(answer_s, limit_s), limit_s=limit_s))
