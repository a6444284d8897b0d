"""What tests let pass: failures in service joined to the tests that had passed the node before. Pure."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from muster.model.failures import Failure
from muster_criteria.counts import CONFIDENCE, rate_limits
from muster_reports.digest.facts import Chance, Escapes

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

    ``visible``: by group of faults, the stages that can see it. A failure whose cause was not found has no
    escape: no test can be said to have missed it.
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
                before = last.get(each.stage)
                last[each.stage] = each if before is None or before.at < each.at else before
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


WEIGHT = 20.0
"""Faults for which a chance of the simulation counts in addition to the fleet's own.
This project's choice, as for hazards."""


def was_there(age_h: float, chance: float, shows_after_h: float) -> float:
    """Returns how likely the defect of an escape was there when the stage passed, ``age_h`` before the failure.

    In a steady state a unit that comes to a test has as many hidden defects as arise in ``shows_after_h`` (the mean
    time τ until one shows itself), of which a pass leaves 1 − ``chance``. They fail at an age a with density
    (1 − chance) · exp(−a/τ), those that arose since with 1 − exp(−a/τ).
    """
    old = (1.0 - chance) * math.exp(-age_h / shows_after_h)
    new = -math.expm1(-age_h / shows_after_h)
    return old / (old + new) if old + new > 0.0 else 0.0


def chances(
    prior: Mapping[str, Mapping[str, float]],
    caught: Mapping[tuple[str, str], int],
    missed: Sequence[Escape],
    shows_after_h: float,
) -> list[Chance]:
    """Returns by group of faults and stage the chance that the stage finds one, as the fleet shows it.

    ``prior``: {group: {stage: chance}}, of simulated faults; one of 0 stays 0. ``caught``: {(group, stage): faults
    that the stage found}. A beta posterior whose prior counts for ``WEIGHT`` faults, with its 90 % interval; an escape
    counts as a miss by ``was_there``. Only those of which the fleet knows something.
    """
    from scipy.stats import beta  # heavy: not where a DAG file is parsed

    misses: collections.Counter[tuple[str, str]] = collections.Counter()
    weight: dict[tuple[str, str], float] = collections.defaultdict(float)
    for each in missed:
        key = each.failure.group, each.passed.stage
        misses[key] += 1
        weight[key] += was_there(each.age.total_seconds() / 3600.0, prior[key[0]][key[1]], shows_after_h)
    made = []
    tail = (1.0 - CONFIDENCE) / 2.0
    for group, stage in sorted(misses.keys() | caught.keys()):
        expected = prior.get(group, {}).get(stage, 0.0)
        if expected <= 0.0:
            continue
        found = caught.get((group, stage), 0)
        yes = WEIGHT * expected + found
        no = WEIGHT * (1.0 - expected) + weight[group, stage]
        low, high = (float(beta.ppf(at, yes, no)) if no > 0.0 else 1.0 for at in (tail, 1.0 - tail))
        made.append(Chance(group, stage, expected, yes / (yes + no), low, high, found, misses[group, stage]))
    return made
