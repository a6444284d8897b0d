"""The training of a block, as its report and page show it, and the earlier figures that it is compared with."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import statistics
from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from muster.model.runs import Run, RunKey
from muster.rules.service import spares
from muster.settings import settings
from muster.store.database import access
from muster.store.database.engine import reading
from muster.store.database.models import FindingRow, MeasurementRow, NodeRow, RunRow, StageRow
from muster.store.fleet import failures
from muster_criteria.cluster.acceptance.lines import Figures
from muster_criteria.cluster.acceptance.table import inputs_of, training_of
from muster_criteria.cluster.acceptance.values import Comparisons, Member, Training
from muster_criteria.cluster.goodput import Input, Inputs
from muster_criteria.cluster.model import SAVED, SLOWED, STAGE, TRAINING, Earlier
from muster_criteria.model import Observation

SHOWN = ("throttle_time",)
"""Metrics of other probes that may explain why a rank is slow."""
DEVICES, RESTART = "training_devices", "fault_restart"
COMPARED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "scaling": ("scaling", {}), "step_p95_to_p50": ("step_p95_to_p50", {}), RESTART: (RESTART, {}),
    "tokens_per_s": ("tokens_per_s", {"scope": "block"}), DEVICES: (DEVICES, {}),
    "mfu node": ("mfu", {"scope": "node"}), "mfu block": ("mfu", {"scope": "block"}),
    "checkpoint_save": ("checkpoint_save", {"stat": "p50"}),
    "checkpoint_save p95": ("checkpoint_save", {"stat": "p95"}),
    "checkpoint_load": ("checkpoint_load", {"stat": "p50"}),
}  # fmt: skip
"""{figure of earlier blocks that is compared: (its metric, the labels that it must have)}."""
BLOCKS = 10
"""How many of the latest earlier blocks are compared."""
GPUS_A_NODE = 8
"""GPUs per node assumed in forecasts of jobs if nodes have no GPUs or their SKU cannot be read."""


def training(key: RunKey) -> Training | None:
    """The block's training, with the ``comparisons`` from when it was judged; None for a run without any."""
    with reading() as session:
        members, block = _members(session, key), access.block_of(session, key)
    if not members:
        return None
    kept = block.get("training") or _kept(members[0].sku, rate_of(spares.RECORD, simulated=False), {})
    return training_of(members, dataclasses.replace(_read(kept), differences=tuple(block.get("differences", ()))))


def differences(key: RunKey) -> tuple[str, ...]:
    """A sentence for each version in which the members of the block differ, as found before it trains."""
    with reading() as session:
        return tuple(access.block_of(session, key).get("differences", ()))


def comparisons(key: RunKey) -> dict[str, Any]:
    """The comparisons for the figures of a block that is judged now, as JSON for its row. Raises UnknownRun.

    The rate of failures is that of `muster spares`, for the SKU of its first member.
    """
    now = access.now()
    with reading() as session:
        run = access.first_of_run(session, key)
        recipe = session.scalar(
            select(MeasurementRow.text).join(StageRow, MeasurementRow.stage == StageRow.id)
            .join(RunRow, StageRow.run == RunRow.id)
            .where(*access.of_run(key), StageRow.current)
            .where(StageRow.stage == STAGE, MeasurementRow.metric == "training_recipe").limit(1)
        )  # fmt: skip
        devices = _figures_of(session, key).get(DEVICES, 0.0)
        alike = (session, run.sku, run.simulated, run.started_at, recipe or "", devices)
        earlier = _earlier(*alike, slow=False)
        if RESTART in (every := _earlier(*alike)):  # only for forecasts of jobs: no block is judged by it
            earlier[RESTART] = every[RESTART]
        same = select(NodeRow).where(NodeRow.sku == run.sku, NodeRow.simulated == run.simulated)
        nodes = [access.to_node(row) for row in session.scalars(same)]
    failed = failures.since(now - spares.PERIOD, former=True)
    rates = spares.rates_of(nodes, failures.served(now, former=True), failed, now)
    return _kept(run.sku, rate_of(rates, simulated=run.simulated), earlier)


def earlier(run: Run, recipe: str, devices: float) -> Earlier | None:
    """What earlier blocks of the run's SKU reached with this recipe, None without any. Saves: with ``devices`` only."""
    if not recipe:
        return None
    with reading() as session:
        known = _earlier(session, run.sku, run.simulated, run.started_at, recipe, devices, slow=False)
    if "tokens_per_s" not in known:
        return None
    return Earlier(*known["tokens_per_s"], *known.get("checkpoint_save p95", ()))


def rate_of(rates: spares.Rates, *, simulated: bool) -> Input:
    """The failure rate of `muster spares` as an input of a forecast; it is assumed if the SKU has had no failure."""
    low, high = rates.limits
    record = "a public record of 400 servers of 8 GPUs (InfiniteHBD-Trace)"
    source = f"assumed as in {record}: no node of this SKU has failed in service within a year"
    if rates.failures:
        of = "simulated failures" if simulated else "failures"
        source = f"{rates.failures} {of} of this fleet within a year, and {record} that counts for five"
    return Input(rates.rate, bool(rates.failures), source, low, high)


def _kept(sku: str, rate: Input, earlier: Mapping[str, tuple[float, int]]) -> dict[str, Any]:
    return {
        "rate": dataclasses.asdict(rate), "gpus_a_node": _gpus_a_node(sku),
        "earlier": {name: list(value) for name, value in earlier.items()},
    }  # fmt: skip


def _gpus_a_node(sku: str) -> int:
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import current_sku

    try:
        return current_sku(sku, settings().sku_folders).gpus or GPUS_A_NODE
    except SkuError:
        return GPUS_A_NODE


def _read(kept: Mapping[str, Any]) -> Comparisons:
    earlier = {name: (float(value), int(blocks)) for name, (value, blocks) in kept["earlier"].items()}
    restart = earlier.pop(RESTART, None)
    known = Input(restart[0], True, f"the median of {restart[1]} earlier blocks") if restart else None
    return Comparisons(Input(**kept["rate"]), kept["gpus_a_node"], earlier, known)


def _members(session: Session, key: RunKey) -> list[Member]:
    """The members whose training stage is judged, with what they measured, sorted by name."""
    stages = session.execute(
        select(StageRow.id, StageRow.simulated, RunRow.node, RunRow.sku)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(*access.of_run(key), StageRow.stage == STAGE, StageRow.current)
        .order_by(RunRow.node)
    ).all()  # fmt: skip
    ids = [stage for stage, *_ in stages]
    wanted = (MeasurementRow.probe == TRAINING) | MeasurementRow.metric.in_(SHOWN)
    measured: dict[int, list[Observation]] = collections.defaultdict(list)
    for row in session.scalars(
        select(MeasurementRow).where(MeasurementRow.stage.in_(ids), MeasurementRow.judged.is_not(None), wanted)
        .order_by(MeasurementRow.judged)
    ):  # fmt: skip
        measured[row.stage].append(access.to_observation(row))
    found = collections.defaultdict(list)
    for finding in session.scalars(select(FindingRow).where(FindingRow.stage.in_(ids)).order_by(FindingRow.id)):
        found[finding.stage].append(access.to_finding(finding))
    return [
        Member(node, sku, simulated, tuple(measured[stage]), tuple(found[stage]))
        for stage, simulated, node, sku in stages
    ]


def inputs(sku: str, rates: spares.Rates, until: datetime.datetime, *, simulated: bool) -> Inputs:
    """The inputs of a forecast for a job on nodes of this SKU: saves and restarts of its latest sound blocks."""
    with reading() as session:
        earlier = _earlier(session, sku, simulated, until)
    return inputs_of(Figures([]), _read(_kept(sku, rate_of(rates, simulated=simulated), earlier)))


def _earlier(
    session: Session, sku: str, simulated: bool, before: datetime.datetime, recipe: str = "", devices: float = 0.0,
    *, slow: bool = True,
) -> dict[str, tuple[float, int]]:  # fmt: skip
    """{figure: (its median over sound blocks of this SKU before then, the number of blocks)}.

    ``recipe``: only blocks with it. ``devices``: figures of checkpoints only from blocks with so many. ``slow`` false:
    without blocks in which a member was found slow (and that was not waived): otherwise a lasting slowdown would become
    the standard for later blocks.
    """
    latest, block = func.max(RunRow.started_at), tuple_(RunRow.dag_id, RunRow.run_id)
    alike = [MeasurementRow.text == recipe] if recipe else []
    slowed = (
        select(RunRow.dag_id, RunRow.run_id)
        .join(StageRow, StageRow.run == RunRow.id)
        .join(FindingRow, FindingRow.stage == StageRow.id)
        .where(RunRow.sku == sku, RunRow.simulated == simulated, StageRow.stage == STAGE, StageRow.current)
        .where(FindingRow.rule.in_(SLOWED), FindingRow.waived == "")
    )
    blocks = session.execute(
        select(RunRow.dag_id, RunRow.run_id)
        .join(StageRow, StageRow.run == RunRow.id)
        .join(MeasurementRow, MeasurementRow.stage == StageRow.id)
        .where(RunRow.sku == sku, RunRow.simulated == simulated, RunRow.started_at < before)
        .where(*[] if slow else [block.not_in(slowed)])
        .where(StageRow.stage == STAGE, StageRow.current, StageRow.verdict.in_(access.SOUND))
        .where(MeasurementRow.metric == "training_recipe", *alike)
        .group_by(RunRow.dag_id, RunRow.run_id).order_by(latest.desc()).limit(BLOCKS)
    ).all()  # fmt: skip
    values: dict[str, list[float]] = collections.defaultdict(list)
    for dag_id, run_id in blocks:
        figures = _figures_of(session, RunKey(dag_id, run_id))
        as_many = figures.pop(DEVICES, 0.0) == devices
        for name, value in figures.items():
            if as_many or not devices or not name.startswith(SAVED):
                values[name].append(value)
    return {name: (statistics.median(found), len(found)) for name, found in values.items()}


def _figures_of(session: Session, key: RunKey) -> dict[str, float]:
    rows = session.execute(
        select(MeasurementRow.metric, MeasurementRow.labels, MeasurementRow.value)
        .join(StageRow, MeasurementRow.stage == StageRow.id)
        .join(RunRow, StageRow.run == RunRow.id)
        .where(*access.of_run(key), StageRow.stage == STAGE, StageRow.current)
        .where(MeasurementRow.probe == TRAINING, MeasurementRow.metric.in_({metric for metric, _ in COMPARED.values()}))
        .where(MeasurementRow.device == "node", MeasurementRow.value.is_not(None))
    )
    found: dict[str, list[float]] = collections.defaultdict(list)
    for metric, labels, value in rows:
        of = dict(access.to_labels(labels)).items()
        for name, (compared, wanted) in COMPARED.items():
            if compared == metric and wanted.items() <= of:
                found[name].append(value)
    figures = {name: sum(values) if name == DEVICES else statistics.median(values) for name, values in found.items()}
    if "tokens_per_s" in figures:
        figures["tokens_per_s"] /= max(figures.get(DEVICES, 0.0), 1.0)
    return figures
