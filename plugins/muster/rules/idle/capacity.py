"""How many more tests of idle nodes the limits allow: share of nodes, kilowatts, canaries. Pure."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
from collections.abc import Collection, Mapping

from muster.model.nodes import Node
from muster.model.states import SERVING, State

DOMAIN = "power_domain"
"""The label of a node that names the PDU or busway which feeds it."""

CANARIES = 2
"""Nodes that are tested with new driver or firmware, and must pass, before the others that have the same."""


@dataclasses.dataclass(frozen=True)
class Signs:
    """What is known of a node apart from its failures.

    ``requested``: why the whole test is due at once, "" if it is not; ``answered``: whether a test that began since
    then ended with a verdict other than SKIPPED. ``skipped``: how many tests in a row like the last one ended SKIPPED,
    as preempted ones do. ``in_vain``: by stage, when the last test of it ended, if that gave no result that counts.
    ``took``: the stages of the last test that did not end SKIPPED. ``refused``: why no test is tried now: one was
    refused within the last hour before it began, or a person is asked. ``change``: the driver and firmware that are new
    on it; ``proven``: how many other nodes passed each test with them.
    """

    requested: str = ""
    answered: bool = False
    skipped: int = 0
    in_vain: Mapping[str, datetime.datetime] = dataclasses.field(default_factory=dict)
    took: tuple[str, ...] = ()
    refused: str = ""
    change: str = ""
    proven: int = 0


NO_SIGNS = Signs()


@dataclasses.dataclass(frozen=True)
class Limits:
    """``share`` (above 0, up to 1) of the nodes in service may be tested at a time, and at least one. ``minutes``: how
    long an idle node is likely to stay free, which bounds each test except a whole one that is overdue, requested or
    repeats one without a result. ``after``: how long a node rests after each test (``rest``), unless a person has
    requested one since. ``whole_after``: each node takes the whole test this often, if all these take no more than half
    of the minutes. ``node_kw``: a node's power under load; ``domain_kw``: what the load of all tests may draw from each
    power domain. ``closed``: why no test starts now, "" if one may.
    """

    share: float
    minutes: float = math.inf
    after: datetime.timedelta = datetime.timedelta(0)
    whole_after: datetime.timedelta = datetime.timedelta(days=28)
    node_kw: float = 0.0
    domain_kw: Mapping[str, float] = dataclasses.field(default_factory=dict)
    closed: str = ""

    def rest(self, minutes: float, serving: int) -> datetime.timedelta:
        """Returns how long a node rests after a test of ``minutes``; ``serving``: how many nodes are in service.

        If ``share`` of these is less than one node, tests take at most ``share`` of each node's time, but the rest ends
        before the next whole test: otherwise the one place would be taken all day. No node rests if ``after`` is 0.
        """
        if not self.after or serving * self.share >= 1.0:
            return self.after
        longest = self.whole_after / datetime.timedelta(minutes=1)
        return max(self.after, datetime.timedelta(minutes=min(minutes / self.share, longest)))


FULL, POWER, CANARY = "share", "power", "canary"
"""Limits that delay the test of a node until another test ends."""


@dataclasses.dataclass
class Room:
    """The room that the tests under way leave within the limits.

    ``serving``: the number of nodes in service; ``at_once`` of them may be tested at a time. ``tested``: those that a
    run holds. ``out``: these, and those that wait in revalidation, out of production; not one whose test was refused or
    is paused, since it would take the place of all others. ``drawn``: kW by power domain. ``canaries``: by SKU and
    change, how many of ``out`` have it; ``passed``: how many passed with it beyond ``Signs.proven``.
    """

    limits: Limits
    serving: int
    at_once: int
    tested: int
    out: int
    drawn: dict[str, float]
    canaries: collections.Counter[tuple[str, str]]
    passed: collections.Counter[tuple[str, str]] = dataclasses.field(default_factory=collections.Counter)

    @classmethod
    def left_by(
        cls,
        nodes: Collection[Node],
        limits: Limits,
        signs: Mapping[str, Signs],
        leased: Collection[str],
        queued: Collection[str] = (),
    ) -> Room:
        """Returns the room left by the runs that hold nodes. New nodes draw power too, during burn-in; ``leased`` nodes
        that are ``queued`` for a slot draw none.
        """
        serving = [node for node in nodes if node.state in SERVING]
        refused = {name for name, sign in signs.items() if sign.refused}
        waiting = {node.name for node in serving if node.state is State.REVALIDATION and not node.pause}
        out_now = {*leased, *(waiting - refused)}
        out = [node for node in serving if node.name in out_now]
        drawn: dict[str, float] = collections.defaultdict(float)
        for node in nodes:
            drawn[node.labels.get(DOMAIN, "")] += limits.node_kw * (node.name in leased and node.name not in queued)
        canaries = collections.Counter((node.sku, signs.get(node.name, NO_SIGNS).change) for node in out)
        tested, count = sum(node.name in leased for node in out), len(serving)
        return cls(limits, count, at_once(count, limits), tested, len(out), drawn, canaries)

    def barrier(self, node: Node, sign: Signs) -> tuple[str, str] | None:
        """Returns (limit, its power domain or change, or "") that delays the node's test; None if it may be tested."""
        waits = node.state is State.REVALIDATION
        if (self.tested if waits else self.out) >= self.at_once:
            return FULL, ""
        if self.limits.domain_kw:
            domain = node.labels.get(DOMAIN, "")
            if self.drawn[domain] + self.limits.node_kw > self.limits.domain_kw.get(domain, math.inf):
                return POWER, domain
        if sign.change and not waits:
            change = node.sku, sign.change
            proven = sign.proven + self.passed[change]
            if proven < CANARIES <= proven + self.canaries[change]:
                return CANARY, sign.change
        return None

    def why(self, node: Node, limit: str, of: str) -> str:
        """Returns the sentence for a barrier of the node."""
        if limit == POWER:
            return f"power domain {of} has none left of its {self.limits.domain_kw[of]:g} kW for tests"
        if limit == CANARY:
            return f"it waits until {CANARIES} other nodes with {of} have passed"
        waits = node.state is State.REVALIDATION
        tested = self.tested if waits else self.out
        also = " or wait for a test in revalidation" if not waits and self.out > self.tested else ""
        return f"{tested} of {self.serving} nodes are being tested{also}, which is the limit"

    def take(self, node: Node, sign: Signs) -> None:
        """Count a test that begins."""
        self._count(node, sign, 1)

    def free(self, node: Node, sign: Signs) -> None:
        """Count a test that ends with a PASS."""
        self._count(node, sign, -1)
        if sign.change and node.state in SERVING:  # the certificates that prove a change are of nodes in service
            self.passed[node.sku, sign.change] += 1

    def _count(self, node: Node, sign: Signs, by: int) -> None:
        if self.limits.domain_kw:
            self.drawn[node.labels.get(DOMAIN, "")] += by * self.limits.node_kw
        if node.state not in SERVING:
            return
        self.tested += by
        if by < 0 or node.state is not State.REVALIDATION:  # one that waits there was counted before its test
            self.out += by
            if sign.change:
                self.canaries[node.sku, sign.change] += by


def at_once(serving: int, limits: Limits) -> int:
    """Returns how many of ``serving`` nodes in service may be tested at a time, at least 1."""
    return max(1, math.floor(serving * limits.share))
