"""The judge: a case becomes a judgement with verdict, findings, coverage and every judged observation."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Sequence

import pandas as pd

from muster_criteria.context.goldens import golden_findings
from muster_criteria.context.past_faults import with_past
from muster_criteria.context.suspicion import confirmed
from muster_criteria.context.versions import judge_versions
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.single import Compared, compare, derived
from muster_criteria.kernel.judge import judge_kernel
from muster_criteria.measured import StageResult
from muster_criteria.model import UNJUDGED, Coverage, Finding, Gap, Judgement, Lack, Observation, Severity, Verdict
from muster_criteria.rows import Row, rows_of
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import needs
from muster_criteria.stage.case import Case
from muster_criteria.stage.coverage import Invalid, tally
from muster_criteria.stage.findings import Breaking, bounded, evidence_finding, findings_of, in_order
from muster_criteria.stage.fleet_findings import corroborated, with_common_causes
from muster_criteria.stage.frame import build_frame
from muster_criteria.stage.observations import observations_of
from muster_criteria.stage.retests import repeated_rows, to_repeat
from muster_criteria.stage.rules import INVALID_KINDS, Evaluate, applicable
from muster_criteria.stage.sequential import is_noisy, sequential_probes, weigh
from muster_criteria.stage.suite import unexpected_rows
from muster_criteria.stage.verdict import verdict_of
from muster_criteria.xid.judge import judge_xids

log = logging.getLogger(__name__)


def judge(case: Case, *, evaluate: Evaluate = unexpected_rows) -> Judgement:
    """Returns the judgement of one stage of one run. Never raises: an error while judging gives INCONCLUSIVE.

    ``evaluate`` returns the rows that break each rule (default: by Great Expectations).
    """
    established = [evidence_finding(item) for item in case.evidence]
    result = case.result
    try:
        if result is None:
            raise _NoResult(case.why_missing or "no result came back from the node")
        if (result.stage, result.level) != (case.stage, case.level):
            raise _NoResult(
                f"the result is of stage {result.stage} at level {result.level}, "
                f"not of {case.stage} at level {case.level}"
            )
        examined = _examine(result, case, evaluate)
    except _NoResult as error:
        examined = _Examined(_uncounted(case, Lack.NO_RESULT, str(error)))
    except Exception as error:  # an error in the judge must become neither a pass nor a lost run
        log.exception("judging %s of SKU %s failed", case.stage, case.sku.name)
        why = f"the judge failed with an error ({type(error).__name__}: {error})"
        examined = _Examined(_uncounted(case, Lack.JUDGE_FAILED, why))
    every = (*established, *examined.findings)
    findings = bounded(every)
    verdict, reason = verdict_of(every, examined.coverage)
    return Judgement(
        stage=case.stage,
        level=case.level,
        verdict=verdict,
        reason=reason,
        coverage=examined.coverage,
        findings=findings,
        observations=examined.observations,
        simulated=case.simulated or (result is not None and result.simulated),
        sku=case.sku.name,
        sku_version=case.sku.revision,
        notes=examined.notes,
        snapshot="" if case.references is None else case.references.snapshot.version,
        repeat=() if verdict is Verdict.FAIL else examined.repeat,
    )


@dataclasses.dataclass(frozen=True)
class _Examined:
    """Everything found in a result, before the verdict. ``repeat``: the probes that must be run once more."""

    coverage: Coverage
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    observations: tuple[Observation, ...] = ()
    repeat: tuple[str, ...] = ()


class _NoResult(Exception):
    """There is nothing to judge; the message is the reason."""


def _uncounted(case: Case, code: Lack, why: str) -> Coverage:
    missing = Gap(code, why, "everything")
    try:
        required = max(1, len(needs(case.sku, case.stage, case.level)))
    except Exception as error:
        return Coverage(1, 0, 0, (missing, Gap(Lack.JUDGE_FAILED, str(error))))
    return Coverage(required, 0, 0, (missing,))


def _examine(result: StageResult, case: Case, evaluate: Evaluate) -> _Examined:
    sku, stage = case.sku, case.stage
    rows = rows_of(result, sku)
    rows += derived(rows, sku.programme.derive)
    fleet = _compared(rows, result, sku, case.references)
    given, columns = (fleet.rows, fleet.columns) if fleet else (rows, None)
    frame = build_frame(given, sku, stage, columns, case.previous_faults)
    rules = applicable(frame)
    broken = evaluate(frame, rules)
    breaches = findings_of(frame, rules, broken, sku, fleet.runs if fleet else None)
    ran = [(each, build_frame(of, sku, each.stage)) for each in case.others if (of := repeated_rows(each, sku))]
    weighed = weigh(frame, breaches, sku, result, case.repeats, [other for _, other in ran])
    breaking = weighed.breaking
    invalid = _invalid_rows(frame, breaking, sku)
    counted = tally(result, frame, invalid, sku, stage, case.level)
    if not rules and not counted.missing:
        counted.unjudged.append(Gap(Lack.UNJUDGED, UNJUDGED, "the whole stage"))
    found = [_at_most_warning(item.finding) if item.position in invalid else item.finding for item in breaking]
    found += weighed.elsewhere
    found += _only_in_repeats(ran, found, sku, evaluate)
    found = [*confirmed(found, rows), *golden_findings(result, case.goldens)]
    devices = collections.Counter(frame.drop_duplicates("device")["kind"])
    xids, kernel = judge_xids(result, sku.xid_policy), judge_kernel(result, sku.kernel_policy)
    versions = judge_versions(result, sku, case.running)
    found = [*corroborated(found), *xids.findings, *kernel.findings, *versions.findings]
    findings = in_order(with_common_causes(with_past(found, frame), devices))
    observations = observations_of(frame, {item.position for item in breaking}, sku)
    for gap in (*weighed.pending, *xids.missing, *kernel.missing, *versions.missing):
        counted.miss(gap)
    return _Examined(
        counted.coverage(),
        (*result.notes, *counted.notes, *versions.notes),
        findings,
        observations,
        tuple(sorted({*weighed.probes, *to_repeat(frame, breaking, sku, result)})),
    )


def _only_in_repeats(
    ran: Sequence[tuple[StageResult, pd.DataFrame]], findings: Sequence[Finding], sku: Sku, evaluate: Evaluate
) -> list[Finding]:
    """Findings of limits that are broken only in another run of the test; they count like those of the judged run.

    ``ran``: the other runs, each with the frame of what it measured.
    """
    known = {(each.rule, each.metric, each.device, each.labels) for each in findings}
    found: list[Finding] = []
    for result, frame in ran:
        rules = applicable(frame)
        breaking = findings_of(frame, rules, evaluate(frame, rules), sku)
        invalid, noisy = _invalid_rows(frame, breaking, sku), sequential_probes(sku, result.stage, result.level)
        for item in breaking:
            finding = item.finding
            key = (finding.rule, finding.metric, finding.device, finding.labels)
            fails = item.rule.breach == "fail" and item.position not in invalid and not is_noisy(frame, item, noisy)
            if (fails or item.rule.breach == "invalid") and key not in known:
                known.add(key)
                found.append(dataclasses.replace(finding, observed=f"{finding.observed} (in a repeat)"))
    return found


def _compared(rows: Sequence[Row], result: StageResult, sku: Sku, references: References | None) -> Compared | None:
    """The comparison of these rows with the fleet; None without references."""
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


def _invalid_rows(frame: pd.DataFrame, breaking: Sequence[Breaking], sku: Sku) -> dict[int, Invalid]:
    """Returns {invalid row: reason}; the reason is the row's own value or another measurement's."""
    invalid: dict[int, Invalid] = {}
    for item in breaking:
        if item.rule.breach != "invalid":
            continue
        invalid[item.position] = Invalid(item.finding.summary.rstrip("."), itself=True)
        if item.rule.kind in INVALID_KINDS:
            continue
        limit = sku.all_limits[int(frame[f"{item.rule.column}_by"].iloc[item.position])]
        for position in frame.index[frame["metric"].isin(limit.invalidates)]:
            why = f"invalid, since {item.finding.metric} is {item.finding.observed}"
            invalid.setdefault(position, Invalid(why, itself=False))
    return invalid


def _at_most_warning(finding: Finding) -> Finding:
    """The finding; a critical one with the severity warning, since an invalid row fails no device."""
    return dataclasses.replace(finding, severity=Severity.WARNING) if finding.severity == "critical" else finding
