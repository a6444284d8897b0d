"""Waivers applied to judgements and findings of one machine, by ``muster_criteria.context.waivers``. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable

from muster_criteria.context import waivers
from muster_criteria.context.waivers import Machine, Waiver
from muster_criteria.model import Finding, Judgement


@dataclasses.dataclass(frozen=True)
class Standing:
    """What decides which findings of a machine are waived: the waivers valid at ``moment``, and its parts then."""

    waivers: tuple[Waiver, ...]
    machine: Machine
    moment: datetime.datetime


def apply(judgement: Judgement, standing: Standing) -> Judgement:
    """Returns the judgement as the waivers leave it, its findings with their ids."""
    machine = standing.machine
    waived = waivers.waive(judgement, standing.waivers, machine, standing.moment)
    findings = tuple(dataclasses.replace(each, id=waivers.finding_id(machine.node, each)) for each in waived.findings)
    return dataclasses.replace(waived, findings=findings)


def mark(findings: Iterable[Finding], standing: Standing) -> tuple[Finding, ...]:
    """Returns the findings, each with the valid waiver that covers it (``waived``: "" without one)."""
    return waivers.marked(findings, standing.waivers, standing.machine)
