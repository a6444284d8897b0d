"""Which verdicts on a node still stand: a later, conclusive verdict of the same stage, as thorough or more, ends one.

Pure. Doubt ends nothing: after a FAIL, neither an inconclusive run nor a shorter one makes it go away.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from muster_criteria.model import Verdict
from muster_criteria.sku_files.model import LEVELS

if TYPE_CHECKING:
    from muster.records import StageVerdict

SAYS_NOTHING = frozenset({Verdict.INCONCLUSIVE, Verdict.SKIPPED})


def thoroughness(level: str) -> int:
    """How thorough a level is; one that is not known is the least of all."""
    return LEVELS.index(level) if level in LEVELS else -1


def standing(verdicts: Iterable[StageVerdict]) -> list[StageVerdict]:
    """Those of ``verdicts`` that no later one of the same stage supersedes, oldest first."""
    listed = sorted(verdicts, key=lambda each: each.recorded_at)
    return [
        each
        for place, each in enumerate(listed)
        if not any(
            later.stage == each.stage
            and later.verdict not in SAYS_NOTHING
            and thoroughness(later.level) >= thoroughness(each.level)
            for later in listed[place + 1 :]
        )
    ]
