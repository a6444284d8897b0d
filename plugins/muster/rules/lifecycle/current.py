"""Which verdicts on a node are current. Pure.

A later, conclusive verdict of the same stage, at the same level or a more thorough one, supersedes a verdict. After a
FAIL, neither an inconclusive run nor a shorter one does.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.model.runs import StageVerdict
from muster_criteria.model import Verdict
from muster_criteria.stages import LEVELS

INCONCLUSIVE = frozenset({Verdict.INCONCLUSIVE, Verdict.SKIPPED})


def thoroughness(level: str) -> int:
    """Returns the rank of a level; -1 for an unknown one."""
    return LEVELS.index(level) if level in LEVELS else -1


def current_of(verdicts: Iterable[StageVerdict]) -> list[StageVerdict]:
    """Returns the verdicts that no later one supersedes, oldest first.

    ``verdicts``: in the order in which they were recorded. Their times come from several machines' clocks, one of which
    may be wrong: a PASS dated two hours ahead would hide the FAIL after it.
    """
    listed = list(verdicts)
    return [
        each
        for place, each in enumerate(listed)
        if not any(
            later.stage == each.stage
            and later.verdict not in INCONCLUSIVE
            and thoroughness(later.level) >= thoroughness(each.level)
            for later in listed[place + 1 :]
        )
    ]
