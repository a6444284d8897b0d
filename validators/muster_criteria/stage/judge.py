"""The judge: one stage's result under a SKU becomes a verdict, with findings, coverage and every judged observation.

It never raises to its caller and never passes on doubt: whatever goes wrong in judging itself is INCONCLUSIVE.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import pandas as pd

from muster_criteria.context.goldens import Goldens, golden_findings
from muster_criteria.context.past_faults import with_past
from muster_criteria.context.suspicion import confirmed
from muster_criteria.fleet.references import References
from muster_criteria.fleet.single import Compared, compare, derived
from muster_criteria.measured import StageResult
from muster_criteria.model import UNJUDGED, Coverage, Evidence, Finding, Judgement, Observation, Severity, Verdict
from muster_criteria.sku_files.skus import Sku
from muster_criteria.stage.coverage import Void, nothing_measured, tally
from muster_criteria.stage.findings import Breaking, evidence_finding, findings_of, in_order
from muster_criteria.stage.fleet_findings import corroborated, with_common_causes
from muster_criteria.stage.frame import NONE_BEFORE, build_frame
from muster_criteria.stage.observations import observations_of
from muster_criteria.stage.retests import doubted, repeated_rows
from muster_criteria.stage.rows import Row, rows_of
from muster_criteria.stage.rules import VOID_KINDS, Evaluate, applicable
from muster_criteria.stage.sequential import is_noisy, sequential_probes, weigh
from muster_criteria.stage.suite import unexpected_rows
from muster_criteria.words import listed
from muster_criteria.xid.judge import judge_xids

__all__ = ["Evidence", "judge", "overall"]

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class _Case:
    """All that a verdict depends on."""

    critical: int
    missing: int
    unjudged: int
    warnings: int


# Read from the top: the first condition that holds is the verdict. A critical finding convicts whatever is missing.
VERDICTS: tuple[tuple[Verdict, Callable[[_Case], bool]], ...] = (
    (Verdict.FAIL, lambda case: case.critical > 0),
    (Verdict.INCONCLUSIVE, lambda case: case.missing > 0),
    (Verdict.PROVISIONAL, lambda case: case.unjudged > 0),
    (Verdict.WARN, lambda case: case.warnings > 0),
    (Verdict.PASS, lambda case: True),
)

# The node's verdict, read from the top: (a stage's verdict, what it makes of the node). A skipped stage, like one that
# did not run at all, leaves the node untested.
OVERALL = (
    (Verdict.FAIL, Verdict.FAIL),
    (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE),
    (Verdict.SKIPPED, Verdict.INCONCLUSIVE),
    (Verdict.PROVISIONAL, Verdict.PROVISIONAL),
    (Verdict.WARN, Verdict.WARN),
)

REASON_MAX = 400


def judge(
    result: StageResult | None,
    sku: Sku,
    stage: str,
    level: str,
    *,
    why_missing: str = "",
    evidence: Sequence[Evidence] = (),
    simulated: bool = False,
    references: References | None = None,
    goldens: Goldens | None = None,
    repeats: pd.DataFrame | None = None,
    others: Sequence[StageResult] = (),
    previous_faults: Mapping[str, int] = NONE_BEFORE,
    evaluate: Evaluate = unexpected_rows,
) -> Judgement:
    """Judge one stage of one run. Never raises.

    ``result`` None: nothing usable came back, and ``why_missing`` is the sentence that says why. ``evidence``: what the
    controller itself established, each a critical finding of the node. ``simulated``: whether the node is known to be,
    for when there is no result to say so. ``references``: the frozen peers and the node's history, by which the metrics
    that the programme compares are judged beside the SKU's limits. ``goldens``: the bits that the fleet agreed on.
    ``others``: the other results of the same test (see ``retests.arranged``), and ``repeats`` the readings in them.
    ``previous_faults``: {device: how many earlier runs convicted the part that sits there}.
    ``evaluate`` finds the rows that break each rule: Great Expectations.
    """
    established = [evidence_finding(item) for item in evidence]
    try:
        if result is None:
            raise _NoResult(why_missing or "no result came back from the node")
        if (result.stage, result.level) != (stage, level):
            raise _NoResult(
                f"the result is of stage {result.stage} at level {result.level}, not of {stage} at level {level}"
            )
        known = _Known(references, goldens or Goldens(), repeats, tuple(others), previous_faults)
        seen = _examine(result, sku, stage, level, known, evaluate)
    except _NoResult as error:
        seen = _Examined(*_uncounted(sku, stage, level, str(error)))
    except Exception as error:  # whatever is wrong with the judge must not become a pass, nor a lost run
        log.exception("judging %s of SKU %s failed", stage, sku.name)
        why = f"the judge could not do its work ({type(error).__name__}: {error})"
        seen = _Examined(*_uncounted(sku, stage, level, why))
    verdict, reason = _verdict([*established, *seen.findings], seen.coverage)
    return Judgement(
        stage=stage,
        level=level,
        verdict=verdict,
        reason=reason,
        coverage=seen.coverage,
        findings=(*established, *seen.findings),
        observations=seen.observations,
        simulated=simulated or (result is not None and result.simulated),
        sku=sku.name,
        sku_version=sku.revision,
        notes=seen.notes,
        snapshot="" if references is None else references.snapshot.version,
        repeat=() if verdict is Verdict.FAIL else seen.repeat,
    )


def overall(judgements: Iterable[Judgement], required_stages: Sequence[str]) -> tuple[Verdict, str]:
    """The verdict on the node, and a headline: the gravest of its stages, none of which may be absent.

    The headline names every stage that came to that verdict, since the later one often says why: a GPU too slow in the
    performance stage is told to throttle by the thermal one.
    """
    given = list(judgements)
    absent = [stage for stage in required_stages if stage not in {judgement.stage for judgement in given}]
    for verdict, said_as in OVERALL:
        told = [f"{item.stage}: {item.reason}" for item in given if item.verdict is verdict]
        if verdict is Verdict.SKIPPED and (absent or not required_stages):
            told.append(f"{', '.join(absent)} did not run." if absent else "no stage was required.")
        if told:
            return said_as, " ".join(_cut(sentence) for sentence in told)
    total = sum(judgement.coverage.required for judgement in given)
    return Verdict.PASS, f"All {len(required_stages)} stages passed, {total} required measurements taken and judged."


@dataclasses.dataclass(frozen=True)
class _Known:
    """What is known beside the result and its SKU (see ``judge``)."""

    references: References | None
    goldens: Goldens
    repeats: pd.DataFrame | None
    others: tuple[StageResult, ...]
    previous_faults: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class _Examined:
    """What a result says, before it is summed up to a verdict. ``repeat``: the probes that must be run once more."""

    coverage: Coverage
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    observations: tuple[Observation, ...] = ()
    repeat: tuple[str, ...] = ()


class _NoResult(Exception):
    """There is nothing to judge; the message is why."""


def _uncounted(sku: Sku, stage: str, level: str, why: str) -> tuple[Coverage, tuple[str, ...]]:
    try:
        return nothing_measured(sku, stage, level, why), ()
    except Exception as error:
        return Coverage(required=1, measured=0, judged=0, missing=(f"everything: {why}", str(error))), ()


def _examine(
    result: StageResult,
    sku: Sku,
    stage: str,
    level: str,
    known: _Known,
    evaluate: Evaluate,
) -> _Examined:
    rows = rows_of(result, sku)
    rows += derived(rows, sku.programme.derive)
    fleet = _compared(rows, result, sku, known.references)
    given, columns = (fleet.rows, fleet.columns) if fleet else (rows, None)
    frame = build_frame(given, sku, stage, columns, known.previous_faults)
    rules = applicable(frame)
    broken = evaluate(frame, rules)
    found = findings_of(frame, rules, broken, sku, fleet.runs if fleet else None)
    ran = [(each, build_frame(of, sku, each.stage)) for each in known.others if (of := repeated_rows(each, sku))]
    weighed = weigh(frame, found, sku, result, known.repeats, [other for _, other in ran])
    breaking = weighed.breaking
    void = _void_rows(frame, breaking, sku)
    counted = tally(result, frame, void, sku, stage, level)
    if not rules and not counted.missing:
        counted.unjudged.append(f"the whole stage: {UNJUDGED}")
    told = [_held_back(item.finding) if item.position in void else item.finding for item in breaking]
    told += weighed.elsewhere
    told += _only_in_repeats(ran, told, sku, evaluate)
    told = [*confirmed(told, rows), *golden_findings(result, known.goldens)]
    devices = collections.Counter(frame.drop_duplicates("device")["kind"])
    xids = judge_xids(result, sku.xid_policy)
    findings = in_order(with_common_causes(with_past([*corroborated(told), *xids.findings], frame), devices))
    observations = observations_of(frame, {item.position for item in breaking}, sku)
    for sentence in (*weighed.asked, *xids.missing):
        counted.miss(sentence)
    return _Examined(
        counted.coverage(),
        (*result.notes, *counted.notes),
        findings,
        observations,
        tuple(sorted({*weighed.probes, *doubted(frame, breaking, sku, result)})),
    )


def _only_in_repeats(
    ran: Sequence[tuple[StageResult, pd.DataFrame]], told: Sequence[Finding], sku: Sku, evaluate: Evaluate
) -> list[Finding]:
    """What breaks a SKU's limit in another run of the test, and not in the one that is judged: it counts as much.

    ``ran``: the other runs, each with the frame of what it measured.
    """
    known = {(each.rule, each.metric, each.device, each.labels) for each in told}
    found: list[Finding] = []
    for result, frame in ran:
        rules = applicable(frame)
        breaking = findings_of(frame, rules, evaluate(frame, rules), sku)
        void, noisy = _void_rows(frame, breaking, sku), sequential_probes(sku, result.stage, result.level)
        for item in breaking:
            finding = item.finding
            key = (finding.rule, finding.metric, finding.device, finding.labels)
            convicts = item.rule.breach == "fail" and item.position not in void and not is_noisy(frame, item, noisy)
            if (convicts or item.rule.breach == "void") and key not in known:
                known.add(key)
                found.append(dataclasses.replace(finding, observed=f"{finding.observed} (in a repeat)"))
    return found


def _compared(rows: Sequence[Row], result: StageResult, sku: Sku, references: References | None) -> Compared | None:
    """What the fleet says of these rows, where there is one to compare with."""
    if references is None:
        return None
    return compare(
        rows,
        sku.programme.compare,
        references,
        node=references.node or result.node,
        sku=sku.name,
        environment=result.environment,
    )


def _void_rows(frame: pd.DataFrame, breaking: Sequence[Breaking], sku: Sku) -> dict[int, Void]:
    """Rows that say nothing of their device: by their own value, or because of another measurement's."""
    void: dict[int, Void] = {}
    for item in breaking:
        if item.rule.breach != "void":
            continue
        void[item.position] = Void(item.finding.summary.rstrip("."), itself=True)
        if item.rule.kind in VOID_KINDS:
            continue
        limit = sku.all_limits[int(frame[f"{item.rule.column}_by"].iloc[item.position])]
        for position in frame.index[frame["metric"].isin(limit.voids)]:
            why = f"says nothing, since {item.finding.metric} is {item.finding.observed}"
            void.setdefault(position, Void(why, itself=False))
    return void


def _held_back(finding: Finding) -> Finding:
    """A finding from a measurement that says nothing of its device is told, but convicts nobody."""
    return dataclasses.replace(finding, severity=Severity.WARNING) if finding.severity == "critical" else finding


def _verdict(findings: Sequence[Finding], coverage: Coverage) -> tuple[Verdict, str]:
    case = _Case(
        critical=sum(finding.severity is Severity.CRITICAL for finding in findings),
        missing=len(coverage.missing) or int(coverage.required == 0),
        unjudged=len(coverage.unjudged),
        warnings=sum(finding.severity is Severity.WARNING for finding in findings),
    )
    verdict = next(verdict for verdict, holds in VERDICTS if holds(case))
    return verdict, _reason(verdict, findings, coverage)


def _reason(verdict: Verdict, findings: Sequence[Finding], coverage: Coverage) -> str:
    if verdict in (Verdict.FAIL, Verdict.WARN):
        grave = Severity.CRITICAL if verdict is Verdict.FAIL else Severity.WARNING
        return _first_of([finding.summary.rstrip(".") for finding in findings if finding.severity is grave])
    if verdict is Verdict.INCONCLUSIVE:
        count = f"Not measured ({len(coverage.missing)} of {coverage.required} required): "
        return _first_of([count + sentence for sentence in coverage.missing])
    if verdict is Verdict.PROVISIONAL:
        figures = dict.fromkeys(
            sentence.removesuffix(f": {UNJUDGED}").partition(" on ")[0] for sentence in coverage.unjudged
        )
        count = f"Not judged ({len(coverage.unjudged)} of {coverage.required} required): "
        return f"{count}{_cut(listed(list(figures), most=8))}: {UNJUDGED}."
    return f"All {coverage.required} required measurements were taken and are within their limits."


def _first_of(sentences: Sequence[str]) -> str:
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return f"{_cut(sentences[0])}{more}."


def _cut(text: str) -> str:
    return text if len(text) <= REASON_MAX else text[: REASON_MAX - 1] + "…"
