"""The references of a verdict: a peer snapshot with the node's own earlier visits, read from the records."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING

from muster import store
from muster.model.nodes import Node
from muster.model.runs import Run
from muster_criteria.sku_files.work import other_quantities

if TYPE_CHECKING:
    import pandas as pd

    from muster_criteria.fleet.peers.references import References
    from muster_criteria.fleet.peers.snapshot import Snapshot
    from muster_criteria.measured import StageResult
    from muster_criteria.sku_files.model import Sku


def compares(sku: Sku, result: StageResult) -> bool:
    """Whether the result has anything that the SKU's programme compares with other nodes."""
    compared = {*metrics(sku), *(each.of for each in sku.programme.derive)}
    return any(measured.metric in compared for measured in result.measurements)


def with_history(
    snapshot: Snapshot,
    run: Run,
    node: Node,
    sku: Sku,
    stage: str,
    work: Mapping[str, str],
    *,
    before: datetime.datetime | None = None,
    repeats: pd.DataFrame | None = None,
) -> References:
    """The snapshot with the node's visits that were recorded ``before`` (default: now), and this visit's repeats.

    ``work``: what the probes had to do in this visit (``work.work_of``); the metrics of a probe are not compared with
    peers and visits that ran it with other parameters.
    """
    from muster_criteria.fleet.peers.history import build_history
    from muster_criteria.fleet.peers.references import References
    from muster_criteria.fleet.series.timeline import VISITS_MAX

    visits = store.measured.node_readings(
        node.name, run.level, metrics(sku), work, run_id=run.run_id, visits=VISITS_MAX, before=before
    )
    snapshot = snapshot.without(other_quantities(sku, stage, work, snapshot.work))
    history = build_history(visits, snapshot, sku.programme.compare) if len(visits) else None
    zone = str(node.labels.get(store.measured.ZONE, ""))
    return References(snapshot, history, repeats=repeats, node=node.name, zone=zone)


def metrics(sku: Sku) -> tuple[str, ...]:
    """The metrics that the SKU's programme compares with siblings, peers and history."""
    return tuple(dict.fromkeys(each.metric for each in sku.programme.compare))
