"""What a kind of limit is: the key under which a SKU file sets it, the margin by which it holds, and its words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import Field, FiniteFloat

from muster_criteria.labels import labelled
from muster_criteria.words import measured
from muster_criteria.written import Written

if TYPE_CHECKING:  # parsing a DAG file imports the kinds, and each task process pays for it
    import numpy as np
    import numpy.typing as npt

Numbers: TypeAlias = "npt.NDArray[np.float64]"
Row = Mapping[str, Any]


class Times(Written):
    """A limit relative to another measurement of the same stage: ``times`` × that metric, on the same device.

    ``device: node`` takes the metric from the node instead of from the device itself.
    """

    times: Annotated[FiniteFloat, Field(gt=0)]
    metric: str
    labels: dict[str, str] = Field(default_factory=dict)
    device: Literal["same", "node"] = "same"


class Set(Protocol):
    """A limit as a SKU file sets it: ``value`` under the kind's key."""

    value: Any
    unit: str
    siblings: int


@dataclasses.dataclass(frozen=True, eq=False)
class Seen:
    """The rows that a limit judges, column by column. ``referred``: the measurement that a ``Times`` refers to."""

    value: Numbers
    spread: Numbers
    text: npt.NDArray[np.object_]
    siblings_median: Numbers
    others_median: Numbers
    siblings_count: npt.NDArray[np.int64]
    referred: Callable[[Times], Numbers]


Side = Literal["lower", "upper", "exact"]
Depends = Literal["value", "siblings", "row"]

TEXT = "text"
"""The unit of metrics that are texts."""
TEXT_KINDS = "equals, one_of or matches"
AS_DECLARED = "Every item of the inventory is as the SKU declares"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LimitKind:
    """One kind of limit. The defaults are those of a number that the value is compared with.

    Attributes:
        key: The key in SKU files, and the name of the rule.
        claim: The condition that a healthy node satisfies.
        given: The type of what the SKU file gives.
        section: Where in a SKU file it belongs. Those of the inventory are one rule, "expected".
        side: Whether lower or higher values break it, or any other.
        among_itself: Whether it compares a node with itself only: such a rule can fail a device, but a node whose
            devices are all slow satisfies it, so it judges no measurement alone.
        noisy: Whether run-to-run noise can break it on sound hardware (see ``stage.sequential``).
        bounds: Whether reports show its threshold as a floor or ceiling of the measurement.
        rank: The place of its findings among those of one device.
    """

    key: str
    claim: str
    given: Any = FiniteFloat
    section: Literal["limits", "inventory"] = "limits"
    side: Side = "exact"
    among_itself: bool = False
    noisy: bool = False
    bounds: bool = True
    rank: int = 50

    def looks_at(self, limit: Set) -> Depends:
        """What a margin depends on: the value alone, the value and its siblings' median, or more of the row."""
        return "value"

    def takes(self, limit: Set, unit: str) -> bool:
        """Whether it can judge a measurement in this unit."""
        return limit.unit == unit

    def at(self, limit: Set, seen: Seen) -> Numbers:
        """The threshold for each row, in the row's unit; NaN where the limit does not apply."""
        import numpy as np

        if isinstance(limit.value, Times):
            return limit.value.times * seen.referred(limit.value)
        return np.full(len(seen.value), float(limit.value))

    def margin(self, limit: Set, at: Numbers, seen: Seen) -> Numbers:
        """The margin by which each row holds: negative where it is broken, NaN where the limit does not apply."""
        import numpy as np

        if self.side == "lower":
            return seen.value - at
        return at - seen.value if self.side == "upper" else -np.abs(seen.value - at)

    def problems(self, limit: Set) -> Iterator[tuple[str, str]]:
        """(code, message) of each thing that is wrong with such an entry of a SKU file."""
        if limit.unit == TEXT:
            yield "wrong-type", f"the metric is a text, of which {self.key} judges nothing: use {TEXT_KINDS}"

    def judged(self, row: Row) -> tuple[float, str]:
        """What it compares with the threshold, and the unit of both."""
        return float(row["value"]), row["unit"]

    def observed(self, limit: Set, row: Row) -> str | None:
        """What was measured, as a text with unit; None: the value or text of the row."""
        return None

    def expected(self, limit: Set, at: float, row: Row) -> str:
        """What the limit requires of this row, as a text with unit."""
        bound = f"{self.sign}{measured(row['metric'], at, row['unit'], unlike=row['value'])}"
        if isinstance(limit.value, Times):
            return f"{bound} ({limit.value.times:g} × {labelled(limit.value.metric, limit.value.labels)})"
        return bound

    @property
    def sign(self) -> str:
        """ "≥ ", "≤ " or nothing, before the threshold."""
        return {"lower": "≥ ", "upper": "≤ ", "exact": ""}[self.side]

    @property
    def rule(self) -> str:
        """The rule to which its limits belong."""
        return "expected" if self.section == "inventory" else self.key
