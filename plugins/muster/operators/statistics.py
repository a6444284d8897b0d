"""The tasks that recompute peer snapshots, for every SKU and level that has seen a change, and the fleet's numbers."""

from __future__ import annotations

import datetime
import logging
from typing import TYPE_CHECKING

from muster import store
from muster.errors import MusterError, UnknownSnapshot, apart
from muster.judging.references import metrics
from muster.model.statistics import KeptSnapshot
from muster.settings import settings
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import current_sku
from muster_criteria.sku_files.work import sku_work
from muster_criteria.stages import LEVELS

if TYPE_CHECKING:
    from muster_criteria.fleet.peers.snapshot import Snapshot

log = logging.getLogger(__name__)


def recompute() -> list[str]:
    """Make a new snapshot for each SKU and level with changes. Returns the snapshots' versions.

    Raises MusterError, which names the SKUs and levels whose statistics could not be made, after all others are.
    """
    now = store.clock.now()
    made: list[str] = []
    failed: list[str] = []
    for name, simulated in sorted({(node.sku, node.simulated) for node in store.nodes.find()}):
        try:
            sku = current_sku(name, settings().sku_folders)
        except Exception as error:
            log.warning("no statistics of %s nodes: %s", name, error)
            continue
        for level in LEVELS if metrics(sku) else ():
            # The readings of one model must not leave all others without statistics.
            with apart(f"{name} at level {level}", failed):
                if (kept := _recompute(sku, level, simulated, now)) is not None:
                    made.append(kept.version)
    if failed:
        raise MusterError(f"statistics could not be made, and the former ones stay in use: {'; '.join(failed)}")
    return made


def count() -> list[str]:
    """Count the fleet's numbers. Returns a sentence for real and for simulated nodes, where there are any."""
    return [
        f"{each.skus[0].nodes} {'simulated ' if each.simulated else ''}nodes, {each.since:%Y-%m-%d} to "
        f"{each.until:%Y-%m-%d}: {each.skus[0].interruptions.events} interruptions"
        for each in store.numbers.make()
    ]


def _recompute(sku: Sku, level: str, simulated: bool, now: datetime.datetime) -> KeptSnapshot | None:
    """Returns the new snapshot; None if nothing changed since the last one, its figures would be the same, or there are
    no measurements.

    A snapshot dated in the future, by a wrong clock, may lack changes, and is replaced.
    """
    changed = store.peers.last_change(sku.name, level, simulated=simulated)
    last = store.peers.latest(sku.name, level, simulated=simulated)
    former = _loaded(last) if last and last.made_at <= now else None
    work = sku_work(sku, level)
    if changed is None or (last and former and changed <= last.made_at and former.work == work):
        return None
    from muster_criteria.fleet.peers.snapshot import build_snapshot

    readings = store.measured.fleet_readings(sku.name, level, metrics(sku), work, simulated=simulated)
    suspected = store.measured.excluded_from_peers(sku.name, simulated=simulated)
    snapshot = build_snapshot(readings, now, sku.programme.compare, exclude=suspected, work=work)
    if not snapshot.nodes or (former and snapshot.equals(former)):
        return None
    kept = store.peers.keep(snapshot, sku.name, level, simulated=simulated)
    kind = "simulated " if simulated else ""
    log.info("snapshot %s: %d %s%s nodes at level %s", kept.version, kept.nodes, kind, sku.name, level)
    return kept


def _loaded(kept: KeptSnapshot) -> Snapshot | None:
    """Returns the snapshot, None if this version of Muster cannot read it: another version may have made it."""
    try:
        return store.peers.load(kept.version, kept.sku, kept.level, simulated=kept.simulated)
    except UnknownSnapshot as error:
        log.warning("recomputing a snapshot: %s", error)
        return None
