"""Computes which verdicts of the fleet a proposed SKU revision or peer snapshot would change. Records nothing.

Both sides, what is used now and what is proposed, are judged by the fleet sweep from the stored results. Limits that
need more than numbers of one stage (texts, spreads, limits relative to another measurement) and coverage are the stage
judge's: ``reevaluate`` judges one run by them too.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from muster import store
from muster.errors import MusterError, UnknownRevision, UnknownSnapshot
from muster.judging.references import metrics
from muster.model.stages import STAGES
from muster.settings import settings
from muster_criteria.measured import BadResult, StageResult, parse_result
from muster_criteria.model import Verdict
from muster_criteria.sku_files.model import Sku, SkuError
from muster_criteria.sku_files.skus import load_sku

if TYPE_CHECKING:
    import pandas as pd

    from muster_criteria.fleet.peers.snapshot import Snapshot

NOT_MEASURED = "NONE"
"""The sweep's verdict on a node without comparable measurements."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A node's verdict on one stage ``now`` and as ``proposed``: FAIL, RETEST, WARN, PASS or NONE.

    ``recorded``: the verdict in the records. ``reason``: the gravest finding of the graver side.
    """

    node: str
    sku: str
    stage: str
    level: str
    simulated: bool
    recorded: Verdict
    now: str
    proposed: str
    reason: str

    @property
    def changes(self) -> bool:
        """Whether the proposal changes the verdict."""
        return self.now != self.proposed


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Outcomes of all nodes that could be judged, and the names of nodes without a stored result."""

    outcomes: tuple[Outcome, ...]
    without_result: tuple[str, ...]

    @property
    def changes(self) -> tuple[Outcome, ...]:
        """The outcomes that the proposal changes."""
        return tuple(each for each in self.outcomes if each.changes)


def propose(*, skus: str = "", as_of: str = "", stage: str = "", node: str = "") -> Comparison:
    """Compares the verdicts of the whole fleet now and under a proposal.

    ``skus``: a folder of SKU files, or a stored revision; default: the SKU files in use. ``as_of``: the version of a
    peer snapshot; default: the newest of each hardware model. ``stage``, ``node``: only these. Raises MusterError if
    nothing is proposed or the proposal concerns no node, UnknownRevision and UnknownSnapshot if it does not exist.
    """
    if not skus and not as_of:
        raise MusterError("nothing is proposed: give --skus FOLDER-OR-REVISION, --as-of SNAPSHOT, or both")
    outcomes: list[Outcome] = []
    missing: list[str] = []
    refused: MusterError | None = None
    concerned = False
    for sku_name, of_stage, level, simulated in store.latest.conclusive():
        if of_stage not in STAGES or of_stage != (stage or of_stage):
            continue
        try:
            now, proposed = _sides(sku_name, level, simulated, skus, as_of)
        except (UnknownRevision, UnknownSnapshot) as error:
            refused = refused or error
            continue
        if now == proposed:
            continue
        concerned = True
        stages = [
            each
            for each in store.latest.stages(sku_name, of_stage, level, simulated=simulated)
            if each.node == (node or each.node)
        ]
        missing += [each.node for each in stages if not each.attempts]
        outcomes += _outcomes([each for each in stages if each.attempts], now, proposed)
    if not concerned:
        raise refused or MusterError("the proposal changes no SKU and no snapshot by which any node is judged")
    return Comparison(tuple(outcomes), tuple(sorted(set(missing))))


@dataclasses.dataclass(frozen=True)
class _Side:
    """A SKU and a snapshot's version to judge by; "" for no peers."""

    sku: Sku
    snapshot: str


def _sides(name: str, level: str, simulated: bool, skus: str, as_of: str) -> tuple[_Side, _Side]:
    newest = store.peers.latest(name, level, simulated=simulated)
    version = newest.version if newest else ""
    try:
        now = load_sku(name, settings().sku_folders)
    except SkuError as error:
        raise UnknownRevision(str(error)) from None
    if as_of:
        store.peers.load(as_of, name, level, simulated=simulated)
    return _Side(now, version), _Side(_proposed_sku(name, skus) if skus else now, as_of or version)


def _proposed_sku(name: str, skus: str) -> Sku:
    folder = Path(skus).expanduser()
    if not folder.is_dir():
        if "/" in skus:
            raise UnknownRevision(f"there is no folder {skus}; give one of SKU files, or a stored revision")
        return store.revisions.load(name, skus)
    try:
        return load_sku(name, (folder, *settings().sku_folders))
    except SkuError as error:
        raise UnknownRevision(str(error)) from None


def _outcomes(stages: Sequence[store.latest.LatestStage], now: _Side, proposed: _Side) -> Iterator[Outcome]:
    if not stages:
        return
    judged = [_judged(stages, side) for side in (now, proposed)]
    for each in stages:
        now_is, then = (str(table["verdict"].get(each.node, NOT_MEASURED)) for table in judged)
        graver = judged[_GRAVITY.index(then) >= _GRAVITY.index(now_is)]
        yield Outcome(
            each.node, each.sku, each.stage, each.level, each.simulated, each.verdict, now_is, then,
            str(graver["reason"].get(each.node, "")),
        )  # fmt: skip


_GRAVITY = (NOT_MEASURED, "PASS", "WARN", "RETEST", "FAIL")


def _judged(stages: Sequence[store.latest.LatestStage], side: _Side) -> pd.DataFrame:
    """The sweep's verdicts on these results of one stage (see ``sweep.VERDICTS``), by node."""
    from muster_criteria.fleet.peers.history import build_history
    from muster_criteria.fleet.series.readings import together
    from muster_criteria.fleet.series.timeline import VISITS_MAX
    from muster_criteria.fleet.sweep import sweep

    first = stages[0]
    snapshot = _snapshot(first, side)
    compare = side.sku.programme.compare
    earlier = store.measured.fleet_readings(
        first.sku, first.level, metrics(side.sku), simulated=first.simulated, visits=VISITS_MAX + 1
    )
    current = {f"{each.dag_id}/{each.run_id}/{each.stage}" for each in stages}
    earlier = earlier[~earlier["run"].isin(current)].reset_index(drop=True)
    history = build_history(earlier, snapshot, compare) if len(earlier) else None
    today = together(frame for each in stages for frame in _readings(each, side.sku))
    return sweep(today, snapshot, history, compare, skus={side.sku.name: side.sku}, stage=first.stage).verdicts


def _snapshot(of: store.latest.LatestStage, side: _Side) -> Snapshot:
    """The side's snapshot; an empty one where there are no peers yet."""
    from muster_criteria.fleet.peers.snapshot import build_snapshot
    from muster_criteria.fleet.series.readings import together

    if side.snapshot:
        return store.peers.load(side.snapshot, of.sku, of.level, simulated=of.simulated)
    return build_snapshot(together([]), datetime.datetime.now(datetime.UTC), side.sku.programme.compare)


def _readings(of: store.latest.LatestStage, sku: Sku) -> Iterator[pd.DataFrame]:
    """Readings of a stage's result and of its repeats, as the stage's judge takes them."""
    from muster_criteria.fleet.series.readings import readings_of
    from muster_criteria.fleet.single import derived
    from muster_criteria.rows import rows_of
    from muster_criteria.stage import retests

    attempts = list(_parsed(of))
    if not attempts:
        return
    result, others = attempts[-1][1], tuple[StageResult, ...]()
    if retests.repeatable(sku, of.stage, of.level):
        result, others = retests.arranged(attempts[:-1], result, sku, of.stage, of.level)
    rows = [row for row in rows_of(result, sku) if not row.refused]
    for run, measured, made in [
        (f"{of.dag_id}/{of.run_id}/{of.stage}", result, [*rows, *derived(rows, sku.programme.derive)]),
        *((each.job_id, each, retests.repeated_rows(each, sku)) for each in others),
    ]:
        yield readings_of(
            made, node=of.node, at=measured.started_at, run=run, sku=sku.name, environment=measured.environment,
            zone=of.zone,
        )  # fmt: skip


def _parsed(of: store.latest.LatestStage) -> Iterable[tuple[Verdict, StageResult]]:
    """Attempts that can be read, each job once."""
    jobs: dict[str, tuple[Verdict, StageResult]] = {}
    for attempt in of.attempts:
        try:
            result = parse_result(attempt.result)
        except BadResult:
            continue
        jobs[result.job_id] = (attempt.verdict, result)
    return jobs.values()
