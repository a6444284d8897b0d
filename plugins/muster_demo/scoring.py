"""The demo's examiner: compares verdicts with the planted faults. Pure; nothing else reads the answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from muster.model.events import Approval
from muster.rules.lifecycle.decisions import is_person
from muster_criteria.model import Finding, Severity, Verdict
from muster_demo.draw import Planted
from muster_reports.model import RunReport

HEALTHY = frozenset({Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL})
"""Verdicts of a node without a fault. A new fleet has neither peers nor history to judge everything by."""

QUALIFIED = "qualified"
SERVES = "production"
REMOVED = "quarantine"
SIMULATED = "simulated"
NAMED_BY = {"clock_lock": "straggler", "sdc": "repeats_itself"}
"""The faults that appear before a block, and the rule of the finding by which it names each: the GPU that all others
wait for, and the one whose results differ in a second run."""
NODE = "node"
"""The device of a finding about a whole node, such as the number of its GPUs."""
OURS = "muster: "
"""Begins the Reason of every node that Muster drained."""

HEADLINE_LEAST = 40
"""Characters of a failed node's headline that its Reason holds at least."""


@dataclasses.dataclass(frozen=True)
class Service:
    """A node's way into service, and its runs there.

    ``state``: at the end. ``entered_by``: who admitted it to production ("muster" for the gate, "" if it never did).
    ``on_full_pass``: whether that rests on a full-coverage PASS. ``judged_again``: how often a verdict changed when
    peers became known. ``proofs``: its qualifications after a repair.
    """

    node: str
    state: str
    entered_by: str = ""
    on_full_pass: bool = False
    approvals: tuple[Approval, ...] = ()
    validations: tuple[RunReport, ...] = ()
    revalidations: tuple[RunReport, ...] = ()
    judged_again: int = 0
    proofs: tuple[RunReport, ...] = ()

    @property
    def reports(self) -> tuple[RunReport, ...]:
        """Every run after its first qualification."""
        return (*self.validations, *self.revalidations, *self.proofs)

    @property
    def mails(self) -> int:
        """How many mails there are about these runs and about verdicts that changed."""
        return sum(map(judged, self.reports)) + self.judged_again

    @property
    def revalidated(self) -> bool:
        """Whether it was tested again in production, passed and stayed there."""
        return any(
            report.verdict is Verdict.PASS and (report.state_before, report.state_after) == (SERVES, SERVES)
            for report in self.revalidations
        )


@dataclasses.dataclass(frozen=True)
class Aftermath:
    """What became of a fault that appeared in service, between tests.

    ``left_for``: why the node left production. ``evidence``: the archive, ``whole``: as it was written, and marked as
    simulated. ``repairs``: each attempt with its outcome. ``proved``: tests that can see the fault passed after it, and
    the incident is closed. ``replaced_by``: the spare that was admitted for the node's place.
    """

    fault: Planted
    left_for: str = ""
    evidence: str = ""
    whole: bool = False
    repairs: tuple[str, ...] = ()
    proved: bool = False
    replaced_by: str = ""


@dataclasses.dataclass(frozen=True)
class InSlurm:
    """What the demo's Slurm shows at the end, and what its users' jobs met.

    ``ran``: nodes that took a job once they were admitted. ``gave_way``: seconds that a job waited for a node under
    test, by node. ``closed``: the Reason of each drained node.
    """

    ran: tuple[str, ...]
    gave_way: Mapping[str, float]
    closed: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Mail:
    """What scoring needs of a mail in the sink."""

    subject: str
    text: str


@dataclasses.dataclass(frozen=True)
class Check:
    """One expectation; ``sentence`` states it and, if it does not hold, what was found instead. ``code``: its kind."""

    code: str
    ok: bool
    sentence: str


@dataclasses.dataclass(frozen=True)
class Score:
    """All checks; the demo succeeds only if every one holds."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether all checks hold."""
        return bool(self.checks) and all(check.ok for check in self.checks)


def judged(report: RunReport) -> bool:
    """Whether a run has a verdict, and so a mail: one that gave way to a user's job has neither."""
    return report.verdict is not Verdict.SKIPPED


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
    services: Mapping[str, Service],
    planted: Iterable[Planted],
    mails: Sequence[Mail],
    *,
    host: str,
    simulated: Sequence[str],
    slurm: InSlurm | None = None,
    in_block: Sequence[Planted] = (),
    aftermath: Aftermath | None = None,
) -> Score:
    """Examine a finished demo: one qualification a node (``host`` and each of ``simulated``), one mail a verdict.

    ``slurm``: None for a demo without Slurm. ``in_block``: faults that a block had to name; empty if none was tested.
    ``aftermath``: None if no node was in service to fail there.
    """
    faults = {fault.node: fault for fault in planted}
    of_node = {report.node: report for report in reports}
    ends = {host: QUALIFIED} | {fault.node: REMOVED for fault in (*faults.values(), *in_block)}
    if aftermath is not None:
        ends[aftermath.fault.node] = QUALIFIED
    checks: list[Check] = []
    for node in (host, *simulated):
        served, is_simulated = services.get(node, Service(node, "nowhere")), node in simulated
        if report := of_node.get(node):
            end = ends.get(node, SERVES)
            checks += _check_node(report, served, faults.get(node), simulated=is_simulated, at_the_end=end)
            checks.append(_check_mails(node, judged(report) + served.mails, mails, simulated=is_simulated))
            if slurm is not None:
                checks.append(_check_slurm(report, served, slurm))
        else:
            checks.append(Check("finished", False, f"{node} has no finished run"))
    checks.append(_check_revalidated(services))
    checks += _check_block(in_block, services)
    checks += _check_aftermath(aftermath, services)
    if slurm is not None:
        checks.append(_check_gave_way(slurm, services))
    one_each = len(reports) == len(of_node) == 1 + len(simulated)
    checks.append(Check("one_run", one_each, f"one run a node: {len(reports)} runs finished"))
    return Score(tuple(checks))


def _check_node(
    report: RunReport, served: Service, fault: Planted | None, *, simulated: bool, at_the_end: str
) -> list[Check]:
    """Its verdict, its service, and how its reports are marked; ``at_the_end``: the state that it must be in then."""
    checks = [_check_fault(report, fault) if fault else _check_healthy(report)]
    checks_service = _check_served if simulated and at_the_end != REMOVED else _check_never_served
    checks.append(checks_service(served, at_the_end))
    return [*checks, _check_marking(report.node, (report, *served.reports), simulated=simulated)]


def _check_revalidated(services: Mapping[str, Service]) -> Check:
    again = ", ".join(served.node for served in services.values() if served.revalidated)
    expected = "a node in production must be tested again, pass, and go on serving"
    return Check("revalidated", bool(again), f"{expected}: {again or 'there is none that did'}")


def _check_fault(report: RunReport, fault: Planted) -> Check:
    """The node failed, for its GPU with the fault and for no other; how the judge names the fault is its own tests'."""
    expected = f"{report.node} must fail for {fault.kind} on {fault.device}"
    findings = critical_findings(report)
    if report.verdict is not Verdict.FAIL or report.state_after != REMOVED:
        return Check("fault", False, f"{expected}, but its verdict is {report.verdict}, its state {report.state_after}")
    if not any(finding.device == fault.device for finding in findings):
        return Check("fault", False, f"{expected}, but was failed for {_list(findings)}")
    others = [finding for finding in findings if finding.device not in (fault.device, NODE)]
    if others:
        return Check("fault", False, f"{expected} and nothing else, but was also failed for {_list(others)}")
    return Check("fault", True, expected)


def _check_healthy(report: RunReport) -> Check:
    expected = f"{report.node} must not fail, and become {QUALIFIED}"
    findings = critical_findings(report)
    if report.verdict in HEALTHY and report.state_after == QUALIFIED and not findings:
        return Check("healthy", True, expected)
    what = f"; findings: {_list(findings)}" if findings else ""
    ended = f"its verdict is {report.verdict}, its state {report.state_after}"
    return Check("healthy", False, f"{expected}, but {ended}{what}")


def _check_served(served: Service, at_the_end: str) -> Check:
    """It entered production on a full-coverage PASS or a named person's approval, after a validation with others.

    ``at_the_end``: its state then; a node that was repaired is qualified, since a spare has its place.
    """
    ends = "be there at the end" if at_the_end == SERVES else f"be {at_the_end} at the end, after its repair"
    expected = f"{served.node} must be validated with others, enter production and {ends}"
    if not any(report.verdict in (Verdict.PASS, Verdict.WARN) for report in served.validations):
        verdicts = ", ".join(f"{report.verdict}: {report.headline}" for report in served.validations)
        return Check("served", False, f"{expected}, but its validation with others is {verdicts or 'missing'}")
    if served.state != at_the_end or not served.entered_by:
        return Check("served", False, f"{expected}, but it is in {served.state}")
    if is_person(served.entered_by):
        vouched = any(each.person == served.entered_by and each.reason.strip() for each in served.approvals)
        return Check(
            "served", vouched, f"{expected}: {served.entered_by} admitted it, which must be recorded with a reason"
        )
    return Check("served", served.on_full_pass, f"{expected}: on a full-coverage PASS, since no person admitted it")


def _check_never_served(served: Service, where: str) -> Check:
    expected = f"{served.node} must never have been in production, and end in {where}"
    found = f"it was admitted by {served.entered_by} and" if served.entered_by else "it"
    if served.state == where and not served.entered_by:
        return Check("kept_out", True, expected)
    return Check("kept_out", False, f"{expected}, but {found} is in {served.state}")


def _check_slurm(report: RunReport, served: Service, slurm: InSlurm) -> Check:
    """Slurm obeys the records: users' jobs run where the node serves, and it is closed for our reason elsewhere."""
    reason = slurm.closed.get(served.node)
    if served.state == SERVES:
        expected = f"{served.node} must be open in Slurm and have taken a job"
        found = f"it is closed: {reason}" if reason else "no job ran on it"
        holds = reason is None and served.node in slurm.ran
        return Check("slurm", holds, expected if holds else f"{expected}, but {found}")
    expected = f"{served.node} must be closed in Slurm for Muster's reason"
    last = served.reports[-1] if served.reports else report
    why = last.headline[:HEADLINE_LEAST] if served.state == REMOVED else ""
    holds = reason is not None and reason.startswith(OURS) and why in reason
    return Check(
        "slurm", holds, expected if holds else f"{expected}, but it is {f'closed: {reason}' if reason else 'open'}"
    )


def _check_block(planted: Sequence[Planted], services: Mapping[str, Service]) -> list[Check]:
    """For each fault the last blocks name its GPU, and no other device, for what is wrong with it."""
    if not planted:
        return [Check("block", False, "a block must name the faults of a member: none was tested")]
    checks = []
    for fault in planted:
        named = sorted(
            f"{finding.device} of {node}"
            for node, served in services.items()
            for report in served.validations[-1:]
            for stage in report.stages
            for finding in stage.judgement.findings
            if finding.rule == NAMED_BY[fault.kind]
        )
        expected = f"{fault.device} of {fault.node}"
        sentence = f"its block must name {expected}, and no other, for {fault.kind}"
        checks.append(_check("block", named == [expected], sentence, ", ".join(named) or "it named none"))
    return checks


def _check_aftermath(seen: Aftermath | None, services: Mapping[str, Service]) -> list[Check]:
    """A fault between tests is found by the sweep; then come evidence, a spare, a repair, and its proof."""
    if seen is None:
        return [Check("between_tests", False, "a fault must be found between tests: no node was in service to fail")]
    node, fault = seen.fault.node, f"{seen.fault.kind} on {seen.fault.device}"
    spare = services.get(seen.replaced_by)
    proofs = services[node].proofs if node in services else ()
    passed = bool(proofs) and proofs[-1].verdict in HEALTHY and proofs[-1].state_after == QUALIFIED
    return [
        _check(
            "between_tests", seen.fault.kind in seen.left_for and seen.fault.device in seen.left_for,
            f"{node} must leave service for {fault}, without a test", seen.left_for or "it stayed",
        ),
        _check(
            "evidence", seen.whole,
            f"the evidence of {fault} of {node} must be in one archive, marked as simulated",
            seen.evidence or "there is none",
        ),
        _check(
            "replaced", spare is not None and spare.state == SERVES,
            f"a spare must take the place of {node}", seen.replaced_by or "none did",
        ),
        _check(
            "repaired", seen.repairs == ("reset_gpu: succeeded",) and seen.proved and passed,
            f"{fault} of {node} must be repaired by one reset, which tests prove",
            f"{', '.join(seen.repairs) or 'nothing was tried'}; {'' if seen.proved else 'not '}proved",
        ),
    ]  # fmt: skip


def _check(code: str, holds: bool, expected: str, found: str) -> Check:
    return Check(code, holds, expected if holds else f"{expected}, but: {found}")


def _check_gave_way(slurm: InSlurm, services: Mapping[str, Service]) -> Check:
    expected = "a user's job must take a node back from its test, which costs the node nothing"
    harmed = [node for node in slurm.gave_way if services[node].state != SERVES]
    if harmed or not slurm.gave_way:
        found = f"{harmed[0]} left production" if harmed else "no job did"
        return Check("gave_way", False, f"{expected}, but {found}")
    return Check("gave_way", True, expected)


def _check_marking(node: str, runs: Sequence[RunReport], *, simulated: bool) -> Check:
    """Each run and each of its stages are marked as simulated or real, correctly."""
    kind = "simulated" if simulated else "real"
    marks = [
        mark for report in runs for mark in (report.simulated, *(stage.judgement.simulated for stage in report.stages))
    ]
    wrong = sum(mark is not simulated for mark in marks)
    return Check(
        "marking", wrong == 0, f"{node} must be marked {kind} throughout: {wrong} of {len(marks)} marks are wrong"
    )


def _check_mails(node: str, verdicts: int, mails: Sequence[Mail], *, simulated: bool) -> Check:
    """There is exactly one mail for each verdict, marked if the hardware is simulated."""
    mine = [mail for mail in mails if node in mail.subject]
    expected = f"{node} must have one mail for each of {verdicts} verdicts"
    if len(mine) != verdicts:
        return Check("mails", False, f"{expected} in the sink: there are {len(mine)}")
    marked = [(SIMULATED in mail.subject.lower(), SIMULATED in mail.text.lower()) for mail in mine]
    if simulated and not all(subject and text for subject, text in marked):
        return Check("mails", False, f"every mail on {node} must say in subject and text that it is simulated")
    if not simulated and any(subject for subject, _text in marked):
        return Check("mails", False, f"no mail on {node} must be marked simulated")
    return Check("mails", True, f"{expected}, marked as its hardware is")


def _list(findings: Sequence[Finding]) -> str:
    named = [f"{finding.metric} on {finding.device} ({finding.rule})" for finding in findings]
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "") or "nothing"
