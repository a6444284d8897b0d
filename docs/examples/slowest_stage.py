"""A section of a run's report: the stage that took longest."""

from __future__ import annotations

from muster_criteria.words import duration
from muster_reports.limits import Limits
from muster_reports.model import RunReport, Section

ORDER = 20


def section(report: RunReport, limits: Limits) -> Section | None:
    """Returns the stage that took longest, with its duration; None if no stage has one."""
    timed = [(stage.duration_s, stage.judgement.stage) for stage in report.stages if stage.duration_s is not None]
    if not timed:
        return None
    longest, stage = max(timed)
    return Section("Slowest stage", f"{stage}, {duration(longest)}")
