"""What the node is and what ran on it."""

from __future__ import annotations

from muster_reports.limits import Limits, cut
from muster_reports.model import RunReport, Section

ORDER = 90


def section(report: RunReport, limits: Limits) -> Section:
    """Identity, then environment; each is cut on its own, so that neither hides the other."""
    identity, more_identity = cut(report.identity, limits.rows)
    environment, more_environment = cut(report.environment, limits.rows)
    rows = (*identity, *environment)
    sentence = "" if rows else "The node reported no identity."
    return Section("Identity and environment", sentence, rows=rows, more=more_identity + more_environment)
