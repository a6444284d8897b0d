"""Tests that fail now and then on sound hardware: all their runs are judged by Wald's sequential test.

For minute-long tests with run-to-run noise only, which a programme declares (``sequential: true``): a second failure
after at most three passes fails the device, nine passes clear it, twenty-one after one failure; then the test begins
again (docs/science.md#repeated-tests). Part-to-part variation and wrong bits are not noise: exact limits and the
fleet's rules apply unchanged. Every finding lists every run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.fleet.series.readings import day_of
from muster_criteria.kinds import LIMIT_KINDS
from muster_criteria.labels import labelled, labels_text
from muster_criteria.measured import StageResult
from muster_criteria.model import Action, Finding, Gap, Lack, Severity, Variant
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import stage_probes
from muster_criteria.stage.findings import Breaking, limit_finding
from muster_criteria.stage.frame import Frame
from muster_criteria.stage.rules import Rule
from muster_criteria.stage.sprt import BETA, Decision, decide
from muster_criteria.words import figure

NOISY = tuple(key for key, kind in LIMIT_KINDS.items() if kind.noisy)
"""Kinds of limits that noise can break; what must be exact, or a text, is not among them."""
RUNS_MAX = 45
"""Runs after which an undecided test is left to a person: twice the passes that clear a device after one failure."""
CLEARED, UNDECIDED = BETA, 0.5
"""Confidence in a finding of a cleared device (the test's β) and of an undecided one."""


@dataclasses.dataclass(frozen=True)
class Weighed:
    """The decisions over all runs. ``elsewhere``: findings of what only other runs measured; ``pending``: one sentence
    for each undecided device; ``probes``: the probes that measure those again.
    """

    breaking: tuple[Breaking, ...]
    elsewhere: tuple[Finding, ...] = ()
    pending: tuple[Gap, ...] = ()
    probes: tuple[str, ...] = ()


def sequential_probes(sku: Sku, stage: str, level: str) -> tuple[str, ...]:
    """Returns the names of a stage's probes that are declared ``sequential``. Raises SkuError as ``stage_probes``."""
    return tuple(name for name, use in stage_probes(sku, stage, level).items() if use.sequential)


def weigh(
    frame: Frame,
    breaking: Sequence[Breaking],
    sku: Sku,
    result: StageResult,
    repeats: pd.DataFrame | None,
    invalid: Collection[int] = (),
    others: Sequence[tuple[Frame, Collection[int]]] = (),
) -> Weighed:
    """Returns the findings; those of noisy limits are decided over all valid runs, in the order in which they began.

    ``frame`` is of ``result``, ``invalid`` its invalid rows; ``others``: the same of the other results of the same
    test, oldest first, and ``repeats`` the valid readings in them (see ``fleet.series.readings``).
    """
    noisy = sequential_probes(sku, result.stage, result.level)
    if not noisy:
        return Weighed(tuple(breaking))
    ran = _runs(frame, invalid, result, noisy, repeats)
    own = {(item.rule.column, item.position): item for item in breaking}
    kept = [
        item
        for item in breaking
        if item.rule.breach != "fail" or item.position in invalid or not is_noisy(frame, item, noisy)
    ]
    elsewhere: list[Finding] = []
    pending: list[Gap] = []
    probes: set[str] = set()
    for rule, of, position in _judged([(frame, invalid), *reversed(others)], noisy):
        row = of.row(position)
        runs = ran.get(_key(row)) or [float(row["value"])]
        failed = [_fails(value, rule.kind, float(row[f"{rule.column}_at"])) for value in runs]
        if not any(failed):
            continue
        decision = decide(failed)
        item = own.get((rule.column, position)) if of is frame else None
        finding = _with_runs(item.finding if item else limit_finding(row, rule, sku), row, runs, failed, decision)
        if of is frame:
            kept.append(Breaking(position, rule, finding))
        else:
            elsewhere.append(finding)
        if decision == "repeat":
            pending.append(Gap(Lack.UNDECIDED, finding.summary.rstrip(".")))
            probes |= {str(row["probe"])} if len(runs) < RUNS_MAX else set()
    return Weighed(tuple(kept), tuple(elsewhere), tuple(pending), tuple(sorted(probes)))


def _judged(frames: Sequence[tuple[Frame, Collection[int]]], noisy: Sequence[str]) -> Iterator[tuple[Rule, Frame, int]]:
    """Each noisy rule of each measurement once, in the first frame that judges it by that rule, and its position there.

    ``frames``: each with its invalid rows. A limit that an earlier run broke counts although a later run did not
    measure it.
    """
    for rule in (Rule(kind, "fail") for kind in NOISY):
        seen: set[_Key] = set()
        for frame, invalid in frames:
            if rule.column not in frame.columns:
                continue
            for position in _of(frame, noisy, ~np.isnan(frame[rule.column]), invalid):
                key = _key(frame.row(position))
                if key not in seen:
                    seen.add(key)
                    yield rule, frame, position


def _of(frame: Frame, probes: Sequence[str], chosen: npt.NDArray[np.bool_], invalid: Collection[int]) -> list[int]:
    """The chosen rows that these probes measured, and validly."""
    return [at for at in np.flatnonzero(chosen).tolist() if frame["probe"][at] in probes and at not in invalid]


def is_noisy(frame: Frame, item: Breaking, noisy: Sequence[str]) -> bool:
    """Returns whether noise alone may break the rule on that row; ``noisy``: result of ``sequential_probes``."""
    return item.rule.kind in NOISY and frame["probe"][item.position] in noisy


_Key = tuple[str, str, str, str]


def _key(row: Mapping[str, Any]) -> _Key:
    return str(row["device"]), str(row["metric"]), labels_text(row["labels"]), str(row["unit"])


def _runs(
    frame: Frame, invalid: Collection[int], result: StageResult, noisy: Sequence[str], repeats: pd.DataFrame | None
) -> dict[_Key, list[float]]:
    """Returns {measurement: the value of each valid run of a noisy probe}, in the order in which the runs began."""
    found: dict[_Key, list[tuple[float, float]]] = {}
    if repeats is not None:
        columns = (repeats[name].astype(str) for name in ("device", "metric", "labels", "unit"))
        for *key, at, value in zip(*columns, repeats["at"], repeats["value"], strict=True):
            if np.isfinite(value):
                found.setdefault((key[0], key[1], key[2], key[3]), []).append((float(at), float(value)))
    for position in _of(frame, noisy, np.isfinite(frame["value"]), invalid):
        row = frame.row(position)
        found.setdefault(_key(row), []).append((day_of(result.started_at), float(row["value"])))
    return {key: [value for _, value in sorted(runs)] for key, runs in found.items()}


def _fails(value: float, kind: str, at: float) -> bool:
    return value < at if LIMIT_KINDS[kind].side == "lower" else value > at


def _with_runs(
    finding: Finding, row: Mapping[str, Any], runs: list[float], failed: list[bool], decision: Decision
) -> Finding:
    """Returns the finding with every run that it rests on and the decision over them."""
    name = labelled(row["metric"], row["labels"])
    listed = ", ".join(
        figure(value, row["unit"]) + (" (failed)" if bad else "") for value, bad in zip(runs, failed, strict=True)
    )
    count = f"{sum(failed)} of {len(runs)} runs failed: {listed}"
    lead = finding.summary.rstrip(".")
    if finding.extent is not None and finding.extent.worse:  # of the worst run, which a waiver covers
        worst = min(runs) if finding.extent.worse == "lower" else max(runs)
        finding = dataclasses.replace(finding, extent=dataclasses.replace(finding.extent, value=worst))
    if decision == "fail":
        return dataclasses.replace(finding, observed=f"{finding.observed}; {count}", summary=f"{lead}; {count}.")
    if decision == "clear":
        what, action, confidence, variant = "cleared by its repeats", Action.NONE, CLEARED, Variant.CLEARED
    else:
        what, action, confidence, variant = (
            "undecided, to be measured again", Action.RETEST, UNDECIDED, Variant.RETEST
        )  # fmt: skip
    return dataclasses.replace(
        finding,
        severity=Severity.WARNING,
        action=action,
        confidence=confidence,
        observed=f"{finding.observed}; {count}",
        summary=f"{row['device']} {what}: {name}, expected {finding.expected}; {count}.",
        variant=variant,
    )
