"""What tests let pass: failures in service joined to the tests that had passed the node before. Pure."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from muster.model.failures import Failure
from muster_criteria.counts import CONFIDENCE, rate_limits
from muster_reports.digest.facts import Escapes

WITHIN = datetime.timedelta(days=30)
"""A pass longer ago says nothing of a failure. This project's choice: the public records do not say when a defect
began."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """A stage of a level that a node ended with PASS or WARN."""

    node: str
    stage: str
    level: str
    at: datetime.datetime
    run_id: str


@dataclasses.dataclass(frozen=True)
class Escape:
    """A failure in service within ``WITHIN`` after ``passed``, which a stage of this kind can see."""

    failure: Failure
    passed: Pass

    @property
    def age(self) -> datetime.timedelta:
        """How long after the pass the node failed."""
        return self.failure.at - self.passed.at


def escapes(
    failures: Sequence[Failure], passes: Sequence[Pass], visible: Mapping[str, Collection[str]]
) -> list[Escape]:
    """Returns each failure with the last pass before it of each stage that can see its group.

    ``passes``: by time. ``visible``: by group of faults, the stages that can see it. A failure whose cause was not
    found has no escape: no test can be said to have missed it.
    """
    return sorted(_found(failures, passes, visible), key=lambda each: (each.failure.at, each.passed.stage))


def _found(
    failures: Sequence[Failure], passes: Sequence[Pass], visible: Mapping[str, Collection[str]]
) -> Iterator[Escape]:
    of_node: dict[str, list[Pass]] = collections.defaultdict(list)
    for each in passes:
        of_node[each.node].append(each)
    for failure in failures:
        last: dict[str, Pass] = {}
        for each in of_node.get(failure.node, ()):
            if each.stage in visible.get(failure.group, ()) and failure.at - WITHIN <= each.at < failure.at:
                last[each.stage] = each
        yield from (Escape(failure, each) for each in last.values())


def summed(counts: Iterable[Mapping[tuple[str, str], int]]) -> dict[tuple[str, str], int]:
    """Returns how often each (level, stage) passed, over all of these nodes."""
    total: collections.Counter[tuple[str, str]] = collections.Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def rates(found: Sequence[Escape], passes: Mapping[tuple[str, str], int]) -> list[Escapes]:
    """Returns the rate of each level, stage and group that has an escape, the most first.

    ``passes``: how often each (level, stage) passed. The interval is the exact one of a Poisson count (Garwood, 1936).
    Several failures may follow one pass.
    """
    counts = collections.Counter((each.passed.level, each.passed.stage, each.failure.group) for each in found)
    made = []
    for (level, stage, group), count in counts.items():
        per = 1000.0 / passes[level, stage]
        low, high = rate_limits(count, passes[level, stage] / 1000.0, CONFIDENCE)
        made.append(Escapes(level, stage, group, count, passes[level, stage], count * per, low, high))
    return sorted(made, key=lambda each: (-each.escapes, each.level, each.stage, each.group))
