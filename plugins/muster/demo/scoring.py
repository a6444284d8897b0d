"""The demo's own examiner: compares what Muster said with what was planted. Pure; nothing else reads the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from muster.demo.draw import Planted
from muster_criteria.model import Finding, Severity, Verdict
from muster_reports.model import RunReport

HEALTHY = frozenset({Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL})
"""Verdicts under which a node without a fault is not failed. On its first day no peer or history judges everything."""

ENTERED = "qualified"
REMOVED = "quarantine"
SIMULATED = "simulated"


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What counts as having found a kind of fault: a critical finding on the GPU with one of these metrics or rules."""

    metrics: frozenset[str]
    rules: frozenset[str] = frozenset()
    node_metrics: frozenset[str] = frozenset()
    """Metrics of the whole node that this fault rightly breaks as well."""

    def names(self, finding: Finding) -> bool:
        """Whether a finding is of this kind, wherever it is."""
        return finding.metric in self.metrics or finding.rule in self.rules


EVIDENCE: Mapping[str, Evidence] = {
    "missing_gpu": Evidence(
        metrics=frozenset(), rules=frozenset({"expected_devices"}), node_metrics=frozenset({"gpu_count"})
    ),
    "sdc": Evidence(metrics=frozenset({"gemm_mismatches", "memory_mismatches"})),
    "throttle": Evidence(metrics=frozenset({"throttle_time", "clock_drop"})),
    "slow_gemm": Evidence(metrics=frozenset({"gemm_rate", "gemm_rate_per_clock", "burn_rate_per_clock"})),
}


@dataclasses.dataclass(frozen=True)
class Mail:
    """A mail in the sink, as far as scoring cares."""

    subject: str
    text: str


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that had to be so; ``sentence`` says what was expected and, where it is not so, what was found."""

    ok: bool
    sentence: str


@dataclasses.dataclass(frozen=True)
class Score:
    """All checks; the demo succeeds only if every one holds."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is right."""
        return bool(self.checks) and all(check.ok for check in self.checks)


def critical_findings(report: RunReport) -> list[Finding]:
    """Findings that failed the node, in the order of its stages."""
    return [
        finding
        for stage in report.stages
        for finding in stage.judgement.findings
        if finding.severity is Severity.CRITICAL
    ]


def score(
    reports: Sequence[RunReport],
    planted: Iterable[Planted],
    mails: Sequence[Mail],
    *,
    host: str,
    simulated: Sequence[str],
) -> Score:
    """Examine a finished demo: one run a node (``host`` and each of ``simulated``), one mail a run."""
    faults = {fault.node: fault for fault in planted}
    of_node = {report.node: report for report in reports}
    checks: list[Check] = []
    for node in (host, *simulated):
        report = of_node.get(node)
        if report is None:
            checks.append(Check(False, f"{node} has no finished run"))
            continue
        fault = faults.get(node)
        checks.append(_check_fault(report, fault) if fault else _check_healthy(report))
        checks.append(_check_marking(report, simulated=node in simulated))
        checks.append(_check_mail(report, mails, simulated=node in simulated))
    checks.append(
        Check(len(reports) == len(of_node) == 1 + len(simulated), f"one run a node: {len(reports)} runs finished")
    )
    return Score(tuple(checks))


def _check_fault(report: RunReport, fault: Planted) -> Check:
    """The node failed, by the right kind of finding on the right GPU, and no other GPU was accused."""
    expected = f"{report.node} must fail for {fault.kind} on {fault.device}"
    evidence = EVIDENCE[fault.kind]
    findings = critical_findings(report)
    if report.verdict is not Verdict.FAIL or report.state_after != REMOVED:
        return Check(False, f"{expected}, but its verdict is {report.verdict} and it went to {report.state_after}")
    if not any(finding.device == fault.device and evidence.names(finding) for finding in findings):
        return Check(False, f"{expected}, but was failed for {_list(findings)}")
    accused = [finding for finding in findings if not _belongs(finding, fault, evidence)]
    if accused:
        return Check(False, f"{expected} and nothing else, but was also failed for {_list(accused)}")
    return Check(True, expected)


def _belongs(finding: Finding, fault: Planted, evidence: Evidence) -> bool:
    return finding.device == fault.device or (finding.device == "node" and finding.metric in evidence.node_metrics)


def _check_healthy(report: RunReport) -> Check:
    expected = f"{report.node} must not fail, and become {ENTERED}"
    findings = critical_findings(report)
    if report.verdict in HEALTHY and report.state_after == ENTERED and not findings:
        return Check(True, expected)
    what = f"; findings: {_list(findings)}" if findings else ""
    return Check(False, f"{expected}, but its verdict is {report.verdict} and it went to {report.state_after}{what}")


def _check_marking(report: RunReport, *, simulated: bool) -> Check:
    """A run and each of its stages say whether the hardware was simulated, and say it truly."""
    word = "simulated" if simulated else "real"
    marks = [report.simulated, *(stage.judgement.simulated for stage in report.stages)]
    wrong = sum(mark is not simulated for mark in marks)
    return Check(wrong == 0, f"{report.node} must be marked {word} throughout: {wrong} of {len(marks)} marks are wrong")


def _check_mail(report: RunReport, mails: Sequence[Mail], *, simulated: bool) -> Check:
    """Exactly one mail tells of the run, and says so if it was simulated."""
    mine = [mail for mail in mails if report.node in mail.subject]
    if len(mine) != 1:
        return Check(False, f"{report.node} must have one mail in the sink: there are {len(mine)}")
    subject, text = (SIMULATED in part.lower() for part in (mine[0].subject, mine[0].text))
    if simulated and not (subject and text):
        return Check(False, f"the mail on {report.node} must say in subject and text that it is simulated")
    if not simulated and subject:
        return Check(False, f"the mail on {report.node} must not be marked simulated")
    return Check(True, f"{report.node} must have one mail in the sink, {'marked' if simulated else 'not'} simulated")


def _list(findings: Sequence[Finding]) -> str:
    named = [f"{finding.metric} on {finding.device} ({finding.rule})" for finding in findings]
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "") or "nothing"
