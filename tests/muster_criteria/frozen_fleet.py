"""A made-up fleet with frozen references, and what the judge finds on its nodes: for tests of the fleet's rules."""

from __future__ import annotations

import copy
import dataclasses
import datetime
from collections.abc import Sequence

import pandas as pd

from muster_criteria.fleet.peers.history import History, build_history
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.peers.snapshot import Snapshot, build_snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.readings import DAY_S, group_of
from muster_criteria.model import COMMON_CAUSE, SHARED_CAUSE, Finding, Judgement, Severity, Variant, Verdict
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge_all
from tests.bench.sent import results_of
from tests.muster_criteria.fleet_readings import DAY, Fleet
from tests.muster_criteria.nodes import shipped
from tests.muster_criteria.violations import violations

SKU, STAGE, LEVEL, PROBE = "h100-sxm-8", "performance", "short", "gemm_rate"
FLEET = Fleet(nodes=120, metrics=6, seed=7)
EARLIER = tuple(DAY - 10 * visit for visit in range(5, 0, -1))
NODE = "node-00007"


def at(day: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(day * DAY_S, datetime.UTC)


def of_sku(readings: pd.DataFrame) -> pd.DataFrame:
    """The readings as of the shipped SKU, whose programme and limits are put aside."""
    zones = [each.rpartition("=")[2] for each in readings["group"].cat.categories]
    return readings.assign(
        sku=readings["sku"].cat.rename_categories([SKU]),
        group=readings["group"].cat.rename_categories([group_of(SKU, {}, zone) for zone in zones]),
    )


def judged(
    today: pd.DataFrame, snapshot: Snapshot, history: History | None, comparisons: Sequence[Comparison]
) -> dict[str, Judgement]:
    """The judgement of each node in these readings; its first run is judged, and the others are repeats."""
    sku = shipped(SKU)
    programme = sku.programme.model_copy(update={"compare": tuple(comparisons), "derive": ()})
    sku = sku.model_copy(update={"inventory": (), "limits": (), "figures": (), "programme": programme})
    probes = {each.metric: PROBE for each in comparisons}
    cases = []
    for node in [name for name in today["node"].cat.categories if (today["node"] == name).any()]:
        of_node = today[today["node"] == node]
        runs = of_node["run"].astype(str)
        first = of_node[runs == runs.iloc[0]]
        repeats = of_node[runs != runs.iloc[0]].reset_index(drop=True)
        zone = str(of_node["group"].iloc[0]).rpartition("=")[2]
        (result,) = results_of(first, STAGE, LEVEL, probes)
        repeated = repeats if len(repeats) else None
        by = References(snapshot, history, repeats=repeated, zone=zone)
        cases.append(Case(sku, STAGE, LEVEL, result, references=by, repeats=repeated))
    found = judge_all(cases, evaluate=violations)
    return {case.result.node: each for case, each in zip(cases, found, strict=True) if case.result}


def word(judgement: Judgement) -> str:
    """FAIL, RETEST, WARN or PASS; NONE where nothing had anything to be compared with."""
    if judgement.verdict is Verdict.FAIL:
        return "FAIL"
    if judgement.repeat:
        return "RETEST"
    if any(each.floor is not None or each.ceiling is not None for each in judgement.observations):
        return "WARN" if judgement.findings else "PASS"
    return "NONE"


def breach(finding: Finding) -> str:
    """ "fail"; "retest": an outlier that a second reading may explain; "cleared": by one; else "warn"."""
    if finding.severity is Severity.CRITICAL:
        return "fail"
    return {Variant.RETEST: "retest", Variant.CLEARED: "cleared"}.get(finding.variant, "warn")


@dataclasses.dataclass(frozen=True)
class Found:
    """Judgements by node."""

    judgements: dict[str, Judgement]

    @property
    def words(self) -> dict[str, str]:
        """The verdict of each node in one word."""
        return {node: word(each) for node, each in self.judgements.items()}

    def shared(self, node: str = NODE) -> set[str]:
        """Metrics in which most of the node's devices, or the node as a whole, fail alike."""
        return {
            each.metric.removesuffix("_level")
            for each in self.judgements[node].findings
            if each.rule == COMMON_CAUSE or each.confidence == SHARED_CAUSE
        }


class Frozen:
    """A fleet's references, and what it measures today."""

    def __init__(self) -> None:
        readings = of_sku(FLEET.visits(*EARLIER, DAY))
        self.earlier = readings[readings["at"] < DAY].reset_index(drop=True)
        self.today = readings[readings["at"] == DAY].reset_index(drop=True)
        self.snapshot = build_snapshot(self.earlier, at(DAY - 1), FLEET.comparisons)
        self.history = build_history(self.earlier, self.snapshot, FLEET.comparisons)

    def straying(self, times: float) -> Frozen:
        """The same, of a fleet whose single readings stray so much further."""
        other, tails = copy.copy(self), self.snapshot.tails.copy()
        tails.loc[tails["repeats"] == 1, [name for name in tails if str(name).startswith("q")]] *= times
        other.snapshot = dataclasses.replace(self.snapshot, tails=tails)
        return other

    def judge(self, today: pd.DataFrame, history: History | None = None) -> Found:
        return Found(judged(today, self.snapshot, history, FLEET.comparisons))

    def of_node(self, node: str = NODE) -> pd.DataFrame:
        return self.today[self.today["node"] == node].reset_index(drop=True)

    def usual(self, metric: str, slot: int) -> float:
        cells = self.snapshot.cells
        found = cells[(cells["metric"] == metric) & (cells["slot"] == slot) & cells["group"].str.contains("zone=")]
        return float(found["median"].iloc[0])


def rules_and_levels(found: Found, **where: str) -> set[tuple[str, str]]:
    """(rule, breach) of the findings of the fleet's rules about these."""
    return {
        (each.rule, breach(each))
        for node, judgement in found.judgements.items()
        for each in judgement.findings
        if each.rule != COMMON_CAUSE
        and all(
            wanted == {"node": node, "device": each.device, "metric": each.metric}[name]
            for name, wanted in where.items()
        )
    }


def level(frozen: Frozen, node: str = NODE) -> pd.DataFrame:
    """Today's readings of a node, each exactly as usual for its slot."""
    rows = frozen.of_node(node)
    usual = [frozen.usual(metric, slot) for metric, slot in zip(rows["metric"], rows["slot"], strict=True)]
    return rows.assign(value=usual)
