"""What the last runs show of nodes that passed: counters that grew, metrics that slide, images that fail often."""

from __future__ import annotations

import collections
import datetime
import json
from typing import TYPE_CHECKING

from sqlalchemy import Select, Text, cast, func, select
from sqlalchemy.orm import Session

from muster.store.database.models import MeasurementRow, NodeRow, RunRow, StageRow
from muster_criteria.model import Verdict

if TYPE_CHECKING:
    from muster_criteria.measured import Measured, StageResult

COUNTERS = {
    "ecc_corrected": "ecc", "ecc_uncorrected": "ecc", "row_remap_corrected": "ecc", "row_remap_uncorrected": "ecc",
    "retired_pages": "ecc", "pcie_replay": "links", "nvlink_errors": "links", "ib_errors": "links",
}  # fmt: skip
"""Metrics of the inventory that count errors until a reset, and the group of defects of which they are a sign."""

IMAGE_RATIO_MAX = 3.0


RISEN_MAX = 32
"""Counters of each group that are kept of a stage; the planner counts three."""


def risen(session: Session, node: NodeRow, result: StageResult) -> list[str]:
    """Returns the counters that are higher in ``result`` than when the node read them last, as "METRIC DEVICE LABELS".

    A counter only rises or is reset, so another value above zero means new errors. Asked before the stage is stored:
    to find them for the whole fleet took 11 s for 10,000 nodes with ten stages of 96 counters each.
    """
    now = {_name(each): each.value for each in result.measurements if each.metric in COUNTERS and each.value}
    if not now:
        return []
    counters = select(MeasurementRow.id).where(MeasurementRow.stage == StageRow.id)
    counters = counters.where(MeasurementRow.metric.in_(COUNTERS), MeasurementRow.value.is_not(None))
    last = (
        select(StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(RunRow.node == node.name, RunRow.started_at >= node.machine_since, StageRow.current, counters.exists())
        .order_by(StageRow.recorded_at.desc(), StageRow.id.desc())
        .limit(1)
    )
    rows = session.scalars(
        select(MeasurementRow).where(
            MeasurementRow.stage == last.scalar_subquery(), MeasurementRow.metric.in_(COUNTERS)
        )
    )
    before = {_name(row): row.value for row in rows if row.value is not None}
    names = sorted(name for name, value in now.items() if before.get(name, value) != value)
    of_groups = ([name for name in names if _group(name) == group] for group in sorted({*COUNTERS.values()}))
    return [name for group in of_groups for name in group[:RISEN_MAX]]


def _name(figure: Measured | MeasurementRow) -> str:
    return f"{figure.metric} {figure.device} {json.dumps(dict(figure.labels), sort_keys=True)}"


def _group(name: str) -> str:
    return COUNTERS[name.partition(" ")[0]]


def grown(session: Session, since: datetime.datetime) -> dict[str, collections.Counter[str]]:
    """{node: {"ecc" or "links": how many counters of its devices rose since then}}, each once."""
    stages = _stages(since).where(cast(StageRow.risen, Text) != "[]").add_columns(StageRow.risen)
    names: dict[str, set[str]] = collections.defaultdict(set)
    for row in session.execute(stages):
        names[row.node] |= set(row.risen)
    return {node: collections.Counter(map(_group, each)) for node, each in names.items()}


def sliding(session: Session, since: datetime.datetime) -> dict[str, int]:
    """{node: how many figures slide in the last stage of each kind since then}, without nodes of which none does."""
    stages = _stages(since).subquery()
    latest_first = func.row_number().over(
        partition_by=(stages.c.node, stages.c.stage), order_by=(stages.c.recorded_at.desc(), stages.c.id.desc())
    )
    ranked = select(stages.c.node, stages.c.sliding, latest_first.label("place")).subquery()
    query = select(ranked.c.node, func.sum(ranked.c.sliding)).where(ranked.c.place == 1, ranked.c.sliding > 0)
    return {row[0]: int(row[1]) for row in session.execute(query.group_by(ranked.c.node))}


def image_ratios(session: Session, since: datetime.datetime) -> dict[str, float]:
    """{node: how much more often the other nodes with its image failed since then than nodes of its SKU do}, above 1.

    The standardised ratio of failed nodes to expected ones, each plus one (a Gamma(1, 1) prior: few nodes say little),
    to one decimal, at most ``IMAGE_RATIO_MAX``. An image is kernel, driver and libraries, as the node reported last.
    """
    lately = (RunRow.started_at >= since, RunRow.started_at >= NodeRow.machine_since, RunRow.ended_at.is_not(None))
    failing = (
        select(RunRow.node)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(*lately, RunRow.verdict == str(Verdict.FAIL))
    )
    failed = set(session.scalars(failing.distinct()))
    if not failed:
        return {}
    # Imported here because it brings pandas, and every task process that parses a DAG file imports the records.
    from muster_criteria.context.alike import groups_of

    latest = select(func.max(RunRow.id)).join(NodeRow, NodeRow.name == RunRow.node).group_by(RunRow.node)
    latest = latest.where(*lately, cast(RunRow.environment, Text) != "{}")
    shown = (
        select(RunRow.node, RunRow.environment, NodeRow.sku)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(RunRow.id.in_(latest))
    )
    images: dict[str, tuple[str, str]] = {}
    for row in session.execute(shown):
        if image := groups_of("", row.environment).get("image"):
            images[row.node] = (row.sku, image)
    nodes, faults = (
        collections.Counter(images.values()),
        collections.Counter(images[name] for name in failed & images.keys()),
    )
    of_sku, sku_faults = collections.Counter[str](), collections.Counter[str]()
    for (sku, image), count in nodes.items():
        of_sku[sku] += count
        sku_faults[sku] += faults[sku, image]
    ratios = {}
    for name, (sku, image) in images.items():
        others = nodes[sku, image] - 1
        ratio = (faults[sku, image] - (name in failed) + 1) / (others * sku_faults[sku] / of_sku[sku] + 1)
        if round(ratio, 1) > 1.0:
            ratios[name] = min(round(ratio, 1), IMAGE_RATIO_MAX)
    return ratios


def _stages(since: datetime.datetime) -> Select[int, str, datetime.datetime, int, str]:
    """The current stages since then of the machine that has each node's name now."""
    return (
        select(StageRow.id, StageRow.stage, StageRow.recorded_at, StageRow.sliding, RunRow.node)
        .join(RunRow, StageRow.run == RunRow.id)
        .join(NodeRow, NodeRow.name == RunRow.node)
        .where(StageRow.current, StageRow.recorded_at >= since, RunRow.started_at >= NodeRow.machine_since)
    )
