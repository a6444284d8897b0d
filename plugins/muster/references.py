"""What a node is judged by beside its SKU: a peer snapshot, and its own earlier visits, as the records have them."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from muster import records

if TYPE_CHECKING:
    from muster.records import NodeRecord, RunRecord
    from muster_criteria.fleet.references import References
    from muster_criteria.skus import Sku


def references(
    run: RunRecord,
    node: NodeRecord,
    sku: Sku,
    *,
    simulated: bool,
    version: str | None = None,
    before: datetime.datetime | None = None,
) -> References | None:
    """The references for judging a stage of that run: with the newest snapshot, or that of ``version``.

    ``simulated``: whether what is judged is; such nodes have peers of their own. ``before``: with the visits that were
    known then; now, if not given. None where there is no snapshot (which costs one query), or nothing that this SKU's
    programme compares. Raises UnknownSnapshot.
    """
    compared = metrics(sku)
    if not compared:
        return None
    if version is None:
        latest = records.latest_snapshot(sku.name, run.level, simulated=simulated)
        if latest is None:
            return None
        version = latest.version
    from muster_criteria.fleet.history import VISITS_MAX, build_history
    from muster_criteria.fleet.references import References

    snapshot = records.load_snapshot(version, sku.name, run.level, simulated=simulated)
    visits = records.node_readings(node.name, run.level, compared, run_id=run.run_id, visits=VISITS_MAX, before=before)
    history = build_history(visits, snapshot, sku.programme.compare) if len(visits) else None
    return References(snapshot, history, node=node.name, zone=str(node.labels.get(records.ZONE, "")))


def metrics(sku: Sku) -> tuple[str, ...]:
    """The metrics that the SKU's programme compares with siblings, peers and history."""
    return tuple(dict.fromkeys(each.metric for each in sku.programme.compare))
