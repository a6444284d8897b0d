"""The repair policy: which repairs are tried for which fault, in which order, and where they are allowed. Data.

The ladder is data; what the history of a node allows is decided in ``muster.rules.service.repair``.
"""

from __future__ import annotations

import enum
import fnmatch
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from muster_criteria.policy_file import Table
from muster_criteria.stages import Level, Stage
from muster_criteria.written import Written

DEFAULT = "repair"
WINDOW_DAYS_MAX = 31


class Rung(enum.StrEnum):
    """What can be done about a fault, mildest first. A person carries out what is not ``automatic``."""

    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    INSPECT = "inspect"
    RMA = "rma"

    @property
    def rank(self) -> int:
        """0 for the mildest."""
        return list(Rung).index(self)

    @property
    def automatic(self) -> bool:
        """Whether a program can carry it out."""
        return self.rank < Rung.INSPECT.rank


RESTARTS = frozenset({Rung.REBOOT, Rung.POWER_CYCLE})


class Ladder(Written):
    """What is tried for one class of faults, mildest first, and which tests can see the fault after it.

    ``checks``: patterns of observations of the health policy. ``prove``: the stages whose tests can see the fault, and
    the lowest ``level`` at which they do.
    """

    fault: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
    checks: tuple[str, ...] = ()
    rungs: Annotated[tuple[Rung, ...], Field(min_length=1)]
    prove: Annotated[tuple[Stage, ...], Field(min_length=1)]
    level: Level
    source: str
    why: str = ""

    @model_validator(mode="after")
    def _rises(self) -> Ladder:
        ranks = [each.rank for each in self.rungs]
        if ranks != sorted(set(ranks)):
            raise ValueError(f"the rungs of {self.fault} do not rise: {', '.join(self.rungs)}")
        if self.rungs[-1].automatic:
            raise ValueError(f"the ladder of {self.fault} does not end with a person: add inspect or rma")
        return self


class Enabled(Written):
    """Nodes whose label ``label`` is ``value`` may be repaired without a person, by ``rungs`` only."""

    label: Annotated[str, Field(min_length=1)]
    value: str
    rungs: Annotated[tuple[Rung, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _automatic(self) -> Enabled:
        if by_hand := [each for each in self.rungs if not each.automatic]:
            raise ValueError(f"{by_hand[0]} is a person's: it cannot be switched on")
        return self


class Together(Written):
    """How many nodes may be under repair at a time, in the ``fleet`` and in each ``place``, until tests prove it.

    ``labels``: labels of nodes that name places, and "rack". Real and simulated nodes are counted apart.
    """

    fleet: Annotated[int, Field(ge=1)]
    place: Annotated[int, Field(ge=1)]
    labels: Annotated[tuple[str, ...], Field(min_length=1)]


class RepairPolicy(Table):
    """The table. ``restarts_max``: restarts for the same fault within ``window_days``, after which a person decides;
    ``repairs_max``: automatic repairs of a node within ``window_days``. ``enabled``: if empty, nothing is repaired.
    """

    MARK = "ladders"

    window_days: Annotated[float, Field(gt=0, le=WINDOW_DAYS_MAX)]
    restarts_max: Annotated[int, Field(ge=1)]
    repairs_max: Annotated[int, Field(ge=1)]
    together: Together
    enabled: tuple[Enabled, ...] = ()
    ladders: Annotated[tuple[Ladder, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _whole(self) -> RepairPolicy:
        self.check_sources(each.source for each in self.ladders)
        names = [each.fault for each in self.ladders]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"there are two ladders of {twice}")
        return self

    def ladder(self, fault: str) -> Ladder | None:
        """The ladder of a class of faults, None without one."""
        return next((each for each in self.ladders if each.fault == fault), None)

    def ladder_for(self, check: str) -> Ladder | None:
        """The first ladder that names an observation's check, None without one."""
        return next((one for one in self.ladders if any(fnmatch.fnmatchcase(check, each) for each in one.checks)), None)

    def allowed(self, labels: Mapping[str, str]) -> frozenset[Rung]:
        """The rungs that are switched on for a node with these labels; of several groups, what all of them allow."""
        groups = [set(each.rungs) for each in self.enabled if labels.get(each.label) == each.value]
        return frozenset(set.intersection(*groups)) if groups else frozenset()
