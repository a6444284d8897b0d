"""Muster's own judge over generated readings: the fleet sweep with the SKU file's limits, and the repeats it asks for.

The only part of the benchmark that knows both sides: it turns arrays into the readings that the fleet functions expect.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.fleet.budget import OWN_PAST
from muster_criteria.fleet.peers.history import History, build_history
from muster_criteria.fleet.peers.snapshot import build_snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.keyed import given_name
from muster_criteria.fleet.series.readings import as_readings, group_of, together
from muster_criteria.fleet.sweep import sweep
from muster_criteria.labels import labels_text
from muster_criteria.rows import PRESENCE, PRESENCE_PROBE
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.retests import repeatable
from tests.bench.accuracy.devices import DRIVERS, GPUS
from tests.bench.accuracy.fleet import TODAY, Trials, Visit
from tests.bench.accuracy.metrics import METRICS, PROBES, Metric
from tests.bench.accuracy.verdicts import Verdicts

SKU = "h100-sxm-8"
LEVEL = "short"
RETEST = "RETEST"
SNAPSHOTS = 3
"""A fleet makes one every hour; after two more, what is found has been found."""

Positions = npt.NDArray[np.int64]

_MINUTES = {probe.name: probe.seconds / 60.0 for probe in PROBES}
_KNOWN_AFTER = dict(zip(_MINUTES, np.cumsum(list(_MINUTES.values())).tolist(), strict=True))
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
        self._retested = {probe for stage in STAGE_OF.values() for probe in repeatable(self._sku, stage, LEVEL)}
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
            metrics = [metric for metric in METRICS if STAGE_OF[metric.probe] == stage]
            readings = frame_of(trials, trials.today, metrics)
            again = self._judge(found, readings, history)
            if len(again):
                nodes = np.unique(again["number"].to_numpy(dtype=np.int64))
                found.retested[nodes] = True
                first = readings[readings["node"].isin([_name(node) for node in nodes])].reset_index(drop=True)
                second = [
                    frame_of(
                        trials, trials.again, [metric for metric in metrics if metric.probe == probe], of.to_numpy()
                    )
                    for probe, of in again.groupby("probe")["number"]
                ]
                self._judge(found, together([first, *second]), history)
        found.warned[found.failed] = False
        return found

    def _judge(self, found: Verdicts, readings: pd.DataFrame, history: History | None) -> pd.DataFrame:
        """Note a sweep's verdicts on these nodes, and return what is to be measured again (``number``, ``probe``)."""
        judged = sweep(readings, self._snapshot, history, self._comparisons, skus={SKU: self._sku})
        nodes = judged.verdicts.index.str[1:].to_numpy(dtype=np.int64)
        verdict = judged.verdicts["verdict"].to_numpy()
        found.failed[nodes[verdict == "FAIL"]] = True
        found.warned[nodes[np.isin(verdict, ("WARN", "RETEST"))]] = True
        findings = judged.findings.assign(
            number=judged.findings["node"].str[1:].to_numpy(dtype=np.int64),
            probe=judged.findings["metric"].str.removesuffix("_level").map(self._probe_of),
        )
        self._mark_failed(found, findings[(findings["breach"] == "fail") & (findings["cause"] == "")])
        outliers = findings["breach"].isin(("retest", "invalid")) & findings["probe"].isin(self._retested)
        outliers &= findings["number"].isin(nodes[verdict == "RETEST"])
        again = findings.loc[outliers, ["number", "probe"]].drop_duplicates()
        unlike = findings["rule"].isin(OWN_PAST) & findings["breach"].isin(("retest", "warn"))
        unlike &= ~findings["number"].isin(again["number"])
        found.suspected[findings.loc[unlike | (findings["breach"] == "fail"), "number"].to_numpy()] = True
        return again

    def _mark_failed(self, found: Verdicts, findings: pd.DataFrame) -> None:
        """Which GPUs are named, and after how many minutes: a second reading follows the stage it is of."""
        node = findings["number"].to_numpy()
        slot = findings["device"].str.extract(r"^gpu(\d)$")[0].to_numpy(dtype=np.float64)
        about_gpu = np.isfinite(slot)
        found.named[node[about_gpu], slot[about_gpu].astype(np.int64)] = True
        probe = findings["probe"]
        again = (probe.map(_STAGE_OVER_AFTER) + probe.map(_MINUTES)).to_numpy(dtype=np.float64)
        minutes = np.where(findings["repeats"] > 1, again, probe.map(_KNOWN_AFTER).to_numpy(dtype=np.float64))
        np.fmin.at(found.minutes, node, minutes)


def frame_of(trials: Trials, visit: Visit, metrics: Sequence[Metric], nodes: Positions | None = None) -> pd.DataFrame:
    """The long frame of one visit of these nodes, or of all; a GPU that does not answer has its presence only."""
    chosen = np.arange(len(trials)) if nodes is None else nodes
    measured = [visit.readings[metric.key][chosen] for metric in metrics]
    values = np.stack([np.isfinite(measured[0]).astype(np.float64), *measured])
    series = [(PRESENCE, "", "bool"), *((each.name, labels_text(each.labels), each.unit) for each in metrics)]
    number, node, gpu = np.nonzero(np.isfinite(values))
    metric, labels, unit = ([each[part] for each in series] for part in range(3))
    stages = [STAGE_OF[PRESENCE_PROBE], *(STAGE_OF[each.probe] for each in metrics)]
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
