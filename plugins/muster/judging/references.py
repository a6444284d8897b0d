"""What a node is judged by beside its SKU: a peer snapshot, and its own earlier visits, as the records have them."""

from __future__ import annotations

import datetime
import logging
from typing import TYPE_CHECKING

from muster import records
from muster.errors import UnknownSnapshot

if TYPE_CHECKING:
    import pandas as pd

    from muster.records import NodeRecord, RunRecord
    from muster_criteria.fleet.references import References
    from muster_criteria.fleet.snapshot import Snapshot
    from muster_criteria.measured import StageResult
    from muster_criteria.sku_files.skus import Sku

log = logging.getLogger(__name__)


def references(
    run: RunRecord, node: NodeRecord, sku: Sku, result: StageResult, repeats: pd.DataFrame | None = None
) -> References | None:
    """The references for judging a result of that run now: the newest snapshot, all visits before, and its repeats.

    None where the result has nothing that this SKU's programme compares, or there is no snapshot yet (which costs one
    query). One that cannot be read is as good as none: the verdict then says that it was spoken without.
    """
    compared = {*metrics(sku), *(each.of for each in sku.programme.derive)}
    if not any(measured.metric in compared for measured in result.measurements):
        return None
    simulated = node.simulated or result.simulated
    latest = records.latest_snapshot(sku.name, run.level, simulated=simulated)
    if latest is None:
        return None
    try:
        snapshot = records.load_snapshot(latest.version, sku.name, run.level, simulated=simulated)
    except UnknownSnapshot as error:
        log.warning("judged without peers: %s", error)
        return None
    return with_history(snapshot, run, node, sku, repeats=repeats)


def with_history(
    snapshot: Snapshot,
    run: RunRecord,
    node: NodeRecord,
    sku: Sku,
    *,
    before: datetime.datetime | None = None,
    repeats: pd.DataFrame | None = None,
) -> References:
    """That snapshot and the node's earlier visits, as they were known ``before`` (now), and this one's repeats."""
    from muster_criteria.fleet.history import build_history
    from muster_criteria.fleet.references import References
    from muster_criteria.fleet.timeline import VISITS_MAX

    visits = records.node_readings(
        node.name, run.level, metrics(sku), run_id=run.run_id, visits=VISITS_MAX, before=before
    )
    history = build_history(visits, snapshot, sku.programme.compare) if len(visits) else None
    zone = str(node.labels.get(records.ZONE, ""))
    return References(snapshot, history, repeats=repeats, node=node.name, zone=zone)


def metrics(sku: Sku) -> tuple[str, ...]:
    """The metrics that the SKU's programme compares with siblings, peers and history."""
    return tuple(dict.fromkeys(each.metric for each in sku.programme.compare))
