"""A qualified node proposed for the place of one that left production."""

from __future__ import annotations

import dataclasses
import datetime


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A node that came into service or left it. ``kind``: its SKU, whether it is simulated, and the scheduler's
    cluster, "" without one. ``replaces``: the node whose place it took, "" if the records name none.
    """

    node: str
    at: datetime.datetime
    entered: bool
    kind: tuple[str, bool, str]
    replaces: str = ""


@dataclasses.dataclass(frozen=True)
class Vacancy:
    """The place of a node that left production for a broken state, which no other node has taken since ``at``."""

    node: str
    at: datetime.datetime


@dataclasses.dataclass(frozen=True)
class Fitness:
    """The evidence for a node as a replacement. ``admitted``: the gate admits it without a person."""

    admitted: bool
    why: str


@dataclasses.dataclass(frozen=True)
class Replacement:
    """``spare`` may take the place of ``gone``. ``shared``: what place both have in common ("same block b3")."""

    gone: Vacancy
    spare: str
    shared: str
    fitness: Fitness

    @property
    def sentence(self) -> str:
        """For a person."""
        return f"may take the place of {self.gone.node} ({self.shared}): {self.fitness.why}"
