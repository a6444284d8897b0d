"""Waivers: a person's word that a known finding is borne with until a date, and what that does to a verdict.

A waiver deletes nothing and softens no severity: the finding stays, marked with the person's name. It takes from a
critical finding only the power to fail the stage by itself: a stage whose critical findings are all waived is judged
by the rest, and is at best WARN. It is therefore never a PASS, and opens no door that only a PASS opens.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Mapping

from muster_criteria.model import Finding, Judgement, Severity, Verdict
from muster_criteria.stage.verdict import verdict_of

CHASSIS = ("system", "board")


@dataclasses.dataclass(frozen=True)
class Waiver:
    """One waiver. ``subject`` is the part or place that it is about (see ``subject_of``), empty if no serial was known.

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

    def holds(self, now: datetime.datetime) -> bool:
        """Whether it has any effect at that moment."""
        return self.revoked_at is None and now < self.until

    def __str__(self) -> str:
        return f"by {self.person} until {self.until:%Y-%m-%d}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Machine:
    """Whose findings are looked at: the node's name, the serials that sit in it by slot, and since when it is there."""

    node: str
    serials: Mapping[str, str]
    since: datetime.datetime


def finding_id(node: str, finding: Finding) -> str:
    """The id of a finding: the same for the same rule, metric, labels and device of the same node, whatever run."""
    key = json.dumps([node, finding.rule, finding.metric, finding.device, sorted(finding.labels)])
    return "f-" + hashlib.sha256(key.encode()).hexdigest()[:12]


def subject_of(device: str, serials: Mapping[str, str]) -> str:
    """What carries a finding on ``device``: the part that sits there, else that place in this chassis, else "".

    A waiver follows the part to any slot of any node, and stays behind when the part is taken out.
    """
    if device in serials:
        return f"{re.sub(r'[0-9]+$', '', device.partition(':')[0])} {serials[device]}"
    chassis = next((f"{slot} {serials[slot]}" for slot in CHASSIS if slot in serials), "")
    return f"{device} of {chassis}" if chassis else ""


def concerns(waiver: Waiver, machine: Machine) -> bool:
    """Whether the waiver is about a part or place of this machine.

    Where no serial was known when it was given, it is about that device of that node, as long as no other machine has
    taken the node's place.
    """
    if not waiver.subject:
        return waiver.node == machine.node and waiver.created_at >= machine.since
    places = {waiver.device, *machine.serials}
    return waiver.subject in {subject_of(place, machine.serials) for place in places}


def covers(waiver: Waiver, finding: Finding, machine: Machine) -> bool:
    """Whether the waiver, if it holds, is about this finding of this machine."""
    if (waiver.rule, waiver.metric) != (finding.rule, finding.metric) or set(waiver.labels) != set(finding.labels):
        return False
    if waiver.subject:
        return waiver.subject == subject_of(finding.device, machine.serials)
    return waiver.device == finding.device and concerns(waiver, machine)


def waive(judgement: Judgement, waivers: Iterable[Waiver], machine: Machine, now: datetime.datetime) -> Judgement:
    """The judgement with each waived finding marked, and its verdict as the waivers that hold at ``now`` leave it."""
    holding = [waiver for waiver in waivers if waiver.holds(now)]
    findings = tuple(
        dataclasses.replace(finding, waived=next((str(each) for each in holding if covers(each, finding, machine)), ""))
        for finding in judgement.findings
    )
    if findings == judgement.findings:
        return judgement
    marked = dataclasses.replace(judgement, findings=findings)
    critical = [finding for finding in findings if finding.severity is Severity.CRITICAL]
    if judgement.verdict is not Verdict.FAIL or not critical or not all(finding.waived for finding in critical):
        return marked
    softened = [dataclasses.replace(each, severity=Severity.WARNING) for each in critical]
    verdict, _ = verdict_of(softened, judgement.coverage)
    told = f"{critical[0].summary.rstrip('.')} (waived {critical[0].waived})"
    more = f", and {len(critical) - 1} more waived" if len(critical) > 1 else ""
    return dataclasses.replace(marked, verdict=verdict, reason=f"{told}{more}.")
