"""A qualified node proposed for the place of one that left production."""

from __future__ import annotations

import dataclasses
import datetime
import shlex


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
    """``spare`` may take the place of ``gone``. ``shared``: the place of both ("same block b3"), "" if none."""

    gone: Vacancy
    spare: str
    shared: str
    fitness: Fitness

    @property
    def sentence(self) -> str:
        """For a person."""
        return f"may take the place of {self.gone.node}{self.near}: {self.fitness.why}"

    @property
    def near(self) -> str:
        """What both share, as " (same block b3)"."""
        return f" ({self.shared})" if self.shared else ""

    @property
    def command(self) -> str:
        """The command that lets the spare take the place."""
        reason = shlex.quote(f"takes the place of {self.gone.node}")
        return f"muster admit {shlex.quote(self.spare)} --reason {reason}"
