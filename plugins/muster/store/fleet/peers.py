"""The stored peer snapshots, for each SKU and level, of real and of simulated nodes; versions follow the content."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, func, select

from muster.errors import UnknownSnapshot
from muster.model.statistics import KeptSnapshot
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, NodeRow, SnapshotRow, StageRow
from muster_criteria.fleet.peers.bands import Band, Key, bands_of

if TYPE_CHECKING:
    from muster_criteria.fleet.peers.snapshot import Snapshot


def keep(snapshot: Snapshot, sku: str, level: str, *, simulated: bool) -> KeptSnapshot:
    """Store a snapshot; storing the same one again changes nothing."""
    with writing() as session:
        row = session.scalar(_snapshots(sku, level, simulated).where(SnapshotRow.version == snapshot.version))
        if row is None:
            row = SnapshotRow(
                version=snapshot.version, made_at=snapshot.made_at, sku=sku, level=level, simulated=simulated,
                nodes=snapshot.nodes, data=snapshot.to_bytes(),
            )  # fmt: skip
            session.add(row)
        return _to_value(row)


def latest(sku: str, level: str, *, simulated: bool) -> KeptSnapshot | None:
    """The newest snapshot, by which such nodes are judged now, if there is one."""
    newest = _snapshots(sku, level, simulated).order_by(SnapshotRow.id.desc())
    with reading() as session:
        row = session.scalar(newest.limit(1))
        return _to_value(row) if row is not None else None


def load(version: str, sku: str, level: str, *, simulated: bool) -> Snapshot:
    """The snapshot with that version. Raises UnknownSnapshot if there is none for such nodes, or it cannot be read."""
    from muster_criteria.fleet.peers.snapshot import Snapshot

    with reading() as session:
        data = session.scalar(_snapshots(sku, level, simulated, SnapshotRow.data).where(SnapshotRow.version == version))
    if data is None:
        kind = "simulated" if simulated else "real"
        raise UnknownSnapshot(
            f"no snapshot {version!r} of {kind} {sku} nodes at level {level} is kept; see `muster snapshots list`"
        )
    try:
        return Snapshot.from_bytes(data)
    except ValueError as error:
        raise UnknownSnapshot(f"snapshot {version} cannot be used by this version of Muster: {error}") from error


def bands(version: str, sku: str, level: str, *, simulated: bool) -> dict[Key, Band]:
    """The usual range of each figure among the peers by that snapshot; empty if it is not kept, or cannot be read by
    this version of Muster."""
    with reading() as session:
        data = session.scalar(_snapshots(sku, level, simulated, SnapshotRow.data).where(SnapshotRow.version == version))
    try:
        return bands_of(data, sku) if data else {}
    except ValueError:
        return {}


def find(*, sku: str = "") -> list[KeptSnapshot]:
    """All that are kept, latest first."""
    query = select(SnapshotRow).order_by(SnapshotRow.id.desc())
    if sku:
        query = query.where(SnapshotRow.sku == sku)
    with reading() as session:
        return [_to_value(row) for row in session.scalars(query)]


def last_change(sku: str, level: str, *, simulated: bool) -> datetime.datetime | None:
    """When something last happened that peer statistics depend on: a test at that level, or a step in a node's life."""
    fleet = (NodeRow.sku == sku, NodeRow.simulated == simulated)
    tested = (
        select(func.max(StageRow.recorded_at))
        .join(NodeRow, NodeRow.name == StageRow.node)
        .where(StageRow.level == level, *fleet)
    )
    moved = select(func.max(EventRow.at)).join(NodeRow, NodeRow.name == EventRow.node).where(*fleet)
    with reading() as session:
        at = session.scalar(tested)
        return max(at, session.scalar(moved) or at) if at else None


def _snapshots(sku: str, level: str, simulated: bool, what: Any = SnapshotRow) -> Select[Any]:
    return select(what).where(SnapshotRow.sku == sku, SnapshotRow.level == level, SnapshotRow.simulated == simulated)


def _to_value(row: SnapshotRow) -> KeptSnapshot:
    return KeptSnapshot(row.version, row.made_at, row.sku, row.level, row.simulated, row.nodes)
