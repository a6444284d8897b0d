"""Data classes of a block's training table. Times are in seconds unless a name says otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from muster_criteria.cluster.goodput import Forecast, Input, Inputs
from muster_criteria.model import Finding, Observation


@dataclasses.dataclass(frozen=True)
class Member:
    """One node of the block, with its judged observations and its findings."""

    name: str
    sku: str
    simulated: bool
    observations: tuple[Observation, ...]
    findings: tuple[Finding, ...]


@dataclasses.dataclass(frozen=True)
class Comparisons:
    """What a block's own figures are compared with.

    ``earlier``: by figure, (median of earlier blocks with the same recipe, number of these blocks). ``rate``: failures
    per node and day; ``restart``: seconds from an earlier fault run, used if this block had none. ``differences``: one
    sentence for each version in which the members differ.
    """

    rate: Input
    gpus_a_node: int
    earlier: Mapping[str, tuple[float, int]] = dataclasses.field(default_factory=dict)
    restart: Input | None = None
    differences: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Line:
    """One figure, its gate, whether it is met (None: no gate), its comparison, and a note on how it was counted."""

    what: str
    value: str
    gate: str = ""
    met: bool | None = None
    comparison: str = ""
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Rank:
    """Seconds of one rank's step by part, None if not measured. ``why``: a straggler's cause, else ""."""

    node: str
    device: str
    compute: float | None
    exposed: float | None
    input: float | None
    checkpoint: float | None
    straggler: bool = False
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Training:
    """A block's training. ``ranks``: stragglers first, then by compute. ``stragglers``: a sentence for each.

    ``inputs``: what ``forecast`` is made from; ``published``: figures of others, each with its source.
    """

    headline: str
    recipe: str
    lines: tuple[Line, ...]
    checkpoints: tuple[Line, ...]
    ranks: tuple[Rank, ...]
    stragglers: tuple[str, ...]
    inputs: Inputs
    forecast: tuple[Forecast, ...]
    published: tuple[str, ...]
    not_covered: tuple[str, ...]
    differences: tuple[str, ...]
    simulated: bool
