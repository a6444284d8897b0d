"""What was read of a node's BMC, as a report: its sensors are states, the new entries of its logs events."""

from __future__ import annotations

import datetime

from muster.model.health import BMC, BmcCursor, Report
from muster_criteria.health import bmc
from muster_criteria.health.bmc import Shown
from muster_criteria.health.policy import Bmcs


def report_of(cursor: BmcCursor, shown: Shown, policy: Bmcs, now: datetime.datetime) -> Report:
    """Returns what a reading shows of the cursor's node, with the cursor for the next."""
    seen, known = bmc.read(shown, cursor.known, policy)
    after = BmcCursor(cursor.node, known, now, cursor.read_at if shown.trouble else now)
    return Report(cursor.node, BMC, tuple(seen), bmc=after)
