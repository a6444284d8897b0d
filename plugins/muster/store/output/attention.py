"""The nodes that do not serve, and who acts next (``muster.rules.attention``), from the records."""

from __future__ import annotations

import collections
import contextlib
import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select

from muster.model.attention import Attention
from muster.model.figures import FleetRow
from muster.model.health import Observation
from muster.model.schedulers import CLOSED, OPEN
from muster.model.states import State
from muster.rules import attention
from muster.rules.lifecycle.gate import Refuse
from muster.rules.lifecycle.transitions import INCONCLUSIVE_BUDGET
from muster.rules.service.repair import REPAIRABLE
from muster.settings import settings
from muster.store.database import access
from muster.store.database.decisions import QuestionRow, WaiverRow
from muster.store.database.engine import reading
from muster.store.database.models import EventRow, NodeRow, StageRow
from muster.store.database.outgoing import PlaceRow
from muster.store.database.repairs import IncidentRow
from muster.store.decisions import admission, questions, replacing
from muster.store.decisions.current import PRESENT, superseded
from muster.store.fleet import repairs, signs
from muster.store.fleet.measured import NOT_PEERS
from muster.store.machines import leases, racks
from muster.store.output import overview
from muster.store.queues import schedulers
from muster.store.testing import runs
from muster_criteria.model import Verdict

REFUSED_FOR = datetime.timedelta(days=7)
"""How long a refusal to test counts as the reason why a node is out of service, unless a test ends."""
OPEN_MAX = 10_000
"""The most open incidents that are read."""


def collect(
    rows: Sequence[FleetRow] | None = None, leaving: Mapping[str, Observation] | None = None
) -> list[Attention]:
    """Every node that does not serve or needs a decision; those that wait for a person come first.

    ``rows``: those of ``overview.rows``, if the caller has them. ``leaving``: as in ``muster.rules.attention.Known``.
    """
    leaving = leaving or {}
    kinds = {name: str(chosen.get("kind", "")) for name, chosen in settings().schedulers.items()}
    odd = or_(
        PlaceRow.wanted != PlaceRow.done, PlaceRow.difference != "", PlaceRow.question != "", PlaceRow.verify != "",
        PlaceRow.shown.not_in(["", OPEN, CLOSED]),
    )  # fmt: skip
    if rows is None:
        asked = select(QuestionRow.node).where(QuestionRow.answered_at.is_(None))
        unproved = select(IncidentRow.node).where(IncidentRow.closed_at.is_(None), IncidentRow.level != "")
        quiet = NodeRow.state.in_([State.PRODUCTION, State.RETIRED])
        rows = overview.rows(or_(
            ~quiet, NodeRow.held_run != "", NodeRow.inconclusive > 0, NodeRow.name.in_(asked),
            NodeRow.name.in_(select(PlaceRow.node).where(odd)), NodeRow.name.in_(_refused_often()),
            NodeRow.name.in_(leaving), NodeRow.name.in_(unproved), NodeRow.shadow,
        ))  # fmt: skip
    held = {(each.rack, each.simulated): each for each in racks.held()}
    broken = {row.node for row in rows if row.state in REPAIRABLE}
    held_by = {each.node: each for each in leases.live()}
    incidents = [
        each for each in repairs.find(limit=OPEN_MAX, still_open=True)
        if each.node not in broken  # of a broken node, only those it is out for matter; ``out_for`` costs queries
        or ((each.asks or each.waits or each.node in held_by) and repairs.out_for(each))
    ]  # fmt: skip
    known = attention.Known(
        places={each.node: each for each in schedulers.places(where=odd)},
        questions={each.node: (each, until) for each, until in questions.waiting()},
        leases=held_by, refusals=_refusals(), kinds=kinds,
        replacements={each.spare: each for each in replacing.proposals()}, racks=held,
        incidents=incidents, obstacles=runs.obstacles(),
        untestable=_untestable(), leaving=leaving, members=_members(), uncompared=_uncompared(rows),
        failing=_failing(),
    )  # fmt: skip
    return attention.attention(rows, known, access.now())


def _failing() -> dict[str, str]:
    """{node in shadow mode: which stage failed, and why}, for FAILs that nothing supersedes and no waivers cover."""
    failed = NodeRow.shadow, StageRow.current, StageRow.verdict == Verdict.FAIL, ~superseded(StageRow)
    query = select(StageRow.node, StageRow.stage, StageRow.reason).join(NodeRow, PRESENT).where(*failed)
    in_force = select(WaiverRow.node).where(WaiverRow.until > access.now(), WaiverRow.revoked_at.is_(None))
    with reading() as session:
        found = {row.node: f"{row.stage} failed: {row.reason}" for row in session.execute(query.order_by(StageRow.id))}
        waived = found.keys() & set(session.scalars(in_force))  # for a whole fleet, the gate would take seconds
    accepted = {name for name in waived if not isinstance(admission.decision(name), Refuse)}
    return {name: why for name, why in found.items() if name not in accepted}


def _members() -> dict[tuple[str, bool], int]:
    query = select(NodeRow.sku, NodeRow.simulated, func.count())
    query = query.where(NodeRow.state.not_in(NOT_PEERS))
    with reading() as session:
        return {(sku, simulated): nodes for sku, simulated, nodes in session.execute(
            query.group_by(NodeRow.sku, NodeRow.simulated)
        )}  # fmt: skip


def _uncompared(rows: Sequence[FleetRow]) -> frozenset[str]:
    """The SKUs of nodes with a PROVISIONAL verdict that no comparison with peers will complete."""
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import current_sku

    found = set()
    for name in {row.sku for row in rows if row.verdict is Verdict.PROVISIONAL}:
        with contextlib.suppress(SkuError):
            compare = current_sku(name, settings().sku_folders).programme.compare
            if not any(each.judged for each in compare):
                found.add(name)
    return frozenset(found)


def _refused() -> ColumnElement[bool]:
    """Condition: refusals within ``REFUSED_FOR``, except those because the node was in use."""
    lately = and_(EventRow.actor == signs.REFUSED, EventRow.at >= access.now() - REFUSED_FOR)
    return and_(lately, EventRow.evidence["busy"].as_boolean().is_not(True))


def _refused_often() -> Select[Any]:
    return select(EventRow.node).where(_refused()).group_by(EventRow.node).having(func.count() >= INCONCLUSIVE_BUDGET)


def _untestable() -> dict[str, list[datetime.datetime]]:
    query = select(EventRow.node, EventRow.at).where(_refused(), EventRow.node.in_(_refused_often()))
    found: dict[str, list[datetime.datetime]] = collections.defaultdict(list)
    with reading() as session:
        for row in session.execute(query.order_by(EventRow.id)):
            found[row.node].append(row.at)
    return found


def _refusals() -> dict[str, tuple[datetime.datetime, str]]:
    query = select(EventRow.node, EventRow.at, EventRow.reason).order_by(EventRow.id)
    query = query.where(EventRow.actor == signs.REFUSED, EventRow.at >= access.now() - REFUSED_FOR)
    with reading() as session:
        return {row.node: (row.at, row.reason) for row in session.execute(query)}
