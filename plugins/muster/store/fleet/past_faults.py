"""In how many earlier runs the parts of a node failed: by serial, in any slot of any node."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, select, tuple_
from sqlalchemy.orm import Session

from muster.rules.identity import as_known, real_serials
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import FindingRow, NodeRow, PartRow, PlacementRow, RunRow, StageRow
from muster.store.machines.parts import serials_at
from muster_criteria.devices import kind_of
from muster_criteria.model import COMMON_CAUSE, SHARED_CAUSE, Severity

if TYPE_CHECKING:
    from muster_criteria.measured import StageResult


def previous(result: StageResult, node: str, run_id: str, before: datetime.datetime | None = None) -> dict[str, int]:
    """{device: in how many runs its part failed}, without run ``run_id``, up to ``before`` (now).

    The parts are those that ``result`` found or, where it has no serials, those recorded for the node. A device without
    a serial is followed by its name on this machine. Findings that several devices or nodes had in common do not count.
    Raises UnknownNode.
    """
    moment = before or access.now()
    reported = result.identity.get("serials")
    with reading() as session:
        row = access.node_row(session, node)
        known = serials_at(session, node, moment)
        serials = known | as_known(real_serials(reported if isinstance(reported, Mapping) else {}), known)
        sat = _places(session, serials)
        failures = _failures(moment).where(RunRow.run_id != run_id, RunRow.simulated == row.simulated)
        failures = failures.where(FindingRow.node.in_({row.name, *(place.node for place in sat)}))
        found = list(session.execute(failures))
        runs: dict[str, set[int]] = {}
        for device, run in (*_of_parts(found, sat, serials), *_of_names(found, row, serials)):
            runs.setdefault(device, set()).add(run)
    return {device: len(found) for device, found in runs.items()}


def _failures(before: datetime.datetime) -> Select[str, str, int, int, int]:
    return (
        select(FindingRow.node, FindingRow.device, StageRow.run, StageRow.origin, RunRow.machine)
        .join(StageRow, FindingRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(
            FindingRow.severity == Severity.CRITICAL, FindingRow.confidence > SHARED_CAUSE,
            FindingRow.rule != COMMON_CAUSE, StageRow.recorded_at < before,
        )
    )  # fmt: skip


def _places(session: Session, serials: Mapping[str, str]) -> list[Any]:
    """All placements of the parts with these serials, {slot: serial}."""
    if not serials:
        return []
    places = select(
        PartRow.kind, PartRow.serial, PlacementRow.node, PlacementRow.slot, PlacementRow.after, PlacementRow.until_after
    )
    of = tuple_(PartRow.kind, PartRow.serial).in_([(kind_of(slot), serial) for slot, serial in serials.items()])
    return list(session.execute(places.join(PartRow, PlacementRow.part_id == PartRow.id).where(of)))


def _of_parts(found: Sequence[Any], sat: Sequence[Any], serials: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """(device by its present name, run) of each failure of a part with a serial, wherever it sat then."""
    now = {(kind_of(slot), serial): slot for slot, serial in serials.items()}
    for place in sat:
        for node, device, run, stage, _ in found:
            here = (node, device) == (place.node, place.slot)
            if here and place.after < stage and (place.until_after is None or stage <= place.until_after):
                yield now[place.kind, place.serial], run


def _of_names(found: Sequence[Any], node: NodeRow, serials: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """(device, run) of each failure on this machine of a device without a serial: the node itself, a disk, a CPU."""
    for name, device, run, _, machine in found:
        if (name, machine) == (node.name, node.machine) and device not in serials:
            yield device, run
