"""The probability of a defect that no test has seen yet, and which stages are worth their minutes. Pure, by arrays.

The hazard of each group of defects is that of the interruptions of Llama 3's training (arXiv 2407.21783, table 5:
16,384 H100 in 2,048 nodes over 54 days), multiplied by what the records know of the node. The weights of that knowledge
and the harm of each group are this project's choice. Chances and minutes of the stages come from the accuracy bench.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from muster_criteria.stages import STAGES

Numbers = npt.NDArray[np.float64]

CHANCES = Path(__file__).with_name("chances.json")
"""Made by ``python -m tests.bench.accuracy.chances --write``."""

GROUPS = ("compute", "memory", "links", "cooling", "corruption")
NODE_HOURS = 2048 * 54 * 24
HAZARDS = np.array([148 + 17, 72 + 19, 35 + 7, 6, 6]) / NODE_HOURS
"""Per node-hour, by group: faulty GPUs and system processors; HBM3 and SRAM; network switches, cables and NICs; GPU
thermal interfaces and sensors; silent data corruption."""
HARM = np.array([8.0, 8.0, 8.0, 4.0, 64.0])
"""Node-hours lost for each hour in which a defect goes unseen: a job of eight nodes waits for the slowest; wrong
results are lost with all that was computed from them."""
XID_WEIGHT, REPAIR_WEIGHT, NEIGHBOUR_WEIGHT, INFANT_WEIGHT = 0.7, 0.5, 0.3, 0.7
ECC_WEIGHT, LINK_WEIGHT, SLIDE_WEIGHT = 0.7, 0.7, 0.5
GROWS = np.array([
    [0, 1, 0, 0, 0],  # error counters of memory
    [0, 0, 1, 0, 0],  # of links
    [1, 1, 1, 1, 0],  # figures of rates and temperatures that slide; corrupted data shows in none
], dtype=np.float64)  # fmt: skip
"""Signs × groups: of which defects each sign speaks. The other signs speak of all."""
COUNTED_MAX = 3
INFANT_DAYS = 90.0
ALWAYS = "intake"
"""Takes no load and little time, and tells whether it is the same machine: part of every test."""


@dataclasses.dataclass(frozen=True, eq=False)
class Facts:
    """What the records know of nodes, in their order. ``hours_since``: nodes × stages, since each stage's last PASS (or
    since the machine came, if it has none). ``age_days``: since the machine came. ``xids``, ``repairs``: its own in the
    last 30 days; ``neighbours``: failed nodes of its rack in that time. ``ecc``, ``links``: its counters of errors that
    grew; ``sliding``: its figures that move away from its own past; ``image``: how much more often the nodes with its
    image fail than others.
    """

    hours_since: Numbers
    age_days: Numbers
    xids: Numbers
    repairs: Numbers
    neighbours: Numbers
    ecc: Numbers
    links: Numbers
    sliding: Numbers
    image: Numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Worth:
    """Of nodes: ``suspicion`` is the probability of any hidden defect, ``stages`` an index into ``subsets()``, of the
    stages with the highest ``score``: harm that they are expected to end, in node-hours an hour, a minute of load.
    """

    suspicion: Numbers
    stages: npt.NDArray[np.int64]
    score: Numbers


@functools.cache
def _table() -> tuple[Numbers, Numbers]:
    """Chances (groups × stages) and minutes (stages)."""
    made = json.loads(CHANCES.read_text())
    chances = np.array([[made["chances"][group][stage] for stage in STAGES] for group in GROUPS])
    return chances, np.array([made["minutes"][stage] for stage in STAGES])


@functools.cache
def subsets() -> tuple[tuple[str, ...], ...]:
    """Every set of stages that a test may consist of, in the order of the stages."""
    optional = [stage for stage in STAGES if stage != ALWAYS]
    chosen = itertools.chain.from_iterable(
        itertools.combinations(optional, count) for count in range(len(optional), 0, -1)
    )
    return tuple((ALWAYS, *stages) for stages in chosen)


@functools.cache
def minutes_of() -> Numbers:
    """The minutes that each of ``subsets()`` takes."""
    _, minutes = _table()
    return _members() @ minutes


@functools.cache
def _members() -> Numbers:
    """``subsets()`` × stages: 1 where the stage belongs to the set."""
    return np.array([[float(stage in chosen) for stage in STAGES] for chosen in subsets()])


def relative_hazard(facts: Facts) -> Numbers:
    """How much more likely (nodes × groups) each node breaks than an ordinary one, as in a proportional hazards model:
    exp(β·x), times the ratio of its image.
    """
    counted = (
        XID_WEIGHT * np.minimum(facts.xids, COUNTED_MAX)
        + REPAIR_WEIGHT * np.minimum(facts.repairs, COUNTED_MAX)
        + NEIGHBOUR_WEIGHT * np.minimum(facts.neighbours, COUNTED_MAX)
        + INFANT_WEIGHT * (facts.age_days < INFANT_DAYS)
    )
    of_groups = np.stack([facts.ecc, facts.links, facts.sliding], axis=1)
    weights = np.array([ECC_WEIGHT, LINK_WEIGHT, SLIDE_WEIGHT])
    grown = (np.minimum(of_groups, COUNTED_MAX) * weights) @ GROWS
    return np.asarray(np.exp(counted[:, None] + grown) * facts.image[:, None])


def hidden(facts: Facts) -> Numbers:
    """The probability (nodes × groups) of a hidden defect of each group: 1 − exp(−hazard × exposure).

    A stage that found nothing clears the time before it by its chance of finding that group; the stage that leaves the
    least exposure counts.
    """
    chances, _ = _table()
    oldest = facts.hours_since.max(axis=1, keepdims=True)
    exposure = np.stack(
        [
            (facts.hours_since + (1.0 - chance) * (oldest - facts.hours_since)).min(axis=1)
            for chance in chances  # one row for each group
        ],
        axis=1,
    )
    return np.asarray(-np.expm1(-relative_hazard(facts) * HAZARDS * exposure))


def worth(facts: Facts, minutes: float) -> Worth:
    """The best set of stages within ``minutes`` for each node. Raises ValueError if none fits."""
    chances, _ = _table()
    fits = np.flatnonzero(minutes_of() <= minutes)
    if not len(fits):
        raise ValueError(f"no set of stages fits into {minutes:g} minutes; the shortest takes {minutes_of().min():g}")
    probability = hidden(facts)
    missed = np.prod(1.0 - chances[None, :, :] * _members()[fits][:, None, :], axis=2)  # sets × groups
    score = (probability * HARM) @ (1.0 - missed).T / minutes_of()[fits]
    best = score.argmax(axis=1)
    suspicion = 1.0 - np.prod(1.0 - probability, axis=1)
    return Worth(suspicion, fits[best], np.take_along_axis(score, best[:, None], axis=1)[:, 0])
