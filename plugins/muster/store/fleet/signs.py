"""What is known about nodes besides failures: their last tests, refusals, and ends of certificates."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Text, and_, cast, func, or_, select
from sqlalchemy.orm import aliased

from muster.model.states import SERVING
from muster.store.database import access
from muster.store.database.decisions import CertificateRow
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, NodeRow, RunRow
from muster_criteria.model import Verdict
from muster_criteria.stages import STAGES

REFUSED = "claim"
"""The actor of the remark in a node's history that says that a test was refused before it began."""


@dataclasses.dataclass(frozen=True)
class Skipped:
    """How many tests in a row ended SKIPPED, and when the last of them did."""

    often: int
    at: datetime.datetime


@dataclasses.dataclass(frozen=True)
class Tried:
    """When the node's last test began and ended, and {stage: the same of its last test}, without SKIPPED tests.

    ``skipped``: {list of stages: its tests that ended SKIPPED since the last one of the same stages, or a whole one,
    that did not}. A short test says nothing about long ones, which users' jobs interrupt.
    """

    began: datetime.datetime | None = None
    ended: datetime.datetime | None = None
    stages: Mapping[str, tuple[datetime.datetime, datetime.datetime]] = dataclasses.field(default_factory=dict)
    skipped: Mapping[tuple[str, ...], Skipped] = dataclasses.field(default_factory=dict)


def last_tests() -> dict[str, Tried]:
    """{node: its last tests on the present machine}; those that ended SKIPPED count if they began in service.

    A test whose end a wrong clock dated in the future counts from that time on.
    """
    began, ended = func.max(RunRow.started_at).label("began"), func.max(RunRow.ended_at).label("ended")
    stages = cast(RunRow.required_stages, Text)
    over = (
        RunRow.ended_at <= access.now(), RunRow.verdict != Verdict.SKIPPED, RunRow.machine == NodeRow.machine,
    )  # fmt: skip
    tests = select(RunRow.node, stages.label("stages"), began, ended).join(NodeRow, NodeRow.name == RunRow.node)
    made = tests.where(*over).group_by(RunRow.node, stages)
    same, whole = made.subquery(), made.subquery()
    skipped = (
        select(RunRow.node, stages.label("stages"), func.count(RunRow.id).label("often"), ended)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .outerjoin(same, and_(same.c.node == RunRow.node, same.c.stages == stages))
        .outerjoin(whole, and_(whole.c.node == RunRow.node, whole.c.stages == json.dumps(STAGES)))
        .where(RunRow.verdict == Verdict.SKIPPED, RunRow.state_before.in_(SERVING))
        .where(RunRow.machine == NodeRow.machine)
        .where(*(or_(last.c.ended.is_(None), RunRow.ended_at > last.c.ended) for last in (same, whole)))
        .group_by(RunRow.node, stages)
    )
    of_node: dict[str, list[Any]] = collections.defaultdict(list)
    with reading() as session:
        for test in session.execute(made):
            of_node[test.node].append(test)
        found = {node: _tried(rows) for node, rows in of_node.items()}
        lists: dict[str, dict[tuple[str, ...], Skipped]] = collections.defaultdict(dict)
        for row in session.execute(skipped):
            lists[row.node][_listed(row.stages)] = Skipped(row.often, row.ended)
    return found | {node: dataclasses.replace(found.get(node, Tried()), skipped=each) for node, each in lists.items()}


def _tried(tests: Sequence[Any]) -> Tried:
    """``tests``: the last one of each list of stages."""
    stages: dict[str, tuple[datetime.datetime, datetime.datetime]] = {}
    for test in sorted(tests, key=lambda each: each.ended):
        stages |= dict.fromkeys(_listed(test.stages), (test.began, test.ended))
    return Tried(max(test.began for test in tests), max(test.ended for test in tests), stages)


@functools.cache
def _listed(stages: str) -> tuple[str, ...]:
    """The list of stages in JSON; cached, since many nodes share few lists."""
    return tuple(json.loads(stages))


def tests_since(node: str, moment: datetime.datetime) -> int:
    """Returns how many tests of the node's present machine began after ``moment`` and ended, SKIPPED ones apart."""
    ended = (
        select(func.count(RunRow.id))
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(RunRow.node == node, RunRow.machine == NodeRow.machine, RunRow.started_at > moment)
        .where(RunRow.ended_at.is_not(None), RunRow.verdict != Verdict.SKIPPED)
    )
    with reading() as session:
        return session.scalar(ended) or 0


def certificate_ends() -> dict[str, tuple[datetime.datetime, int | None]]:
    """{node: (when the newest certificate of its present machine ended or ends, after which stage of the node)}.

    Without nodes that have none. The stage is None for a certificate that expires by the clock alone.
    """
    row, own = CertificateRow, aliased(CertificateRow)
    newest = select(own.number).where(own.node == NodeRow.name, own.machine == NodeRow.machine)
    newest = newest.order_by(own.number.desc()).limit(1).correlate(NodeRow)
    query = select(row.node, row.revoked_at, row.expires_at, row.revoked_after)
    query = query.join(NodeRow, NodeRow.name == row.node).where(row.number == newest.scalar_subquery())
    with reading() as session:
        return {node: (revoked or expires, after) for node, revoked, expires, after in session.execute(query)}


def note_refusal(node: str, why: str, *, busy: bool = False) -> None:
    """Note that a test of the node in service was refused before it began. Raises UnknownNode.

    ``busy``: because something else uses the node, which ends by itself.
    """
    with writing() as session:
        row = access.node_row(session, node)
        access.remark(session, row, REFUSED, f"not tested: {why}", {"busy": True} if busy else {})


def refusals(since: datetime.datetime) -> dict[str, str]:
    """{node: why its last refused test was refused}, for nodes with a refusal since then."""
    query = (
        select(EventRow.node, EventRow.reason)
        .where(EventRow.actor == REFUSED, EventRow.at.between(since, access.now()))
        .order_by(EventRow.id)
    )
    with reading() as session:
        return {row.node: row.reason for row in session.execute(query)}
