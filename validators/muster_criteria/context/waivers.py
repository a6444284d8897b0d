"""Waivers: a person accepts a known finding until a date; and the effect on a verdict.

A waived finding keeps its severity and is marked with the person's name. A stage whose critical findings are all waived
is judged by the rest and is at best WARN, never PASS. Later findings are covered only as far as what the person saw: a
clearly worse figure, another text or another incident is another finding.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence

from muster_criteria.devices import kind_of
from muster_criteria.model import COMMON_CAUSE, Extent, Finding, Judgement, Severity, Verdict, subject, symptom_name
from muster_criteria.stage.verdict import verdict_of

CHASSIS = ("system", "board")
WORSE_SHARE = 0.03
"""A figure may be worse than the waived one by this share: chosen here, the least effect for which the fleet's rules
fail a device (docs/science.md). A count may not be higher at all."""
COUNTED = "count"
"""The unit of counts."""


@dataclasses.dataclass(frozen=True)
class Waiver:
    """One waiver. ``subject``: the part or place that it covers (see ``subject_of``), empty if no serial was known;
    ``machine``: which of the machines of the node's name it was given for. ``severity``, ``observed`` and ``extents``:
    of the finding then, in each current verdict that had it; a graver one, or one that goes further, is not covered.

    It holds from ``created_at`` until ``until``, if it is not revoked before.
    """

    id: int
    node: str
    subject: str
    rule: str
    metric: str
    device: str
    labels: tuple[tuple[str, str], ...]
    person: str
    reason: str
    created_at: datetime.datetime
    until: datetime.datetime
    revoked_at: datetime.datetime | None = None
    finding: str = ""
    machine: int = 1
    severity: Severity = Severity.CRITICAL
    observed: str = ""
    extents: tuple[Extent, ...] = ()

    def holds(self, now: datetime.datetime) -> bool:
        """Returns whether it is in effect at that moment."""
        return self.revoked_at is None and now < self.until

    @property
    def what(self) -> str:
        """What it accepts of the part: "gemm_rate (dtype bf16, rule floor)"."""
        labels = (f"{key} {value}" for key, value in self.labels)
        return f"{self.metric} ({', '.join((*labels, f'rule {self.rule}'))})"

    @property
    def last_day(self) -> datetime.date:
        """The last day (UTC) on which it is in effect."""
        return (self.until - datetime.timedelta.resolution).date()

    def __str__(self) -> str:
        return f"by {self.person} until {self.last_day}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Machine:
    """A node's name, its serials by slot, and which of the machines of that name it is (1 is the first)."""

    node: str
    serials: Mapping[str, str]
    number: int = 1


def finding_id(node: str, finding: Finding) -> str:
    """The id of a finding: the same for the same rule, metric, labels and device of the same node, whatever run."""
    key = json.dumps([node, finding.rule, finding.metric, finding.device, sorted(finding.labels)])
    return "f-" + hashlib.sha256(key.encode()).hexdigest()[:12]


def subject_of(device: str, serials: Mapping[str, str]) -> str:
    """The part in slot ``device``, else that slot of this chassis, else ""; waivers and suspicions follow it.

    A waiver follows the part to any slot of any node, and stays behind when the part is taken out.
    """
    if device in serials:
        return f"{kind_of(device)} {serials[device]}"
    chassis = next((f"{slot} {serials[slot]}" for slot in CHASSIS if slot in serials), "")
    return f"{device} of {chassis}" if chassis else ""


def concerns(waiver: Waiver, machine: Machine) -> bool:
    """Returns whether the waiver covers a part or place of this machine.

    Without a serial it covers the device of that name, while the same machine has the node's name.
    """
    if not waiver.subject:
        return waiver.node == machine.node and waiver.machine == machine.number
    places = {waiver.device, *machine.serials}
    return waiver.subject in {subject_of(place, machine.serials) for place in places}


def covers(waiver: Waiver, finding: Finding, machine: Machine) -> bool:
    """Returns whether the waiver covers this finding of this machine, if it is in effect."""
    if finding.severity.rank < waiver.severity.rank:
        return False
    if waiver.extents and all(goes_further(finding.extent, each) for each in waiver.extents):
        return False
    if (waiver.rule, waiver.metric) != (finding.rule, finding.metric) or set(waiver.labels) != set(finding.labels):
        return False
    if waiver.subject:
        return waiver.subject == subject_of(finding.device, machine.serials)
    return waiver.device == finding.device and concerns(waiver, machine)


def goes_further(found: Extent | None, waived: Extent) -> bool:
    """Returns whether what was found is clearly worse than what was waived, or something else."""
    if found is None:
        return False
    now, then = found.value, waived.value
    if isinstance(now, str) or isinstance(then, str):
        return now != then
    if (found.unit, found.worse) != (waived.unit, waived.worse):
        return True
    slack = 0.0 if found.unit == COUNTED else WORSE_SHARE * abs(then)
    return now < then - slack if found.worse == "lower" else now > then + slack


def marked(findings: Iterable[Finding], holding: Sequence[Waiver], machine: Machine) -> tuple[Finding, ...]:
    """Returns the findings, each with the waiver that covers it (``waived``: "" without one).

    A common cause only explains other findings: it is waived with them, once all of them are.
    """
    own = [
        dataclasses.replace(finding, waived=next((str(each) for each in holding if covers(each, finding, machine)), ""))
        for finding in findings
    ]
    return tuple(
        dataclasses.replace(finding, waived=_with_explained(finding, own))
        if finding.rule == COMMON_CAUSE and not finding.waived
        else finding
        for finding in own
    )


def _with_explained(cause: Finding, findings: Iterable[Finding]) -> str:
    explained = [
        each.waived
        for each in findings
        if each.severity is Severity.CRITICAL
        and each.rule != COMMON_CAUSE
        and cause.metric in (subject(each), symptom_name(each))
    ]
    return explained[0] if explained and all(explained) else ""


def waive(judgement: Judgement, waivers: Iterable[Waiver], machine: Machine, now: datetime.datetime) -> Judgement:
    """The judgement with each waived finding marked, and its verdict as the waivers that hold at ``now`` leave it."""
    holding = [waiver for waiver in waivers if waiver.holds(now)]
    findings = marked(judgement.findings, holding, machine)
    if findings == judgement.findings:
        return judgement
    known = dataclasses.replace(judgement, findings=findings)
    critical = [finding for finding in findings if finding.severity is Severity.CRITICAL]
    if judgement.verdict is not Verdict.FAIL or not critical or not all(finding.waived for finding in critical):
        return known
    softened = [dataclasses.replace(each, severity=Severity.WARNING) for each in critical]
    verdict, _ = verdict_of(softened, judgement.coverage)
    lead = f"{critical[0].summary.rstrip('.')} (waived {critical[0].waived})"
    more = f", and {len(critical) - 1} more waived" if len(critical) > 1 else ""
    return dataclasses.replace(known, verdict=verdict, reason=f"{lead}{more}.")
