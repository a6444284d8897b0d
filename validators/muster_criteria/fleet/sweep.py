"""The sweep: today's readings of a whole fleet against frozen references, in one vectorised pass."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from muster_criteria.fleet.absolute import absolute
from muster_criteria.fleet.budget import NODE_RULES, STANDARD, repeat_informs
from muster_criteria.fleet.causes import cause_of_each, common_causes
from muster_criteria.fleet.peers.distances import Distances
from muster_criteria.fleet.peers.history import History
from muster_criteria.fleet.peers.snapshot import Snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.keyed import INDEX_UNIT
from muster_criteria.fleet.verdicts import RuleResult, judge_readings
from muster_criteria.sku_files.model import Sku

FINDINGS = (
    "node", "device", "kind", "metric", "labels", "unit", "rule", "breach", "value", "expected", "share", "threshold",
    "repeats", "run", "fault", "action", "cause",
)  # fmt: skip
"""``rule``: peers, siblings, drift, cusum, node_peers, node_drift, or a SKU's floor, ceiling, exactly, expected,
expected_devices. ``breach``: "fail"; "retest": an outlier that a second reading may explain; "warn": one that it
cannot, or that was seen twice; "cleared": an outlier that a repeat did not show again; "invalid": something else was
measured. ``expected``: the reference, in unit. ``share``: distance from it, adverse positive. ``threshold``: the share
beyond which one reading fails (infinite: nothing fails here). ``cause``: the common cause to exclude before the
device is suspected. Rules about a node's own level have device "node" and metric "<metric>_level": relative to the
peers."""

VERDICTS = ("verdict", "cause", "reason")
"""Per node (index): FAIL, RETEST, WARN or PASS; NONE where nothing had peers to compare with. ``cause``: the common
cause, where all failing findings have one. Coverage is checked by the judge of each stage: a sweep knows only what was
measured."""

BLOCK_ROWS = 500_000
"""Readings judged at a time."""

_VERDICT_OF = {"fail": "FAIL", "retest": "RETEST", "invalid": "RETEST", "warn": "WARN", "cleared": "WARN"}
"""The verdict that each breach makes of its node, the gravest first."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """Result of a sweep: ``findings`` (columns FINDINGS), ``verdicts`` (by node), ``causes`` (``causes.CAUSES``)."""

    findings: pd.DataFrame
    verdicts: pd.DataFrame
    causes: pd.DataFrame
    snapshot: str


def sweep(
    today: pd.DataFrame,
    snapshot: Snapshot,
    history: History | None,
    comparisons: Sequence[Comparison],
    *,
    skus: Mapping[str, Sku] | None = None,
    stage: str = "",
) -> Sweep:
    """Judges today's readings (see ``readings.as_readings``) of any number of nodes. Never raises on what was measured.

    Two or more runs of one visit in ``today`` are repeats: one reading beyond the single threshold fails a device, and
    so do two beyond the (lower) threshold of two. ``skus``: by name, whose floors, ceilings and exact numbers apply
    too.
    """
    found = [_by_fleet(block, comparisons, snapshot, history) for block in _blocks(today)]
    parts = [part for parts, _ in found for part in parts]
    findings = _without_invalid(pd.concat([*parts, _absolute(today, skus or {}, stage)], ignore_index=True))
    causes = common_causes(findings, _present(today))
    findings["cause"] = cause_of_each(findings, causes)
    findings = findings.sort_values(["node", "device", "metric", "labels", "rule", "expected"], kind="stable")
    findings = findings.reset_index(drop=True)
    judged = {node for _, nodes in found for node in nodes}
    return Sweep(findings, _verdicts(today, judged, findings), causes, snapshot.version)


def _without_invalid(findings: pd.DataFrame) -> pd.DataFrame:
    """Findings of which those from an invalid measurement warn at most."""
    measurement = pd.MultiIndex.from_frame(findings[["node", "device", "metric", "labels", "run"]])
    of_invalid = measurement.isin(measurement[findings["breach"] == "invalid"])
    return findings.assign(breach=findings["breach"].where(~of_invalid | (findings["breach"] != "fail"), "warn"))


def _blocks(today: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Whole nodes at a time, to save memory: a node's verdict does not depend on today's readings of others."""
    node = today["node"].cat.codes.to_numpy().astype(np.int64)
    count = math.ceil(len(today) / BLOCK_ROWS)
    block = node * count // max(len(today["node"].cat.categories), 1)
    for number in range(count):
        yield today.iloc[np.flatnonzero(block == number)]


def _by_fleet(
    today: pd.DataFrame,
    comparisons: Sequence[Comparison],
    snapshot: Snapshot,
    history: History | None,
) -> tuple[list[pd.DataFrame], set[str]]:
    """Findings by siblings, peers and history, and the nodes that these could judge."""
    measured, results = judge_readings(today, comparisons, snapshot, history, STANDARD, at_least=STANDARD.retest_min)
    of = measured.readings
    judged = np.unique(of.node[np.isfinite(measured.peers) | np.isfinite(measured.siblings)])
    runs = today["run"].cat.categories
    return [_findings(each, measured, runs) for each in results], {of.nodes[code] for code in judged}


def _findings(rule: RuleResult, measured: Distances, runs: pd.Index) -> pd.DataFrame:
    """The readings that break a rule, as findings."""
    of = measured.readings
    informs = np.array([repeat_informs(rule.rule, each.comparison.spread) for each in of.catalogue] or [False])
    breach = rule.breach(informs[of.series[rule.reading]])
    broken = np.flatnonzero(breach != "")
    reading, breach = rule.reading[broken], breach[broken]
    series = [of.catalogue[number] for number in of.series[reading]]
    node_rule = rule.rule in NODE_RULES
    columns: dict[str, object] = {
        "node": [of.nodes[code] for code in of.node[reading]],
        "device": ["node" if node_rule else of.devices[code] for code in of.device[reading]],
        "kind": [each.key[0] for each in series],
        "metric": [f"{each.key[1]}_level" if node_rule else each.key[1] for each in series],
        "labels": [each.key[2] for each in series],
        "unit": [INDEX_UNIT if node_rule else each.key[3] for each in series],
        "rule": rule.rule,
        "breach": breach,
        "value": measured.level[reading] if node_rule else of.value[reading],
        "expected": rule.expected[broken],
        "share": rule.share[broken],
        "threshold": rule.threshold[broken],
        "repeats": rule.repeats[broken],
        "run": runs[of.run[reading]].astype(str) if len(reading) else "",
        "fault": [each.comparison.fault.value for each in series],
        "action": [each.comparison.action.value for each in series],
        "cause": "",
    }
    return pd.DataFrame(columns, columns=list(FINDINGS))


def _absolute(today: pd.DataFrame, skus: Mapping[str, Sku], stage: str) -> pd.DataFrame:
    broken = absolute(today, skus, stage)
    rows = today.iloc[broken["row"].to_numpy(dtype=np.int64)]
    columns: dict[str, object] = {
        name: rows[name].astype(str).to_numpy()
        for name in ("node", "device", "kind", "metric", "labels", "unit", "run")
    }
    columns |= {name: broken[name].to_numpy() for name in ("rule", "breach", "expected", "share", "fault", "action")}
    columns |= {"value": rows["value"].to_numpy(), "threshold": 0.0, "repeats": 1, "cause": ""}
    return pd.DataFrame(columns, columns=list(FINDINGS))


def _present(today: pd.DataFrame) -> pd.DataFrame:
    """Returns the number of devices by node and kind."""
    node, device = today["node"].cat, today["device"].cat
    pair = np.unique(node.codes.to_numpy().astype(np.int64) * len(device.categories) + device.codes.to_numpy())
    of, which = np.divmod(pair, max(len(device.categories), 1))
    kinds = np.array([str(name).partition(":")[0].rstrip("0123456789") for name in device.categories] or [""])
    frame = pd.DataFrame({"node": np.array(node.categories.tolist() or [""], dtype=object)[of], "kind": kinds[which]})
    return frame.groupby(["node", "kind"], sort=True).size().rename("devices").reset_index()


def _verdicts(today: pd.DataFrame, judged: set[str], findings: pd.DataFrame) -> pd.DataFrame:
    codes = today["node"].cat.codes.to_numpy()
    names = today["node"].cat.categories
    nodes = names[np.unique(codes[codes >= 0])].astype(str).tolist()
    table = pd.DataFrame(
        {"verdict": "PASS", "cause": "", "reason": ""}, index=pd.Index(nodes, name="node"), dtype=object
    )
    table.loc[~table.index.isin(judged), "verdict"] = "NONE"
    for breach, verdict in reversed(_VERDICT_OF.items()):
        of = findings[findings["breach"] == breach]
        worst = of.sort_values("share", ascending=False, kind="stable").drop_duplicates("node")
        table.loc[worst["node"], "verdict"] = verdict
        table.loc[worst["node"], "reason"] = [_reason(row) for row in worst.itertuples(index=False)]
    failing = findings[findings["breach"] == "fail"]
    own = set(failing.loc[failing["cause"] == "", "node"])
    waits = failing[~failing["node"].isin(own)].drop_duplicates("node")
    table.loc[waits["node"], "cause"] = waits["cause"].to_numpy()
    return table


def _reason(row: object) -> str:
    labels = f"[{row.labels}]" if row.labels else ""  # type: ignore[attr-defined]
    return (
        f"{row.device}: {row.metric}{labels} is {row.value:.4g} {row.unit}, expected {row.expected:.4g}"  # type: ignore[attr-defined]
        f" by {row.rule}"  # type: ignore[attr-defined]
    )
