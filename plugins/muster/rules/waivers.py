"""Waivers applied to judgements and findings of one machine, by ``muster_criteria.context.waivers``. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Sequence

from muster_criteria.context import waivers
from muster_criteria.context.waivers import Machine, Waiver
from muster_criteria.model import Finding, Judgement


def apply(judgement: Judgement, given: Iterable[Waiver], machine: Machine, moment: datetime.datetime) -> Judgement:
    """Returns the judgement with the waivers valid at ``moment`` applied, its findings with their ids."""
    waived = waivers.waive(judgement, given, machine, moment)
    findings = tuple(dataclasses.replace(each, id=waivers.finding_id(machine.node, each)) for each in waived.findings)
    return dataclasses.replace(waived, findings=findings)


def mark(findings: Iterable[Finding], valid: Sequence[Waiver], machine: Machine) -> list[Finding]:
    """Returns the findings, each with the valid waiver that covers it (``waived``: "" without one)."""
    return [
        dataclasses.replace(
            finding, waived=next((str(each) for each in valid if waivers.covers(each, finding, machine)), "")
        )
        for finding in findings
    ]
