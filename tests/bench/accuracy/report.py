"""The tables that people read, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.bench.accuracy.bars import TUNED, best_rival, worse_than
from tests.bench.accuracy.counting import Count
from tests.bench.accuracy.evaluation import MUSTER, VISITS, Row

HEAD = (
    "fault", "severity", "first visit", "best baseline", "later visits", "best baseline", "right GPU", "minutes",
)  # fmt: skip


def tables(rows: Sequence[Row]) -> str:
    """Healthy nodes failed, by judge; then each class and severity, first and later visits apart."""
    return "\n\n".join([_healthy(rows), _faulty(rows)])


def _healthy(rows: Sequence[Row]) -> str:
    by_visit = {row.visit: row for row in rows if row.cell.fault is None}
    names = [MUSTER, *next(iter(by_visit.values())).others]
    lines = [["healthy nodes failed, in 1,000", *(f"{visit} visit" for visit in VISITS)]]
    for name in names:
        counts = [by_visit[visit].found if name == MUSTER else by_visit[visit].others[name] for visit in VISITS]
        label = f"{name}, tuned" if name in TUNED else name
        lines.append([label, *(_in_thousand(count) for count in counts)])
    retested = [f"{1000 * by_visit[visit].retested.rate:.1f}" for visit in VISITS]
    lines.append(["(measured twice by Muster)", *retested])
    warned = [f"{1000 * by_visit[visit].warned.rate:.1f}" for visit in VISITS]
    lines.append(["(outliers that a person is called for)", *warned])
    return _markdown(lines)


def _faulty(rows: Sequence[Row]) -> str:
    by_cell: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        if row.cell.fault is not None and row.cell.severity is not None:
            by_cell.setdefault((row.cell.fault.name, row.cell.severity.label), {})[row.visit] = row
    lines = [list(HEAD)]
    for (name, label), visits in by_cell.items():
        found = [text for visit in VISITS for text in (_recall(visits[visit]), _rival(visits[visit]))]
        located = sum((row.located for row in visits.values()), Count())
        minutes = [row.mean_minutes for row in visits.values() if not math.isnan(row.mean_minutes)]
        span = "" if not minutes else f"{min(minutes):.0f}" if min(minutes) > max(minutes) - 1 else (
            f"{min(minutes):.0f}–{max(minutes):.0f}"
        )  # fmt: skip
        lines.append([name, label, *found, f"{located.rate:.3f}" if located.of else "", span])
    return _markdown(lines)


def _recall(row: Row) -> str:
    mark = " (worse)" if worse_than(row) else ""
    return f"{row.found.rate:.3f} [{row.found.low:.3f}, {row.found.high:.3f}]{mark}"


def _rival(row: Row) -> str:
    return f"{row.others[best_rival(row)].rate:.3f}"


def _in_thousand(count: Count) -> str:
    return f"{1000 * count.rate:.2f} [{1000 * count.low:.2f}, {1000 * count.high:.2f}]"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    head, *body = lines
    rule = ["---" if column < 2 else "--:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *body))
