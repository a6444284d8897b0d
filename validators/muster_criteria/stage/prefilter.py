"""The prefilter: which nodes of a whole fleet have any small margin, in one vectorised pass.

It decides nothing: the judge judges those nodes. It may name a sound node, but leaves out none for which the judge
would find anything (``tests/muster_criteria/stage/test_prefilter.py``).
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.context.goldens import golden_findings
from muster_criteria.context.versions import judge_versions
from muster_criteria.device_events.judge import judge_events
from muster_criteria.devices import kind_of
from muster_criteria.fleet.budget import RETEST_MIN
from muster_criteria.fleet.peers.distances import Distances
from muster_criteria.fleet.peers.history import History
from muster_criteria.fleet.peers.snapshot import Snapshot, build_snapshot
from muster_criteria.fleet.series.keyed import SERIES, Codes, Numbers, by_group, medians, others_medians, series_of
from muster_criteria.fleet.series.readings import group_of, stack_of, together
from muster_criteria.fleet.verdicts import judge_readings
from muster_criteria.kinds.kind import Seen, Times
from muster_criteria.labels import Labels, labels_of
from muster_criteria.rows import COUNTED_BY, PRESENCE, Row, rows_of
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.coverage import SENSOR_SHARE
from muster_criteria.stage.plausible import LEAST, RATE_MOST

BLOCK_ROWS = 300_000
"""Readings looked at at a time, to save memory: what one node shows does not depend on today's readings of others."""
NEAR = 1e-6
"""Margins below this share count as small, so that rounding leaves out none."""

Flags = npt.NDArray[np.bool_]


def small_margins(
    today: pd.DataFrame,
    sku: Sku,
    stage: str,
    level: str,
    snapshot: Snapshot | None = None,
    history: History | None = None,
) -> set[str]:
    """The nodes of which any reading (see ``readings.as_readings``) has a small margin under a rule.

    ``today``: all of nodes of one SKU in one stage at one level. Without a snapshot, judged by the SKU's limits and
    among siblings.
    """
    by = snapshot or build_snapshot(together([]), datetime.datetime.now(datetime.UTC), sku.programme.compare)
    found: set[str] = set()
    for block in _blocks(today):
        names = block["node"].cat.categories
        of_block = history.of_nodes(names.tolist()) if history is not None else None
        flagged = np.zeros(len(names), dtype=np.bool_)
        flagged[_by_fleet(block, sku, by, of_block)] = True
        for part, on_stack in _by_stack(block, sku, level):
            flagged[_by_limits(part, on_stack, stage)] = True
        found.update(names[flagged])
    return found


def conspicuous(case: Case) -> bool:
    """Whether the judge would find something in this case for another reason than its numbers.

    Such reasons are texts, spreads, driver messages, digests, versions, and what only the controller knows.
    """
    result = case.result
    if result is None or (result.stage, result.level) != (case.stage, case.level):
        return True
    if case.evidence or case.others or case.repeats is not None:
        return True
    if (case.references and case.references.repeats is not None) or golden_findings(result, case.goldens):
        return True
    if judge_events(result, case.sku.event_policies).findings:
        return True
    versions = judge_versions(result, case.sku, case.running)
    if versions.findings or versions.missing:
        return True
    limits = [
        each
        for each in case.sku.all_limits
        if each.kind.looks_at(each) == "row" and (not each.stages or case.stage in each.stages)
    ]
    about = {limit.metric for limit in limits}
    rows = [row for row in rows_of(result, case.sku) if row.metric in about]
    return any(
        limit.applies_to(row.metric, kind_of(row.device), dict(row.labels)) and _small_alone(limit, row)
        for row in rows
        for limit in limits
        if limit.metric == row.metric
    )


def _small_alone(limit: Limit, row: Row) -> bool:
    """Whether the margin of a limit that looks at more than the value is small on this row."""

    def one(value: float | None) -> Numbers:
        return np.array([np.nan if value is None else value])

    unknown = one(None)
    text = np.fromiter([row.text], dtype=object, count=1)
    seen = Seen(
        one(row.value), one(row.spread), text, unknown, unknown, np.zeros(1, dtype=np.int64), lambda times: unknown
    )
    return bool((limit.kind.margin(limit, limit.kind.at(limit, seen), seen) < 0.0)[0])


def shape(case: Case, zone: str = "") -> tuple[object, ...]:
    """What a verdict depends on where no margin is small: what was measured, could be read, and had peers.

    Cases of one SKU, stage and level with the same shape, in which the judge finds nothing, get the same verdict from
    the same snapshot. ``zone``: the node's cooling zone.
    """
    result = case.result
    if result is None:
        return (case.why_missing,)
    ends = tuple(sorted((end.probe, end.status, end.reason) for end in result.probes))
    rows = tuple(
        (row.probe, row.name, row.device, row.unit, row.value is None, row.text is None, row.note, row.refused,
         row.value if row.metric in _COUNTED else None)
        for row in rows_of(result, case.sku)
    )  # fmt: skip
    among = group_of(case.sku.name, result.environment, zone)
    return (result.end, result.partial, tuple(result.notes), ends, rows, among)


_COUNTED = frozenset((*COUNTED_BY.values(), SENSOR_SHARE))
"""Metrics of which the value says how many devices are required, or whether their sensors answered throughout."""


def _blocks(today: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Whole nodes at a time, each block with the names of its own nodes only."""
    node = today["node"].cat.codes.to_numpy()
    names = today["node"].cat.categories
    count = max(math.ceil(len(today) / BLOCK_ROWS), 1)
    each = max(math.ceil(len(names) / count), 1)
    in_order = bool((np.diff(node) >= 0).all())
    firsts = range(0, len(names) + each, each)
    bounds = itertools.pairwise(np.searchsorted(node, firsts).tolist())
    for first, (start, end) in zip(firsts, bounds, strict=False):
        if in_order:
            block = today.iloc[start:end]
        else:
            block = today.iloc[np.flatnonzero((node >= first) & (node < first + each))]
        own = pd.Categorical.from_codes(block["node"].cat.codes.to_numpy() - first, names[first : first + each])
        yield block.assign(node=own)


def _by_fleet(block: pd.DataFrame, sku: Sku, snapshot: Snapshot, history: History | None) -> Codes:
    """The nodes with a small margin under a rule that compares, and those whose figures are too good to be true."""
    at_least = RETEST_MIN * (1.0 - NEAR)
    measured, results = judge_readings(block, sku.programme.compare, snapshot, history, at_least=at_least)
    of = measured.readings
    small = [of.node[rule.reading[np.fmin(rule.fail, rule.retest) < NEAR]] for rule in results]
    # Measured twice, perhaps by two probes: the judge has medians for each.
    twice = of.node[pd.Series(of.item).duplicated().to_numpy()] if of.repeated else of.node[:0]
    return np.concatenate([*small, twice, of.node[_too_good(measured)]])


def _too_good(measured: Distances) -> Flags:
    """Readings better than a part of their kind can be; see ``stage.plausible``."""
    of = measured.readings
    own = of.row >= 0  # an index is no measurement
    usual = np.where(measured.usual > 0.0, measured.usual, np.nan)
    unknown = np.isnan(usual) & own
    if unknown.any():
        group, distinct = pd.factorize(of.siblings_of)
        median, _ = medians(np.where(own, of.value, np.nan), group.astype(np.int64), len(distinct))
        usual = np.where(unknown & (median[group] > 0.0), median[group], usual)
    higher = of.sign > 0.0
    beyond = np.where(higher, of.value < LEAST * usual * (1.0 + NEAR), of.value > RATE_MOST * usual * (1.0 - NEAR))
    return np.asarray(own & (beyond | (higher & (of.value <= 0.0))))


def _by_stack(block: pd.DataFrame, sku: Sku, level: str) -> Iterator[tuple[pd.DataFrame, Sku]]:
    """The readings of a block, divided by the limits that hold at the level on the stacks of their nodes."""
    on = [sku.on(stack_of(group), level) for group in block["group"].cat.categories]
    for one in {id(each): each for each in on}.values():
        rows = np.array([each is one for each in on])[block["group"].cat.codes.to_numpy()]
        yield block if rows.all() else block[rows], one


_Series = tuple[str, str, Labels, str]


@dataclasses.dataclass(frozen=True, eq=False)
class _Columns:
    """The columns of a block that limits look at, an element for each reading."""

    value: Numbers
    node: Codes
    device: Codes
    devices: pd.Index[str]

    @classmethod
    def of(cls, block: pd.DataFrame) -> _Columns:
        """Those of this block."""
        node, device = (block[name].cat.codes.to_numpy().astype(np.int64) for name in ("node", "device"))
        return cls(block["value"].to_numpy(), node, device, block["device"].cat.categories)


def _by_limits(block: pd.DataFrame, sku: Sku, stage: str) -> Codes:
    """The nodes with a small margin under a limit of their SKU, or of which a device does not answer."""
    columns = _Columns.of(block)
    series, keys = series_of([block[name].cat for name in SERIES], len(block))
    limits: dict[str, list[Limit]] = {}
    for limit in sku.all_limits:
        if limit.kind.looks_at(limit) != "row" and (not limit.stages or stage in limit.stages):
            limits.setdefault(limit.metric, []).append(limit)
    order, starts = by_group(series, len(keys))
    of_series = {
        (kind, metric, labels_of(labels), unit): order[starts[at] : starts[at + 1]]
        for at, (kind, metric, labels, unit) in enumerate(keys)
    }
    found = [np.empty(0, dtype=np.int64)]
    for (kind, metric, labels, unit), rows in of_series.items():
        if metric == PRESENCE:
            found.append(columns.node[rows[_of_too_many(columns, rows, sku) | (columns.value[rows] != 1.0)]])
        found += [
            columns.node[_small(limit, rows, columns, of_series)]
            for limit in limits.get(metric, ())
            if limit.kind.takes(limit, unit) and limit.applies_to(metric, kind, dict(labels))
        ]
    return np.concatenate(found)


def _of_too_many(columns: _Columns, rows: Codes, sku: Sku) -> Flags:
    """Which of these presence rows are of a node with more of them than the SKU counts GPUs."""
    node = columns.node[rows]
    return np.asarray(np.bincount(node)[node] > int(sku.devices.get("gpu") or 0))


def _small(limit: Limit, rows: Codes, columns: _Columns, of_series: Mapping[_Series, Codes]) -> Codes:
    """Those of the rows of which the margin is small under this limit; an unknown one (NaN) is not."""
    value, node = columns.value[rows], columns.node[rows]
    nothing = np.full(len(rows), np.nan)
    median, others, count = nothing, nothing, np.zeros(len(rows), dtype=np.int64)
    if limit.kind.looks_at(limit) == "siblings":
        pair = node * 65_536 + columns.device[rows]
        if len(np.unique(pair)) < len(pair):  # perhaps by two probes, which the judge compares apart
            return rows
        size = int(node.max()) + 1
        median, others, count = medians(value, node, size)[0][node], *others_medians(value, node, size)
    text = np.empty(len(rows), dtype=object)  # each is None
    seen = Seen(
        value, nothing, text, median, others, count, lambda times: _referred(limit, times, rows, columns, of_series)
    )
    at = limit.kind.at(limit, seen)
    computed = isinstance(limit.value, Times) or limit.kind.looks_at(limit) == "siblings"
    near = NEAR * np.abs(at) if computed else 0.0  # what was computed is rounded
    return rows[limit.kind.margin(limit, at, seen) < near]


def _referred(
    limit: Limit,
    times: Times,
    rows: Codes,
    columns: _Columns,
    of_series: Mapping[_Series, Codes],
) -> Numbers:
    """The measurement that ``times`` refers to, for each row."""
    wanted = set(times.labels.items())
    chosen = np.concatenate(
        [rows[:0]]
        + [of for (_, metric, labels, _), of in of_series.items() if metric == times.metric and wanted <= set(labels)]
    )
    if times.device == "node":
        names = columns.devices
        chosen = chosen[columns.device[chosen] == (names.get_loc("node") if "node" in names else -1)]
        owner = columns.node
    else:
        owner = columns.node * len(columns.devices) + columns.device
    return _strictest(limit, columns.value[chosen], owner[chosen], owner[rows])


def _strictest(limit: Limit, value: Numbers, owner: Codes, of: Codes) -> Numbers:
    """The strictest of these values that each of ``of`` owns; NaN where it has none."""
    start = -np.inf if limit.kind.side == "lower" else np.inf
    found = np.full(int(max(owner.max(initial=0), of.max(initial=0))) + 1, start)
    (np.maximum if limit.kind.side == "lower" else np.minimum).at(found, owner, value)
    return np.where(np.isfinite(found), found, np.nan)[of]
