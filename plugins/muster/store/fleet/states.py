"""Which row a source's reading continues, which states it ends, and which states end by themselves.

Internal to ``muster.store``.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

from muster.model.health import BMC, SWEEP
from muster.store.database.health import ENDED, HealthRow
from muster_criteria.health.readings import Reading

READ_AGAIN = (SWEEP, BMC)
"""The sources that read each state again and again. A state of another source ends after ``SILENT`` without report."""
SILENT = datetime.timedelta(days=1)

Rows = dict[tuple[str, str], list[HealthRow]]
"""(part, check) → rows of the present machine and spell, oldest first."""

TEXT_MAX = 500
"""Characters of an observation's text that are kept."""


def meant(seen: Reading, part: str, source: str, known: Rows) -> list[tuple[Reading, str]]:
    """The (reading, part) pairs that a reading stands for. A good state whose check ends with "/" stands for the check
    and all below it, of its part, or of all parts if it is the node's. [] for an event that was recorded before.
    """
    if _is_repeated(seen, [each for each in known.get((part, seen.check), []) if each.source == source]):
        return []
    if seen.bad is not False or not seen.check.endswith("/"):
        return [(seen, part)]
    return [
        (dataclasses.replace(seen, check=check), of)
        for (of, check), rows in known.items()
        if f"{check}/".startswith(seen.check) and part in (of, "node")
        if any(each.source == source and each.bad is not None and not each.over for each in rows)
    ]


def end_silent(rows: Sequence[HealthRow], at: datetime.datetime) -> None:
    """End states that their source has not reported for long: its report that they are good again was lost."""
    for row in rows:
        silent = row.source not in READ_AGAIN and row.state_at is not None and row.state_at < at - SILENT
        if silent and row.bad is not None and not row.over:
            for column, value in ENDED.items():
                setattr(row, column, value)


def row_for(rows: Sequence[HealthRow], boot_id: str, seen: Reading) -> HealthRow | None:
    """The row that the reading continues: that of a state that is not over, in any boot, or else the boot's row."""
    if seen.bad is not None and (open_ := [each for each in rows if each.bad is not None and not each.over]):
        return open_[-1]
    return next((each for each in rows if each.boot_id == boot_id), None)


def _is_repeated(seen: Reading, rows: Sequence[HealthRow]) -> bool:
    """Whether an event is the last one of these rows or earlier: a poller's windows overlap."""
    if seen.bad is not None or seen.at is None:
        return False
    known = [(each.state_at, each.value) for each in rows if each.bad is None and each.state_at is not None]
    return any(seen.at < at or (seen.at == at and seen.value[:TEXT_MAX] == value) for at, value in known)


def recent_of(rows: Sequence[HealthRow], seen: Reading) -> list[Any]:
    """When an event was seen in former boots, for the new row of this boot: otherwise a node that reboots often would
    lose its count.
    """
    former = [each for each in rows if each.bad is None] if seen.bad is None else []
    return list(former[-1].recent or ()) if former else []
