"""A hardware model's dense peaks, its best known figures, and the measurements that it does not support."""

from __future__ import annotations

import datetime
from decimal import ROUND_DOWN, Context, Decimal
from typing import Annotated, Literal

from pydantic import Field, FiniteFloat, model_validator

from muster_criteria.devices import Kind
from muster_criteria.labels import labelled
from muster_criteria.model import Action, FaultClass
from muster_criteria.sku_files.limits import Limit
from muster_criteria.written import Written

SCALE = {
    "TB/s": 1e12,
    "GB/s": 1e9,
    "MB/s": 1e6,
    "Gb/s": 1e9 / 8,
    "TFLOPS": 1e12,
    "GFLOPS": 1e9,
}
"""Units of rates: how many bytes or operations a second one of them is."""

NOT_STATED = "not stated"
"""The ``stack`` of a figure whose source does not name the software it was measured with."""

WHY = "docs/science.md#performance-limits"
"""Where the shares of floors come from."""

Format = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
"""The number formats whose products probes measure: the label ``dtype``."""

Positive = Annotated[FiniteFloat, Field(gt=0)]


class Peaks(Written):
    """Peaks of a data sheet, beyond which a measurement is invalid (see ``peaks``).

    ``gemm_rate``: TFLOPS of dense products by number format; ``memory_bandwidth``: GB/s.
    """

    gemm_rate: dict[Format, Positive] = Field(default_factory=dict)
    memory_bandwidth: Positive | None = None
    source: Annotated[str, Field(min_length=8)]
    date: datetime.date

    @model_validator(mode="after")
    def _bounds_something(self) -> Peaks:
        if not self.gemm_rate and self.memory_bandwidth is None:
            raise ValueError("needs gemm_rate or memory_bandwidth")
        return self


class Share(Written):
    """A floor that is a share of a figure's best, and the consequence of a breach as in a limit."""

    share: Annotated[FiniteFloat, Field(gt=0, le=1)]
    fault: FaultClass
    action: Action
    meaning: str

    def of(self, best: float) -> float:
        """Rounded down: to a whole number, or below 100 to three digits."""
        exact = Decimal(str(self.share)) * Decimal(str(best))
        return float(int(exact) if exact >= 100 else Context(prec=3, rounding=ROUND_DOWN).plus(exact))


class Figure(Written):
    """The best known value of one metric. Only its ``floor`` judges anything; the lint checks floors against it.

    ``best``: the best published or measured on this model. ``peak``: the physical maximum, as in ``Peaks``, for a
    metric that is not among those. Labels as in a limit. ``floor``: stored in the SKU as the limit that it gives
    (``limit``). ``stack``: driver, CUDA, libraries and container of ``best`` as the source states them, or "not
    stated".
    """

    metric: str
    device: Kind
    labels: dict[str, str] = Field(default_factory=dict)
    unit: str
    best: Positive | None = None
    peak: Positive | None = None
    source: Annotated[str, Field(min_length=8)]
    date: datetime.date
    stack: str = ""
    floor: Annotated[Share | None, Field(exclude=True)] = None

    @model_validator(mode="after")
    def _best_or_peak(self) -> Figure:
        if self.best is None and self.peak is None:
            raise ValueError("needs best or peak")
        if self.best is None and self.floor is not None:
            raise ValueError("a floor needs the best of which it is a share")
        return self

    @property
    def name(self) -> str:
        """The name in messages: "gemm_rate[dtype=bf16]"."""
        return labelled(self.metric, self.labels)

    @property
    def limit(self) -> Limit | None:
        """The limit of its floor."""
        if self.floor is None or self.best is None:
            return None
        share = f"{self.floor.share:.2f}"
        source = f"derived: {share} × {self.best:g} {self.unit}, {self.source}; {share} by {WHY}"
        return Limit.model_validate({
            "metric": self.metric, "device": self.device, "labels": self.labels, "unit": self.unit,
            "floor": self.floor.of(self.best), "fault": self.floor.fault, "action": self.floor.action,
            "meaning": self.floor.meaning, "source": source, "date": self.date, "stack": self.stack,
        })  # fmt: skip


class Absent(Written):
    """A measurement that the programme requires and this model cannot give: no FP8 units, no NVLink."""

    metric: str
    labels: dict[str, str] = Field(default_factory=dict)
    source: Annotated[str, Field(min_length=8)]
    date: datetime.date

    def covers(self, metric: str, labels: dict[str, str]) -> bool:
        """Returns whether a requirement with these labels is one that the model cannot meet."""
        return metric == self.metric and all(labels.get(key) == value for key, value in self.labels.items())


def in_base_units(number: float, unit: str) -> float:
    """A rate in bytes or operations a second; any other unit stays as it is."""
    return number * SCALE.get(unit, 1.0)
