"""The judge: a case becomes a judgement with verdict, findings, coverage and every judged observation."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Mapping, Sequence

import numpy as np

from muster_criteria.context.goldens import golden_findings, uncompared
from muster_criteria.context.suspicion import confirmed
from muster_criteria.context.versions import judge_versions
from muster_criteria.device_events.judge import judge_events
from muster_criteria.devices import kind_of
from muster_criteria.fleet.series.readings import group_of, stack_of
from muster_criteria.fleet.single import Compared, Runs, Subject, compare, derived
from muster_criteria.measured import StageResult
from muster_criteria.model import (
    UNJUDGED,
    Coverage,
    Finding,
    Gap,
    Judgement,
    Lack,
    Observation,
    PartJudgement,
    Severity,
    Verdict,
)
from muster_criteria.rows import Row, rows_of
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import Need, needs, watching
from muster_criteria.stage.case import Case
from muster_criteria.stage.coverage import tally
from muster_criteria.stage.findings import Breaking, bounded, evidence_finding, findings_of, in_order
from muster_criteria.stage.fleet_findings import compared_with, corroborated
from muster_criteria.stage.frame import Frame, build_frame
from muster_criteria.stage.invalid import Invalid, explained, finding_of_invalid, invalid_rows
from muster_criteria.stage.merging import once, with_past, with_unknown_places
from muster_criteria.stage.observations import observations_of
from muster_criteria.stage.retests import rows_again, to_repeat
from muster_criteria.stage.rules import OF_PARAMETERS, Evaluate
from muster_criteria.stage.sequential import is_noisy, sequential_probes, weigh
from muster_criteria.stage.suite import unexpected_rows
from muster_criteria.stage.verdict import verdict_of

log = logging.getLogger(__name__)


def judge(case: Case, *, evaluate: Evaluate = unexpected_rows) -> Judgement:
    """Returns the judgement of one stage of one run. Never raises: an error while judging gives INCONCLUSIVE.

    ``evaluate`` returns the rows that break each rule (default: by Great Expectations).
    """
    return judge_all([case], evaluate=evaluate)[0]


def judge_all(cases: Sequence[Case], *, evaluate: Evaluate = unexpected_rows) -> list[Judgement]:
    """Returns each case's judgement, as ``judge`` gives it; hundreds at once cost a tenth of as many one by one.

    Those that are judged by the same SKU and references share one frame.
    """
    cases = [_on_own_stack(case) for case in cases]
    examined: list[_Examined | None] = [None] * len(cases)
    for alike in _alike(cases):
        for at, found in zip(alike, _examined([cases[at] for at in alike], evaluate), strict=True):
            examined[at] = found
    return [_judgement(case, found or _unexamined(case)) for case, found in zip(cases, examined, strict=True)]


def _on_own_stack(case: Case) -> Case:
    """The case with the SKU's limits for the stack that its node runs, at the level of the test."""
    if case.result is None:
        return case
    stack = stack_of(group_of(case.sku.name, case.result.environment))
    return dataclasses.replace(case, sku=case.sku.on(stack, case.level))


def _judgement(case: Case, examined: _Examined) -> Judgement:
    result = case.result
    every = (*(evidence_finding(item) for item in case.evidence), *examined.findings)
    coverage = examined.coverage
    if case.replanned:
        every = tuple(_saying_nothing(each) for each in every)
        gap = Gap(Lack.REPLANNED, case.replanned, "everything")
        coverage = dataclasses.replace(coverage, required=coverage.required + 1, missing=(gap, *coverage.missing))
    verdict, reason = verdict_of(every, coverage)
    return Judgement(
        stage=case.stage,
        level=case.level,
        verdict=verdict,
        reason=reason,
        coverage=coverage,
        findings=bounded(every),
        observations=examined.observations,
        simulated=case.simulated or (result is not None and result.simulated),
        sku=case.sku.name,
        sku_version=case.sku.revision,
        notes=examined.notes,
        snapshot="" if case.references is None else case.references.snapshot.version,
        repeat=() if verdict is Verdict.FAIL or case.replanned else examined.repeat,
    )


@dataclasses.dataclass(frozen=True)
class _Examined:
    """Everything found in a result, before the verdict. ``repeat``: the probes that must be run once more."""

    coverage: Coverage
    notes: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    observations: tuple[Observation, ...] = ()
    repeat: tuple[str, ...] = ()


def _alike(cases: Sequence[Case]) -> list[list[int]]:
    """The positions of cases that can lie in one frame; of those without a result that can be judged, none."""
    groups: dict[tuple[object, ...], list[list[int]]] = {}
    named: dict[tuple[object, ...], set[str]] = {}
    for at, case in enumerate(cases):
        if case.result is None or (case.result.stage, case.result.level) != (case.stage, case.level):
            continue
        by = case.references
        fleet = None if by is None else (id(by.snapshot), id(by.history))
        key = (id(case.sku), case.stage, case.level, fleet)
        places = groups.setdefault(key, [[]])
        if (node := _node(case, case.result)) in named.setdefault(key, set()):  # it is compared with its past once
            places.append([])
            named[key] = set()
        named[key].add(node)
        places[-1].append(at)
    return [place for places in groups.values() for place in places if place]


def _node(case: Case, result: StageResult) -> str:
    """The name under which history and repeats know the node."""
    return (case.references.node if case.references else "") or result.node


def _unexamined(case: Case) -> _Examined:
    """The outcome for a case without a result that can be judged."""
    why = case.why_missing or "no result came back from the node"
    if (result := case.result) is not None:
        why = (
            f"the result is of stage {result.stage} at level {result.level}, not of {case.stage} at level {case.level}"
        )
    return _Examined(_uncounted(case, Lack.NO_RESULT, why))


def _uncounted(case: Case, code: Lack, why: str) -> Coverage:
    missing = Gap(code, why, "everything")
    try:
        required = max(1, len(needs(case.sku, case.stage, case.level)))
    except Exception as error:
        return Coverage(1, 0, 0, (missing, Gap(Lack.JUDGE_FAILED, str(error))))
    return Coverage(required, 0, 0, (missing,))


def _examined(cases: Sequence[Case], evaluate: Evaluate) -> list[_Examined]:
    """Each case examined; an error in the judge becomes neither a pass nor a lost run, and is of one case alone."""
    try:
        return _examine(cases, evaluate)
    except Exception as error:
        if len(cases) > 1:
            return [found for case in cases for found in _examined([case], evaluate)]
        log.exception("judging %s of SKU %s failed", cases[0].stage, cases[0].sku.name)
        why = f"the judge failed with an error ({type(error).__name__}: {error})"
        return [_Examined(_uncounted(cases[0], Lack.JUDGE_FAILED, why))]


@dataclasses.dataclass(frozen=True, eq=False)
class _Laid:
    """A result in a frame of its own: the rows that break a rule, and those that are invalid."""

    frame: Frame
    breaking: Sequence[Breaking]
    invalid: Mapping[int, Invalid]


def _examine(cases: Sequence[Case], evaluate: Evaluate) -> list[_Examined]:
    """Lays out the results of all cases, and the repeats of each, before the rules are evaluated once for all."""
    sku, stage = cases[0].sku, cases[0].stage
    results = [case.result for case in cases if case.result is not None]
    own = [_rows(result, sku) for result in results]
    laid = _laid(own, cases, evaluate)
    repeated = [(at, each, rows_again(each, sku)) for at, case in enumerate(cases) for each in case.others]
    again = _laid_alone([of for _, _, of in repeated], sku, stage, evaluate)
    wanted = needs(sku, stage, cases[0].level)
    found = []
    for at, (case, result, rows) in enumerate(zip(cases, results, own, strict=True)):
        ran = [(each, lay) for (of, each, _), lay in zip(repeated, again, strict=True) if of == at]
        found.append(_one(case, result, rows, laid[at], ran, wanted))
    return found


def _rows(result: StageResult, sku: Sku) -> list[Row]:
    rows = rows_of(result, sku)
    return [*rows, *derived(rows, sku.programme.derive)]


def _laid(own: Sequence[Sequence[Row]], cases: Sequence[Case], evaluate: Evaluate) -> list[_Laid]:
    sku, stage = cases[0].sku, cases[0].stage
    fleet = _compared(own, cases)
    if fleet is None:
        return _laid_alone(own, sku, stage, evaluate)
    frame = build_frame(fleet.rows, sku, stage, fleet.columns, cases=fleet.cases)
    return _divided(frame, len(cases), sku, evaluate, fleet.runs)


def _laid_alone(own: Sequence[Sequence[Row]], sku: Sku, stage: str, evaluate: Evaluate) -> list[_Laid]:
    """Rows that are judged without the fleet."""
    if not own:
        return []
    cases = np.repeat(np.arange(len(own)), [len(rows) for rows in own])
    frame = build_frame([row for rows in own for row in rows], sku, stage, cases=cases)
    return _divided(frame, len(own), sku, evaluate, {})


def _divided(frame: Frame, count: int, sku: Sku, evaluate: Evaluate, runs: Runs) -> list[_Laid]:
    """The frame of so many cases, judged by its rules, and divided into one for each."""
    rules = frame.applicable()
    case = frame["case"]
    first = np.searchsorted(case, np.arange(count)).tolist()
    broken: list[dict[str, list[int]]] = [{} for _ in range(count)]
    for column, positions in evaluate(frame.margins(rules), rules).items():
        for position in positions:
            of = int(case[position])
            broken[of].setdefault(column, []).append(position - first[of])
    own: list[dict[int, tuple[float, ...]]] = [{} for _ in range(count)]
    for position, values in runs.items():
        of = int(case[position])
        own[of][position - first[of]] = values
    laid = []
    for part, breaks, each_run in zip(frame.parts(count), broken, own, strict=True):
        breaking = findings_of(part, part.applicable(), breaks, sku, each_run)
        laid.append(_Laid(part, breaking, invalid_rows(part, breaking, sku)))
    return laid


def _one(
    case: Case,
    result: StageResult,
    rows: Sequence[Row],
    laid: _Laid,
    ran: Sequence[tuple[StageResult, _Laid]],
    wanted: Sequence[Need],
) -> _Examined:
    """One case of several, after the rules were evaluated."""
    sku, frame, invalid = case.sku, laid.frame, laid.invalid
    others = [(other.frame, other.invalid) for _, other in ran]
    weighed = weigh(frame, laid.breaking, sku, result, case.repeats, invalid, others)
    breaking = weighed.breaking
    counted = tally(result, frame, invalid, sku, wanted)
    if not frame.applicable() and not counted.missing:
        counted.unjudged.append(Gap(Lack.UNJUDGED, UNJUDGED, "the whole stage"))
    found = [finding_of_invalid(item, frame, invalid, sku) for item in breaking]
    found += weighed.elsewhere
    found += _only_in_repeats(ran, found, sku)
    found = explained(found, breaking, frame, sku)
    found = [*confirmed(found, rows), *golden_findings(result, case.goldens)]
    devices = collections.Counter(kind_of(device) for device in set(frame["device"].tolist()))
    again = [(each, other) for each, other in ran if each.repeat]
    events = _events(result, [each for each, _ in again], sku, case.repaired_for)
    versions = judge_versions(result, sku, case.running)
    found = [*corroborated(found), *events.findings, *versions.findings]
    found = with_unknown_places(once(found), rows)
    findings = in_order(compared_with(with_past(found, case.previous_faults), devices))
    observations = observations_of(frame, {item.position for item in breaking}, sku)
    unseen = [gap for each, other in again for gap in _unwatched(each, other, sku, wanted)]
    # What was disturbed in a repeat is measured again with the whole stage only, whose attempts are limited.
    spoiled = {other.frame["probe"][at]: why for _, other in again for at, why in other.invalid.items()}
    asked = {*weighed.probes, *to_repeat(frame, breaking, invalid, sku, result)}
    disturbed = [_gap_in_a_repeat(Gap(Lack.INVALID, spoiled[probe].why, probe)) for probe in sorted(asked & {*spoiled})]
    for gap in (*weighed.pending, *events.missing, *versions.missing, *unseen, *disturbed):
        counted.miss(gap)
    uncompared_gaps, uncompared_notes = uncompared(result, case.goldens)
    for gap in uncompared_gaps:
        counted.leave_unjudged(gap)
    return _Examined(
        counted.coverage(),
        (*result.notes, *counted.notes, *uncompared_notes, *events.notes, *versions.notes, *_not_learned(rows, sku)),
        findings,
        observations,
        tuple(sorted(asked - {*spoiled})),
    )


def _only_in_repeats(ran: Sequence[tuple[StageResult, _Laid]], findings: Sequence[Finding], sku: Sku) -> list[Finding]:
    """Findings of limits that are broken only in another run of the test; they count like those of the judged run.

    ``ran``: the other runs, each with what it measured.
    """
    # A warning of the judged run hides no failure of a repeat.
    known: dict[object, int] = {}
    for each in sorted(findings, key=lambda finding: finding.severity.rank):
        known.setdefault((each.rule, each.metric, each.device, each.labels), each.severity.rank)
    found: list[Finding] = []
    for result, laid in ran:
        frame, invalid = laid.frame, laid.invalid
        noisy = sequential_probes(sku, result.stage, result.level)
        watch = watching(sku, result.stage, result.level)
        for item in laid.breaking:
            finding = finding_of_invalid(item, frame, invalid, sku)
            key = (finding.rule, finding.metric, finding.device, finding.labels)
            fails = item.rule.breach == "fail" and item.position not in invalid and not is_noisy(frame, item, noisy)
            # A warning requested the second reading, so its warnings are not new; what the repeat did to the node is.
            warns = item.rule.breach == "warn" and frame["probe"][item.position] in watch
            graver = finding.severity.rank < known.get(key, len(Severity))
            if graver and (fails or warns or item.rule.breach == "invalid"):
                known[key] = finding.severity.rank
                found.append(_in_a_repeat(finding))
    return found


def _in_a_repeat(finding: Finding) -> Finding:
    return dataclasses.replace(finding, observed=f"{finding.observed} (in a repeat)")


def _events(result: StageResult, repeats: Sequence[StageResult], sku: Sku, repaired_for: float | None) -> PartJudgement:
    """Device events of the result, and those that only its repeats logged, or logged as graver: a repeat's log begins
    with what was logged before, and one code may have several severities.

    ``repeats``: oldest first; ``repaired_for``: as of the newest one, so it is less for each other one.
    """
    newest = (result, *repeats)[-1].ended_at

    def judged(each: StageResult) -> PartJudgement:
        ago = None if repaired_for is None else repaired_for - (newest - each.ended_at)
        return judge_events(each, sku.event_policies, ago)

    own = judged(result)
    findings, missing = list(own.findings), list(own.missing)
    for repeat in repeats:
        again = judged(repeat)
        known = {(each.metric, each.device, each.labels, each.severity) for each in findings}
        for each in again.findings:
            during = tuple((key, "during" if key == "when" else label) for key, label in each.labels)
            as_grave = [severity for severity in Severity if severity.rank <= each.severity.rank]
            if known.isdisjoint(
                (each.metric, each.device, labels, severity)
                for labels in (each.labels, during)
                for severity in as_grave
            ):
                findings.append(_in_a_repeat(each))
        missing += [_gap_in_a_repeat(gap) for gap in again.missing if gap not in own.missing]
    return PartJudgement(tuple(findings), tuple(missing), own.notes)


def _not_learned(rows: Sequence[Row], sku: Sku) -> list[str]:
    """Notes that no learned floors apply to the node's stack at this level, if those of another would judge a row."""
    learned = {limit.metric for file in sku.learned for limit in file.limits}
    if learned.isdisjoint(row.metric for row in rows):
        return []
    return ["no floors were learned at this level on the firmware and software of this node: the SKU's own judge it"]


def _unwatched(repeat: StageResult, laid: _Laid, sku: Sku, wanted: Sequence[Need]) -> list[Gap]:
    """Gaps that say why it is not known what a repeat did to the node."""
    counted = tally(repeat, laid.frame, laid.invalid, sku, wanted)
    return [_gap_in_a_repeat(gap) for gap in counted.missing]


def _gap_in_a_repeat(gap: Gap) -> Gap:
    return dataclasses.replace(gap, why=f"{gap.why} (in a repeat)")


def _compared(own: Sequence[Sequence[Row]], cases: Sequence[Case]) -> Compared | None:
    """The comparison of these results with the fleet; None without references."""
    subjects = [
        Subject(rows, _node(case, case.result), case.sku.name, case.result.environment, case.references)
        for rows, case in zip(own, cases, strict=True)
        if case.result is not None and case.references is not None
    ]
    return compare(subjects, cases[0].sku.programme.compare) if subjects else None


def _saying_nothing(finding: Finding) -> Finding:
    """The finding of a measurement with other parameters: INFO if its limit is for the SKU's. Zero holds for any."""
    of_parameters = finding.rule in OF_PARAMETERS and not finding.expected.startswith("0")
    return dataclasses.replace(finding, severity=Severity.INFO) if of_parameters else finding
