"""The next steps of a report: the words for parts and actions, and sentences made of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

from muster_criteria.model import COMMON_CAUSE, Action, FaultClass, Finding, Severity, Verdict
from muster_reports.model import RunReport, StageReport
from muster_reports.text import device_list

PART = {
    FaultClass.GPU: "GPU",
    FaultClass.HBM: "GPU memory (HBM)",
    FaultClass.NVLINK: "NVLink",
    FaultClass.PCIE: "PCIe link",
    FaultClass.NIC: "network card",
    FaultClass.CABLE: "cable",
    FaultClass.CPU: "CPU",
    FaultClass.DIMM: "memory module",
    FaultClass.DISK: "disk",
    FaultClass.PSU: "power supply",
    FaultClass.COOLING: "cooling",
    FaultClass.SOFTWARE: "software",
    FaultClass.FACILITY: "facility (air, power or shared storage)",
    FaultClass.NODE: "the node as a whole",
}

ADVICE = {
    Action.NONE: "nothing to do",
    Action.RETEST: "test again",
    Action.RESEAT: "reseat",
    Action.RESET: "reset",
    Action.REBOOT: "reboot the node",
    Action.RMA: "replace (RMA)",
    Action.ASK_FACILITY: "ask the facility about inlet air and power",
    Action.FIX_SOFTWARE: "fix its software",
    Action.INSPECT: "inspect",
}

STEP = {
    Action.RETEST: "Test {} again",
    Action.RESEAT: "Reseat {}",
    Action.RESET: "Reset {}",
    Action.REBOOT: "Reboot the node ({})",
    Action.RMA: "Replace {} (RMA)",
    Action.ASK_FACILITY: "Ask the facility about inlet air and power ({})",
    Action.FIX_SOFTWARE: "Fix the software ({})",
    Action.INSPECT: "Inspect {}",
}

_SOME_UNJUDGED = (
    "Some figures could not be judged: they have no limit, no eight similar devices of other nodes and no history"
)

_COMMAND = re.compile(r"`(muster [^`]+)`")
_ANSWER = "answer its question on the Fleet page (Approvals) or by muster approve, which lists it"
BLOCK = "cluster_qualification"
"""The id of the DAG that tests nodes as a block."""
AWAITS_REPAIR = frozenset({"quarantine", "triage", "repair", "rma"})
OUT_OF_SERVICE = AWAITS_REPAIR | {"retired"}
SERVING = frozenset({"production", "revalidation"})
_ON_A_PART = frozenset({Action.RESEAT, Action.RESET, Action.RMA, Action.INSPECT})
_NO_PART = frozenset({FaultClass.NODE, FaultClass.FACILITY})


def next_steps(report: RunReport) -> tuple[str, ...]:
    """Returns the actions for the reader, gravest first; at most six sentences."""
    first = (f"Decide, since the verdict is held: {_ways_out(report)}.",) if report.why_held else ()
    steps = (*first, *(_part_steps(report, Severity.CRITICAL) or _part_steps(report, Severity.WARNING))[:3])
    closing = _closing(report, bool(steps)) if report.state_after != "retired" else ""
    out = f"The node is out of service: {report.state_after}." if report.state_after in OUT_OF_SERVICE else ""
    return tuple(filter(None, (*steps, closing, out, report.replacement)))


def _closing(report: RunReport, after_steps: bool) -> str:
    """What follows from the verdict and the state of the node; ``after_steps``: whether steps were named before."""
    admit = f"muster admit {shlex.quote(report.node)} --reason 'why'"
    match report.verdict:
        case Verdict.PASS | Verdict.PROVISIONAL if report.state_after in AWAITS_REPAIR:
            return f"It was withdrawn for another reason than this test: once that is gone, {_retest(report)}"
        case Verdict.PASS | Verdict.WARN | Verdict.PROVISIONAL if _left_service(report):
            why = f" ({report.why_left})" if report.why_left else ""
            return (
                f"It has left production{why}: a revalidation returns a node on a full-coverage PASS if nothing else "
                "stands against it, or if all that it finds was waived when a person admitted the node. Resolve what "
                f"was found, or waive it, and have the node admitted again: {admit}"
            )
        case Verdict.PASS if report.spare and _approval_is_asked(report):
            return f"It is kept as a spare, for the place of a node that leaves production. To use it now: {admit}"
        case Verdict.PASS | Verdict.WARN if _approval_is_asked(report):
            return f"It does not enter production by itself: {_ANSWER}."
        case Verdict.WARN | Verdict.PROVISIONAL | Verdict.INCONCLUSIVE if _serves(report):
            return "It goes on serving. Remove the cause, if one is named; its next test starts by itself."
        case Verdict.PASS:
            return _after_pass(report, after_steps, admit)
        case Verdict.WARN if report.state_after == "qualified":
            return f"Resolve the findings below, or accept them and have it admitted: {admit}"
        case Verdict.WARN:
            return f"Resolve the findings below, then {_retest(report)}"
        case Verdict.PROVISIONAL:
            return _after_provisional(report)
        case Verdict.FAIL:
            return _after_fail(report, after_steps)
        case Verdict.INCONCLUSIVE | Verdict.SKIPPED:
            return _after_no_test(report)


def _after_pass(report: RunReport, after_steps: bool, admit: str) -> str:
    if report.state_after == "qualified":
        return (
            "It does not serve yet: it waits to be tested in a block with other qualified nodes: "
            f"muster block {shlex.quote(report.node)} OTHER… --reason 'why'; muster status names them. "
            f"Without others: {admit}"
        )
    if report.state_after == "registered":
        return f"It does not serve: a whole test qualifies it: muster qualify {shlex.quote(report.node)} --reason 'why'"
    return "" if after_steps else "Nothing to do."


def _after_provisional(report: RunReport) -> str:
    if report.dag_id == BLOCK:
        return f"Some figures were compared with nothing: {_ANSWER}, or test it in a larger block."
    if report.state_after == "qualified":
        return (
            f"{_SOME_UNJUDGED}. Where its SKU compares them and enough nodes have it, Muster re-evaluates the node "
            "once these were tested; muster status says whether it waits for that, or for a person, who may approve it."
        )
    return f"{_SOME_UNJUDGED}. A person may approve the node, or it is tested again."


def _after_no_test(report: RunReport) -> str:
    if report.state_after == "revalidation":
        return "It is out of service until it passes. Remove the cause; the next test starts within the hour."
    if report.verdict is Verdict.INCONCLUSIVE:
        return (
            "Something required could not be measured; this does not count against the hardware. "
            f"Remove the cause{_way_to_remove(report)}, then {_retest(report)}"
        )
    if _serves(report):
        return "Nothing was tested, and the node goes on serving. Remove the cause; the next test starts by itself."
    return f"Nothing was tested. Remove the cause, then {_retest(report)}"


def _after_fail(report: RunReport, after_steps: bool) -> str:
    if report.why_held:
        return ""
    if _serves(report):
        name = shlex.quote(report.node)
        return (
            f"It goes on serving although it failed: muster node move {name} quarantine --reason 'why' withdraws "
            f"it; once the cause is gone, muster revalidate {name} --reason 'why' tests it again."
        )
    return f"Then {_retest(report)}" if after_steps else f"Resolve what failed below, then {_retest(report)}"


def _left_service(report: RunReport) -> bool:
    return report.state_before in SERVING and report.state_after == "qualified"


def _serves(report: RunReport) -> bool:
    return report.state_after == "production"


def _retest(report: RunReport) -> str:
    """The way to another test, from where the node is."""
    if report.state_after == "qualified" and report.dag_id == BLOCK:
        return f"test it in a block again: muster block {shlex.quote(report.node)} OTHER… --reason 'why'"
    return way_to_test(report.node, report.state_after)


def way_to_test(node: str, state: str) -> str:
    """The commands for another test of a node in ``state``."""
    name = shlex.quote(node)
    back = f"muster node move {name} registered --reason 'why', and " if state in OUT_OF_SERVICE else ""
    command = "revalidate" if state in SERVING else "qualify"
    return f"{back}test again: muster {command} {name} --reason 'why'"


def _way_to_remove(report: RunReport) -> str:
    """The command that a stage's reason names to remove its cause, as after a changed host key; "" if none does."""
    reasons = " ".join(stage.judgement.reason for stage in report.stages)
    named = _COMMAND.search(f"{report.headline} {reasons}")
    return f" ({named[1]})" if named else ""


def _approval_is_asked(report: RunReport) -> bool:
    """Returns whether the node passed in a block, but needs a person's approval for production."""
    together = any(stage.judgement.stage == "cluster_validation" for stage in report.stages)
    return together and report.state_after == "qualified"


def _ways_out(report: RunReport) -> str:
    name = shlex.quote(report.node)
    after_the_cause = f"once the cause is gone, muster qualify {name}"
    other = f"muster node keep {name} --reason 'why'" if _serves(report) else after_the_cause
    return f"muster node move {name} quarantine --reason 'why', or {other}"


def _part_steps(report: RunReport, severity: Severity) -> list[str]:
    """One sentence for each action and part among the findings of that severity, common causes first."""
    serials = serials_of(report.stages)
    found = [
        finding
        for finding in report.findings
        if finding.severity is severity and finding.action is not Action.NONE and not finding.waived
    ]
    grouped: dict[tuple[Action, FaultClass], list[Finding]] = {}
    for finding in sorted(found, key=lambda each: each.rule != COMMON_CAUSE):
        grouped.setdefault((finding.action, finding.fault_class), []).append(finding)
    steps = []
    for (action, part), alike in grouped.items():
        devices = [finding.device for finding in alike]
        serial = f", {serials[devices[0]]}" if len(set(devices)) == 1 and devices[0] in serials else ""
        of_node = set(devices) == {"node"} and action in _ON_A_PART and part not in _NO_PART
        what = f"the {PART[part]} of {report.node}" if of_node else device_list(devices)
        steps.append(f"{STEP[action].format(what)} (suspected part: {PART[part]}{least_sure(alike)}{serial}).")
    return steps


def least_sure(findings: Iterable[Finding]) -> str:
    """The lowest confidence, as ", confidence 80 %"; "" at 1, since a broken rule is not an estimate."""
    least = min(finding.confidence for finding in findings)
    return f", confidence {min(round(100 * least), 99)} %" if least < 1 else ""


def serials_of(stages: Sequence[StageReport]) -> dict[str, str]:
    """{device: "gpu3 serial 1650…"}, from the facts that intake recorded; not the serials of parts inside a device."""
    seen = (row for stage in stages for row in stage.judgement.observations)
    known = (row for row in seen if row.metric in ("gpu_serial", "serial_system") and row.text)
    return {row.device: f"{row.device} serial {row.text}" for row in known}
