"""Muster's own judge over generated readings: the judge of production after its prefilter, and the repeats it asks for.

The only part of the benchmark that knows both sides: it turns arrays into the readings that the fleet functions expect.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.fleet.budget import OWN_PAST
from muster_criteria.fleet.peers.history import History, build_history
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.peers.snapshot import build_snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.keyed import given_name
from muster_criteria.fleet.series.readings import as_readings, group_of, readings_of, together
from muster_criteria.labels import labels_text
from muster_criteria.model import COMMON_CAUSE, SHARED_CAUSE, Judgement, Severity, Variant, Verdict
from muster_criteria.rows import PRESENCE, PRESENCE_PROBE
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge_all
from muster_criteria.stage.prefilter import small_margins
from muster_criteria.stage.retests import repeated_rows
from tests.bench.accuracy.devices import DRIVERS, GPUS
from tests.bench.accuracy.fleet import TODAY, Trials, Visit
from tests.bench.accuracy.metrics import METRICS, PROBES, Metric
from tests.bench.accuracy.verdicts import Verdicts
from tests.bench.sent import results_of

SKU = "h100-sxm-8"
LEVEL = "short"
BATCH = 500
"""Cases judged at a time."""
RETEST_AFTER_S = 3600.0
SNAPSHOTS = 3
"""A fleet makes one every hour; after two more, what is found has been found."""

Positions = npt.NDArray[np.int64]

_MINUTES = {probe.name: probe.seconds / 60.0 for probe in PROBES}
_KNOWN_AFTER = dict(zip(_MINUTES, np.cumsum(list(_MINUTES.values())).tolist(), strict=True))
PROBE_OF = {metric.name: metric.probe for metric in METRICS}
STAGE_OF = {probe.name: probe.stage for probe in PROBES}
_STAGE_OVER_AFTER = {
    probe.name: max(_KNOWN_AFTER[other.name] for other in PROBES if other.stage == probe.stage) for probe in PROBES
}


class MusterJudge:
    """The judge as the product has it, against a frozen snapshot of one fleet.

    As in the product, nodes under suspicion are left out of the snapshot: here those of the fleet that the judge itself
    failed by the snapshot before, or found unlike their own past. Faults that it did not find stay in.
    """

    def __init__(self, fleet: Trials) -> None:
        self._sku = load_sku(SKU)
        self._comparisons = self._sku.programme.compare
        self._compared = [metric for metric in METRICS if metric.name in {each.metric for each in self._comparisons}]
        self._probe_of = _probe_of(self._comparisons)
        readings = together(frame_of(fleet, visit, self._compared) for visit in fleet.visits)
        made_at = datetime.datetime.fromtimestamp((TODAY + 2.0) * 86400.0, datetime.UTC)
        self._snapshot = build_snapshot(readings, made_at, self._comparisons)
        for _ in range(SNAPSHOTS - 1):
            suspected = [_name(node) for node in np.flatnonzero(self(fleet).suspected)]
            self._snapshot = build_snapshot(readings, made_at, self._comparisons, exclude=suspected)

    def __call__(self, trials: Trials) -> Verdicts:
        """Judges today's visit of every node stage by stage, as Airflow does; outliers are measured once more."""
        found = Verdicts.none(len(trials))
        earlier = [frame_of(trials, visit, self._compared) for visit in trials.visits[:-1]]
        history = build_history(together(earlier), self._snapshot, self._comparisons) if earlier else None
        for stage in dict.fromkeys(probe.stage for probe in PROBES):
            self._judge(found, trials, stage, history)
        found.warned[found.failed] = False
        return found

    def _judge(self, found: Verdicts, trials: Trials, stage: str, history: History | None) -> None:
        """Note what the judge finds on those nodes that have any small margin; no other has anything to be found."""
        metrics = [metric for metric in METRICS if STAGE_OF[metric.probe] == stage]
        readings = frame_of(trials, trials.today, metrics)
        named = sorted(small_margins(readings, self._sku, stage, LEVEL, self._snapshot, history))
        if not named:
            return
        nodes = np.array([_number(name) for name in named], dtype=np.int64)
        cases = self._cases(trials, stage, frame_of(trials, trials.today, metrics, nodes), history)
        again: dict[tuple[str, ...], list[Case]] = {}
        for case, judgement in self._judged(cases):
            node = _number(_node_of(case))
            self._note(found, node, judgement, ())
            if judgement.repeat:
                found.retested[node] = True
                again.setdefault(judgement.repeat, []).append(case)
        for probes, first in again.items():
            for case, judgement in self._judged(self._repeated(trials, stage, probes, first)):
                self._note(found, _number(_node_of(case)), judgement, probes)

    def _judged(self, cases: Iterable[Case]) -> Iterator[tuple[Case, Judgement]]:
        waiting = list(cases)
        for first in range(0, len(waiting), BATCH):
            some = waiting[first : first + BATCH]
            yield from zip(some, judge_all(some), strict=True)

    def _cases(self, trials: Trials, stage: str, readings: pd.DataFrame, history: History | None) -> Iterator[Case]:
        def environment(name: str) -> dict[str, str | None]:
            return {"driver": DRIVERS[trials.places.driver[_number(name)]]}

        for result in results_of(readings, stage, LEVEL, PROBE_OF, environment):
            zone = f"{trials.places.zone[_number(result.node)]}"
            yield Case(self._sku, stage, LEVEL, result, references=References(self._snapshot, history, zone=zone))

    def _repeated(self, trials: Trials, stage: str, probes: Sequence[str], first: Sequence[Case]) -> Iterator[Case]:
        """The cases with a second reading of these probes, as the product arranges them."""
        metrics = [metric for metric in METRICS if metric.probe in probes]
        nodes = np.array(sorted(_number(_node_of(case)) for case in first), dtype=np.int64)
        readings = frame_of(trials, trials.again, metrics, nodes)
        seconds = {
            result.node: result for result in results_of(readings, stage, LEVEL, PROBE_OF, started_at=RETEST_AFTER_S)
        }
        for case in first:
            second = seconds.get(_node_of(case))
            if second is None or case.result is None or case.references is None:
                continue
            repeats = readings_of(
                repeated_rows(second, self._sku), node=second.node, at=second.started_at, run=second.job_id, sku=SKU,
                environment=case.result.environment, zone=case.references.zone,
            )  # fmt: skip
            by = dataclasses.replace(case.references, repeats=repeats)
            yield dataclasses.replace(case, references=by, others=(second,), repeats=repeats)

    def _note(self, found: Verdicts, node: int, judgement: Judgement, again: Sequence[str]) -> None:
        """Note a verdict, the GPUs that it names, and after how many minutes: a second reading follows its stage."""
        found.failed[node] |= judgement.verdict is Verdict.FAIL
        for each in judgement.findings:
            probe = self._probe_of[each.metric.removesuffix("_level")]
            if each.severity is not Severity.CRITICAL:
                found.warned[node] = True
                own_past = each.rule in OWN_PAST and each.variant is not Variant.CLEARED
                found.suspected[node] |= own_past and probe not in judgement.repeat
                continue
            found.suspected[node] = True
            if each.confidence <= SHARED_CAUSE or each.rule == COMMON_CAUSE:
                continue
            if each.device.startswith("gpu"):
                found.named[node, int(each.device.removeprefix("gpu"))] = True
            minutes = _STAGE_OVER_AFTER[probe] + _MINUTES[probe] if probe in again else _KNOWN_AFTER[probe]
            found.minutes[node] = np.fmin(found.minutes[node], minutes)


def frame_of(trials: Trials, visit: Visit, metrics: Sequence[Metric], nodes: Positions | None = None) -> pd.DataFrame:
    """The long frame of one visit of these nodes, or of all; a GPU that does not answer has its presence only."""
    chosen = np.arange(len(trials)) if nodes is None else nodes
    measured = [visit.readings[metric.key][chosen] for metric in metrics]
    values = np.stack(measured)
    series = [(each.name, labels_text(each.labels), each.unit) for each in metrics]
    stages = [STAGE_OF[each.probe] for each in metrics]
    if STAGE_OF[PRESENCE_PROBE] in stages:
        values = np.concatenate([np.isfinite(values[:1]).astype(np.float64), values])
        series, stages = [(PRESENCE, "", "bool"), *series], [STAGE_OF[PRESENCE_PROBE], *stages]
    number, node, gpu = np.nonzero(np.isfinite(values))
    metric, labels, unit = ([each[part] for each in series] for part in range(3))
    node, zone = chosen[node], trials.places.zone
    groups = [group_of(SKU, {"driver": name}, zone=f"{each}") for each in range(zone.max() + 1) for name in DRIVERS]
    columns = {
        "node": pd.Categorical.from_codes(node, [_name(each) for each in range(len(trials))]),
        "device": pd.Categorical.from_codes(gpu, [f"gpu{slot}" for slot in range(GPUS)]),
        "group": _named(len(DRIVERS) * zone[node] + trials.places.driver[node], groups),
        "sku": _named(np.zeros_like(node), [SKU]),
        "metric": _named(number, metric),
        "labels": _named(number, labels),
        "unit": _named(number, unit),
        "value": values[np.isfinite(values)],
        "at": visit.day[node],
        # The hour of the earliest tells a retest from what it repeats.
        "run": _named(number, [f"{visit.day.min():.4f}/{stage}" for stage in stages]),
    }
    return as_readings(pd.DataFrame(columns))


def _named(codes: Positions, names: Sequence[str]) -> pd.Categorical:
    """A category of the names that these positions stand for; names may repeat."""
    number, distinct = pd.factorize(np.array(names, dtype=object))
    return pd.Categorical.from_codes(number[codes], list(distinct))


def _name(node: int) -> str:
    return f"n{node:06d}"


def _number(name: str) -> int:
    return int(name.removeprefix("n"))


def _node_of(case: Case) -> str:
    """The node that a case is of."""
    return case.result.node if case.result else ""


def _probe_of(comparisons: Iterable[Comparison]) -> Mapping[str, str]:
    """Which probe tells of each metric; what is made of several is known when the last of them is."""
    known_by = {PRESENCE: PRESENCE_PROBE} | {metric.name: metric.probe for metric in METRICS}
    for each in comparisons:
        if each.family and each.metric in known_by:
            made = {f"{each.family}_index": each.metric}
            if each.given:
                made[given_name(each)] = each.given
            for name, of in made.items():
                known_by[name] = max(known_by.get(name, known_by[of]), known_by[of], key=_KNOWN_AFTER.__getitem__)
    return known_by
