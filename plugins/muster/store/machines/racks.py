"""Racks whose NVLink domain is at fault: held for a person, once for all their nodes, until released."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from muster.errors import UnknownRack
from muster.model.racks import HeldRack
from muster.model.runs import RunKey
from muster.rules.decisions import check_decision
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.fabric import RackRow


def hold(key: RunKey, rack: str, codes: Sequence[str], why: str, nodes: Sequence[str]) -> bool:
    """Hold a rack. Returns False, changing nothing, if it is held already: it is decided once."""
    with writing() as session:
        try:
            with session.begin_nested():
                session.add(RackRow(
                    rack=rack, codes=list(codes), why=why, nodes=list(nodes), dag_id=key.dag_id, run_id=key.run_id,
                    since=access.now(),
                ))  # fmt: skip
        except IntegrityError:
            return False
        return True


def release(rack: str, person: str, reason: str) -> HeldRack:
    """End the hold, so that the rack's nodes are tested together again.

    Raises UnknownRack for one that is not held, NoPerson without a named person and a reason.
    """
    check_decision(person, reason, f"rack {rack} stays held")
    with writing() as session:
        row = session.scalar(select(RackRow).where(RackRow.rack == rack, RackRow.released_at.is_(None)))
        if row is None:
            raise UnknownRack(f"rack {rack} is not held: `muster racks list` shows those that are")
        row.released_at, row.person, row.reason = access.now(), person, reason.strip()
        return _value(row)


def held() -> dict[str, HeldRack]:
    """{rack: why it is held} of those that are."""
    with reading() as session:
        rows = session.scalars(select(RackRow).where(RackRow.released_at.is_(None)).order_by(RackRow.rack))
        return {row.rack: _value(row) for row in rows}


def _value(row: RackRow) -> HeldRack:
    found_by = RunKey(row.dag_id, row.run_id)
    return HeldRack(row.rack, tuple(row.codes), row.why, tuple(row.nodes), found_by, row.since)
