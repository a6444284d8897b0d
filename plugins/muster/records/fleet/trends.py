"""What the last runs show of nodes that passed: counters that grew, metrics that slide, images that fail often."""

from __future__ import annotations

import collections
import datetime

from sqlalchemy import Select, Text, cast, func, select
from sqlalchemy.orm import Session

from muster.records.database.models import MeasurementRow, Node, Run, StageRecord
from muster_criteria.model import Verdict

COUNTERS = {
    "ecc_corrected": "ecc", "ecc_uncorrected": "ecc", "row_remap_corrected": "ecc", "row_remap_uncorrected": "ecc",
    "retired_pages": "ecc", "pcie_replay": "links", "nvlink_errors": "links", "ib_errors": "links",
}  # fmt: skip
"""Metrics of the inventory that count errors until a reset, and the group of defects of which they are a sign."""

IMAGE_RATIO_MAX = 3.0


def grown(session: Session, since: datetime.datetime) -> dict[str, collections.Counter[str]]:
    """{node: {"ecc" or "links": how many counters of its devices rose between two stages since then}}.

    A counter only rises or is reset, so another value above zero means new errors. The first value since then is none:
    when it rose is not known.
    """
    stages = _stages(since).subquery()
    first = (
        select(stages.c.node, func.min(stages.c.recorded_at).label("at"))
        .join(MeasurementRow, MeasurementRow.stage == stages.c.id)
        .where(MeasurementRow.metric.in_(COUNTERS), MeasurementRow.value.is_not(None))
        .group_by(stages.c.node)
        .subquery()
    )
    labels = cast(MeasurementRow.labels, Text)
    key = (stages.c.node, MeasurementRow.metric, MeasurementRow.device, labels)
    seen = (
        select(
            stages.c.node, stages.c.recorded_at, MeasurementRow.metric, MeasurementRow.device, MeasurementRow.value,
            labels.label("labels"),
            func.lag(MeasurementRow.value).over(partition_by=key, order_by=stages.c.recorded_at).label("was"),
        )
        .join(MeasurementRow, MeasurementRow.stage == stages.c.id)
        .where(MeasurementRow.metric.in_(COUNTERS), MeasurementRow.value > 0)
        .subquery()
    )  # fmt: skip
    rose = (
        select(seen.c.node, seen.c.metric, seen.c.device, seen.c.labels)
        .join(first, first.c.node == seen.c.node)
        .where(func.coalesce(seen.c.was, 0.0) != seen.c.value, seen.c.recorded_at > first.c.at)
        .distinct()
    )
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for row in session.execute(rose):
        found[row.node][COUNTERS[row.metric]] += 1
    return found


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
    at most ``IMAGE_RATIO_MAX``. An image is kernel, driver and libraries.
    """
    runs = select(Run.node, Run.environment, Run.verdict, Node.sku).join(Node, Node.name == Run.node)
    runs = runs.where(Run.started_at >= since, Run.started_at >= Node.machine_since, Run.ended_at.is_not(None))
    failed = set(session.scalars(select(runs.where(Run.verdict == str(Verdict.FAIL)).subquery().c.node).distinct()))
    if not failed:
        return {}
    # Imported here because it brings pandas, and every task process that parses a DAG file imports the records.
    from muster_criteria.context.alike import groups_of

    images: dict[str, tuple[str, str]] = {}
    for row in session.execute(runs.order_by(Run.started_at)):
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
        if ratio > 1.0:
            ratios[name] = min(ratio, IMAGE_RATIO_MAX)
    return ratios


def _stages(since: datetime.datetime) -> Select[int, str, datetime.datetime, int, str]:
    """The current stages since then of the machine that has each node's name now."""
    return (
        select(StageRecord.id, StageRecord.stage, StageRecord.recorded_at, StageRecord.sliding, Run.node)
        .join(Run, StageRecord.run == Run.id)
        .join(Node, Node.name == Run.node)
        .where(StageRecord.current, StageRecord.recorded_at >= since, Run.started_at >= Node.machine_since)
    )
