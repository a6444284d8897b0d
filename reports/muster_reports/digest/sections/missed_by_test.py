"""Failures after a pass, by the level of the test that had passed and the stage that fails now."""

from __future__ import annotations

import collections

from muster_criteria.words import duration
from muster_reports.digest.facts import UNKNOWN, Facts, Run, Section

ORDER = 7


def section(facts: Facts) -> Section | None:
    """Returns what each level had passed, and how soon after it the first one failed."""
    groups: dict[tuple[str, str], list[tuple[Run, Run]]] = collections.defaultdict(list)
    for last, run in facts.missed():
        for stage in run.stages or (UNKNOWN,):
            groups[last.level or UNKNOWN, stage].append((last, run))
    if not groups:
        return None
    ranked = sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))
    rows = tuple((level, stage, str(len(pairs)), duration(min(map(_gap, pairs)))) for (level, stage), pairs in ranked)
    return Section(
        "Tests that had passed what failed later",
        "If one level often passes nodes that soon fail, a longer level or other limits may find them earlier:",
        ("passed at level", "failed in stage", "times", "soonest after"),
        rows,
        tuple(len(pairs) / len(ranked[0][1]) for _, pairs in ranked),
        columns=("level", "stage", "node", "passed in", "failed in"),
        behind=tuple(
            (level, stage, run.node, last.run_id, run.run_id) for (level, stage), pairs in ranked for last, run in pairs
        ),
    )


def _gap(pair: tuple[Run, Run]) -> float:
    last, run = pair
    return (run.started_at - last.ended_at).total_seconds()
