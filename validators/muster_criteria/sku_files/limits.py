"""One entry of a SKU file: a limit on a metric, with unit, source, date, and the consequence of a breach."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, FiniteFloat, field_validator, model_validator

from muster_criteria.devices import Kind
from muster_criteria.model import Action, FaultClass
from muster_criteria.written import Written, as_tuple

Breach = Literal["fail", "warn", "invalid"]
"""What a breach means. ``fail``: critical finding. ``warn``: warning. ``invalid``: the value is no measurement of the
device (better than physics allows, or taken under too hot an inlet), so it counts as missing and the verdict is
INCONCLUSIVE instead of FAIL."""

LIMIT_KEYS = ("floor", "ceiling", "exactly", "siblings_at_least", "siblings_at_most", "spread_at_most")
INVENTORY_KEYS = ("equals", "at_least", "at_most", "one_of", "matches")


class Times(Written):
    """A limit relative to another measurement of the same stage: ``times`` × that metric, on the same device.

    ``device: node`` takes the metric from the node instead of from the device itself.
    """

    times: Annotated[FiniteFloat, Field(gt=0)]
    metric: str
    labels: dict[str, str] = Field(default_factory=dict)
    device: Literal["same", "node"] = "same"


class Limit(Written):
    """One limit on one metric, over all devices of kind ``device`` and all measurements that carry ``labels``.

    Exactly one of ``LIMIT_KEYS`` (in a SKU's ``limits``) or ``INVENTORY_KEYS`` (in its ``inventory``) is set. Shares
    (``siblings_…``) are of the median over the node's devices of that kind and need ``siblings`` of them measured;
    ``spread_at_most`` is about the spread of a measurement's repeats, (p95 − p5) / median, in %.
    ``stages``: applies only there (empty: everywhere). ``invalidates``: other metrics of the stage that are invalid too
    while this limit is broken. ``meaning``: half a sentence for operators ("computes wrong results"). ``source``: where
    the number comes from; ``date``: when it was taken from there; ``stack``: driver, CUDA, libraries, container and
    conditions under which it holds, as the source states them.
    """

    metric: str
    device: Kind
    labels: dict[str, str] = Field(default_factory=dict)
    unit: str
    floor: FiniteFloat | Times | None = None
    ceiling: FiniteFloat | Times | None = None
    exactly: FiniteFloat | None = None
    siblings_at_least: Annotated[FiniteFloat, Field(gt=0, lt=1)] | None = None
    siblings_at_most: Annotated[FiniteFloat, Field(gt=1)] | None = None
    spread_at_most: FiniteFloat | None = None
    equals: FiniteFloat | str | None = None
    at_least: FiniteFloat | None = None
    at_most: FiniteFloat | None = None
    one_of: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] | None = None
    matches: str | None = None
    breach: Breach = "fail"
    stages: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    siblings: Annotated[int, Field(ge=2)] = 3
    invalidates: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    fault: FaultClass = FaultClass.NODE
    action: Action = Action.INSPECT
    meaning: str = ""
    source: Annotated[str, Field(min_length=8)]
    date: datetime.date
    stack: str = ""

    @field_validator("matches")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
        return pattern

    @model_validator(mode="after")
    def _one_key(self) -> Limit:
        keys = [key for key in (*LIMIT_KEYS, *INVENTORY_KEYS) if getattr(self, key) is not None]
        if len(keys) != 1:
            has = "none" if not keys else ", ".join(keys)
            raise ValueError(f"needs exactly one of {', '.join((*LIMIT_KEYS, *INVENTORY_KEYS))}; it has {has}")
        number = self.number
        if number is not None and number < 0 and self.unit != "°C":
            raise ValueError(f"{keys[0]} is negative ({number:g} {self.unit})")
        if self.invalidates and self.breach != "invalid":
            raise ValueError("invalidates is only for a limit whose breach is invalid")
        return self

    @property
    def key(self) -> str:
        """Which of ``LIMIT_KEYS`` or ``INVENTORY_KEYS`` this limit sets."""
        return next(key for key in (*LIMIT_KEYS, *INVENTORY_KEYS) if getattr(self, key) is not None)

    @property
    def number(self) -> float | None:
        """The limit as a plain number, None where it is a text, a pattern, or relative to another measurement."""
        value = getattr(self, self.key)
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def name(self) -> str:
        """The name in messages: "floor of gemm_rate[dtype=bf16]"."""
        return f"{self.key} of {labelled(self.metric, self.labels)}"

    def applies_to(self, metric: str, kind: str, labels: dict[str, str]) -> bool:
        """Returns whether the limit applies to such a measurement; labels that it does not name may have any value."""
        return metric == self.metric and kind == self.device and all(labels.get(k) == v for k, v in self.labels.items())


def labelled(metric: str, labels: dict[str, str]) -> str:
    """ "gemm_rate[dtype=bf16]": a metric with its labels, as messages write it."""
    if not labels:
        return metric
    return f"{metric}[{','.join(f'{key}={value}' for key, value in sorted(labels.items()))}]"
