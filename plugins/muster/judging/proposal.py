"""Computes which verdicts of the fleet a proposed SKU revision or peer snapshot would change. Records nothing.

The stored results are judged twice by the judge of production, with what is used now and with what is proposed, as
``reevaluate`` judges one run; its prefilter leaves out nodes about which neither side finds anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence

import pandas as pd

from muster import store
from muster.errors import MusterError, UnknownRevision, UnknownSnapshot, of_sku_files
from muster.judging.case import NO_PEERS
from muster.judging.reevaluate import judged_again, proposed_sku
from muster.judging.references import metrics
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.settings import settings
from muster_criteria.chassis import Chassis, joined
from muster_criteria.fleet.peers.history import build_history
from muster_criteria.fleet.series.readings import readings_of, together
from muster_criteria.fleet.series.timeline import VISITS_MAX
from muster_criteria.fleet.single import derived
from muster_criteria.measured import BadResult, StageResult, parse_result
from muster_criteria.model import Judgement, Verdict
from muster_criteria.rows import rows_of
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.sku_files.work import sku_work
from muster_criteria.stage.case import Case
from muster_criteria.stage.prefilter import conspicuous, shape, small_margins


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A node's verdict on one stage: as ``recorded``, by what is used ``now``, and as ``proposed``.

    ``reason``: of the graver of the last two.
    """

    node: str
    sku: str
    stage: str
    level: str
    simulated: bool
    recorded: Verdict
    now: Verdict
    proposed: Verdict
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
    nothing is proposed, there is no such stage, a SKU file is wrong or the proposal concerns no node, UnknownNode, and
    UnknownRevision and UnknownSnapshot if it does not exist.
    """
    if not skus and not as_of:
        raise MusterError("nothing is proposed: give --skus FOLDER-OR-REVISION, --as-of SNAPSHOT, or both")
    if stage and stage not in STAGES:
        raise MusterError(f"there is no stage {stage!r} that is judged by itself: it is one of {', '.join(STAGES)}")
    if node:
        store.nodes.get(node)
    outcomes: list[Outcome] = []
    missing: list[str] = []
    refused: MusterError | None = None
    concerned = False
    for sku_name, of_stage, level, simulated in store.latest.conclusive(node):
        if of_stage not in STAGES or of_stage != (stage or of_stage):
            continue
        try:
            now, proposed = _sides(sku_name, level, simulated, skus, as_of)
        except (UnknownRevision, UnknownSnapshot) as error:  # it may exist for another SKU
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
    with of_sku_files():
        now = load_sku(name, settings().sku_folders)
    if as_of:
        store.peers.load(as_of, name, level, simulated=simulated)
    return _Side(now, version), _Side(proposed_sku(name, skus) if skus else now, as_of or version)


def _outcomes(stages: Sequence[store.latest.LatestStage], now: _Side, proposed: _Side) -> Iterator[Outcome]:
    """The prefilter selects the nodes to judge each by itself; the others share a verdict if they measured the same."""
    cases = {each.node: case for each in stages if (case := _case(each, now.sku)) is not None}
    if not cases:
        return
    sides = (now, proposed)
    named = set[str]().union(*(_small_margins(stages, cases, side) for side in sides))
    alike: dict[Hashable, tuple[Judgement, Judgement]] = {}
    for each in stages:
        case = cases.get(each.node)
        if case is None:
            continue
        own = each.node in named or each.verdict in (Verdict.WARN, Verdict.FAIL)
        own = own or any(conspicuous(dataclasses.replace(case, sku=side.sku)) for side in sides)
        kind = None if own else tuple(shape(dataclasses.replace(case, sku=side.sku), each.zone) for side in sides)
        pair = alike.get(kind) or _judged(each, now, proposed)
        if pair is None:
            continue
        if kind is not None and not (pair[0].findings or pair[1].findings):
            alike[kind] = pair
        yield _outcome(each, *pair)


def _outcome(of: store.latest.LatestStage, now: Judgement, proposed: Judgement) -> Outcome:
    graver = max(now, proposed, key=lambda each: (_GRAVITY.index(each.verdict), each is proposed))
    return Outcome(
        of.node, of.sku, of.stage, of.level, of.simulated, of.verdict, now.verdict, proposed.verdict, graver.reason
    )


_GRAVITY = (Verdict.SKIPPED, Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL, Verdict.INCONCLUSIVE, Verdict.FAIL)


def _judged(of: store.latest.LatestStage, *sides: _Side) -> tuple[Judgement, Judgement] | None:
    """The stage's judgement on either side, by the judge of production; None where it cannot be judged again."""
    run = store.runs.get(RunKey(of.dag_id, of.run_id), node=of.node)
    recorded = store.reporting.judgements(run.key, node=of.node)[of.stage]

    def again(side: _Side) -> Judgement | None:
        return judged_again(run, recorded, side.snapshot or NO_PEERS, lambda _: side.sku).outcome

    now, proposed = map(again, sides)
    return None if now is None or proposed is None else (now, proposed)


def _case(of: store.latest.LatestStage, sku: Sku) -> Case | None:
    """What the prefilter looks at: the last attempt's result with the BMC's readings; repeats are in ``others``."""
    results = [result for attempt in of.attempts if (result := _parsed(attempt.result)) is not None]
    if not results:
        return None
    result = joined(results[-1], Chassis.from_json(of.chassis) if of.chassis else None)
    others = tuple(each for each in results[:-1] if each.job_id != result.job_id)
    return Case(sku, of.stage, of.level, result, others=others)


def _parsed(raw: bytes) -> StageResult | None:
    try:
        return parse_result(raw)
    except BadResult:
        return None


def _small_margins(stages: Sequence[store.latest.LatestStage], cases: Mapping[str, Case], side: _Side) -> set[str]:
    """The nodes with a small margin in some number on this side."""
    first, compare = stages[0], side.sku.programme.compare
    snapshot = history = None
    if side.snapshot:
        snapshot = store.peers.load(side.snapshot, first.sku, first.level, simulated=first.simulated)
        earlier = store.measured.fleet_readings(
            first.sku, first.level, metrics(side.sku), sku_work(side.sku, first.level),
            simulated=first.simulated, visits=VISITS_MAX + 1,
        )  # fmt: skip
        current = {f"{each.dag_id}/{each.run_id}/{each.stage}" for each in stages}
        earlier = earlier[~earlier["run"].isin(current)].reset_index(drop=True)
        history = build_history(earlier, snapshot, compare) if len(earlier) else None
    today = together(_readings(each, cases[each.node], side.sku) for each in stages if each.node in cases)
    return small_margins(today, side.sku, first.stage, first.level, snapshot, history)


def _readings(of: store.latest.LatestStage, case: Case, sku: Sku) -> pd.DataFrame:
    if case.result is None:
        raise ValueError("a case of a stored result has one")
    rows = [row for row in rows_of(case.result, sku) if not row.refused]
    return readings_of(
        [*rows, *derived(rows, sku.programme.derive)], node=of.node, at=case.result.started_at,
        run=f"{of.dag_id}/{of.run_id}/{of.stage}", sku=sku.name, environment=case.result.environment, zone=of.zone,
    )  # fmt: skip
