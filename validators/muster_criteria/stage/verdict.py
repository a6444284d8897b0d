"""The ladder: how findings and coverage become the verdict of a stage, and stages' verdicts that of a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster_criteria.model import UNJUDGED, Coverage, Finding, Judgement, Severity, Verdict
from muster_criteria.text import cut
from muster_criteria.words import by_cause, listed

OVERALL = (
    (Verdict.FAIL, Verdict.FAIL),
    (Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE),
    (Verdict.SKIPPED, Verdict.INCONCLUSIVE),
    (Verdict.PROVISIONAL, Verdict.PROVISIONAL),
    (Verdict.WARN, Verdict.WARN),
)
"""(a stage's verdict, the node's verdict if any stage has it), in order. A skipped stage leaves the node untested."""

REASON_MAX = 400
"""Longest sentence (characters) in a reason."""


def verdict_of(findings: Sequence[Finding], coverage: Coverage) -> tuple[Verdict, str]:
    """The verdict of a stage, and its reason in one sentence.

    The first condition that holds decides: a critical finding fails the stage even where measurements are missing.
    """
    severities = {finding.severity for finding in findings}
    if Severity.CRITICAL in severities:
        verdict = Verdict.FAIL
    elif coverage.missing or not coverage.required:
        verdict = Verdict.INCONCLUSIVE
    elif coverage.unjudged:
        verdict = Verdict.PROVISIONAL
    else:
        verdict = Verdict.WARN if Severity.WARNING in severities else Verdict.PASS
    return verdict, _reason(verdict, findings, coverage)


def _reason(verdict: Verdict, findings: Sequence[Finding], coverage: Coverage) -> str:
    if verdict in (Verdict.FAIL, Verdict.WARN):
        grave = Severity.CRITICAL if verdict is Verdict.FAIL else Severity.WARNING
        return _first_of([finding.summary.rstrip(".") for finding in findings if finding.severity is grave])
    if verdict is Verdict.INCONCLUSIVE:
        count = f"Not measured ({len(coverage.missing)} of {coverage.required} required): "
        return _first_of([count + sentence for sentence in by_cause(coverage.missing) or ("nothing was required",)])
    if verdict is Verdict.PROVISIONAL:
        figures = dict.fromkeys(gap.what for gap in coverage.unjudged)
        count = f"Not judged ({len(coverage.unjudged)} of {coverage.required} required): "
        whys = dict.fromkeys(gap.why or UNJUDGED for gap in coverage.unjudged)
        return f"{count}{cut(listed(list(figures), most=8), REASON_MAX)}: {cut('; '.join(whys), REASON_MAX)}."
    return f"All {coverage.required} required measurements were taken and are within their limits."


def _first_of(sentences: Sequence[str]) -> str:
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return f"{cut(sentences[0], REASON_MAX)}{more}."


def overall(judgements: Iterable[Judgement], required_stages: Sequence[str]) -> tuple[Verdict, str]:
    """The verdict on the node, and a headline: the gravest verdict of its stages, none of which may be absent.

    The headline names every stage with that verdict, since a later one often gives the cause: the thermal stage shows
    that the GPU which was too slow in the performance stage throttles.
    """
    given = list(judgements)
    absent = [stage for stage in required_stages if stage not in {judgement.stage for judgement in given}]
    for verdict, of_node in OVERALL:
        sentences = [f"{item.stage}: {item.reason}" for item in given if item.verdict is verdict]
        if verdict is Verdict.SKIPPED and (absent or not required_stages):
            sentences.append(f"{', '.join(absent)} did not run." if absent else "no stage was required.")
        if sentences:
            return of_node, " ".join(cut(sentence, REASON_MAX) for sentence in sentences)
    total = sum(judgement.coverage.required for judgement in given)
    return Verdict.PASS, f"All {len(required_stages)} stages passed, {total} required measurements taken and judged."
