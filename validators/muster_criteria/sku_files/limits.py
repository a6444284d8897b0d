"""One entry of a SKU file: a limit on a metric, with unit, source, date, and the consequence of a breach."""

from __future__ import annotations

import datetime
import functools
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from muster_criteria.devices import Kind
from muster_criteria.kinds import LIMIT_KINDS, LimitKind
from muster_criteria.labels import labelled
from muster_criteria.model import Action, FaultClass
from muster_criteria.written import Written, problem_of

Breach = Literal["fail", "warn", "invalid"]
"""What a breach means. ``fail``: critical finding. ``warn``: warning. ``invalid``: the value is no measurement of the
device (better than physics allows, or taken under too hot an inlet), so it counts as missing and the verdict is
INCONCLUSIVE instead of FAIL."""


_OWN = ("key", "value")


class Limit(Written):
    """One limit on one metric, over all devices of kind ``device`` and all measurements that carry ``labels``.

    A SKU file sets exactly one key of ``kinds.LIMIT_KINDS``; here ``key`` is its name and ``value`` its value.
    ``siblings``: how many siblings a limit relative to their median needs. ``stages``: where it applies (empty:
    everywhere). ``invalidates``: other metrics of the stage that are invalid too while this limit is broken, except
    those of the device's siblings. ``explains``: metrics of the device whose findings then take this limit's fault and
    action, and say so. ``meaning``: half a sentence for operators ("computes wrong results"). ``source``: where the
    number comes from; ``date``: when it was taken from there; ``stack``: driver, CUDA, libraries, container and
    conditions under which it holds, as the source states them.
    """

    metric: str
    device: Kind
    labels: dict[str, str] = Field(default_factory=dict)
    unit: str
    key: str
    value: Any
    breach: Breach = "fail"
    stages: tuple[str, ...] = ()
    siblings: Annotated[int, Field(ge=2)] = 3
    invalidates: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    fault: FaultClass = FaultClass.NODE
    action: Action = Action.INSPECT
    meaning: str = ""
    source: Annotated[str, Field(min_length=8)]
    date: datetime.date
    stack: str = ""

    @model_validator(mode="before")
    @classmethod
    def _one_key(cls, written: Any) -> Any:
        if not isinstance(written, dict):
            return written
        if foreign := set(_OWN) & written.keys():
            raise ValueError(f"{min(foreign)} is no key of a limit")
        keys = [key for key in LIMIT_KINDS if written.get(key) is not None]
        if len(keys) != 1:
            has = "none" if not keys else ", ".join(keys)
            raise ValueError(f"needs exactly one of {', '.join(LIMIT_KINDS)}; it has {has}")
        rest = {name: value for name, value in written.items() if name not in LIMIT_KINDS}
        return rest | {"key": keys[0], "value": _given(keys[0], written[keys[0]])}

    @model_validator(mode="after")
    def _fits(self) -> Limit:
        number = self.number
        if number is not None and number < 0 and self.unit != "°C":
            raise ValueError(f"{self.key} is negative ({number:g} {self.unit})")
        if self.invalidates and self.breach != "invalid":
            raise ValueError("invalidates is only for a limit whose breach is invalid")
        return self

    @model_serializer(mode="wrap")
    def _as_written(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = plain(self)
        return {**{name: each for name, each in written.items() if name not in _OWN}, self.key: written["value"]}

    @property
    def kind(self) -> LimitKind:
        """The kind of this limit."""
        return LIMIT_KINDS[self.key]

    @property
    def number(self) -> float | None:
        """The limit as a plain number, None where it is a text, a pattern, or relative to another measurement."""
        return float(self.value) if isinstance(self.value, (int, float)) else None

    @property
    def name(self) -> str:
        """The name in messages: "floor of gemm_rate[dtype=bf16]"."""
        return f"{self.key} of {labelled(self.metric, self.labels)}"

    def applies_to(self, metric: str, kind: str, labels: dict[str, str]) -> bool:
        """Returns whether the limit applies to such a measurement; labels that it does not name may have any value."""
        return metric == self.metric and kind == self.device and all(labels.get(k) == v for k, v in self.labels.items())


@functools.cache
def _type(key: str) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(LIMIT_KINDS[key].given)


class BadValue(ValueError):
    """A value of an entry that does not fit its kind. ``key``: its place in the entry; ``problem``: what is wrong."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key, self.problem = key, problem


def _given(key: str, value: object) -> object:
    """The value of an entry, in the type of its kind. Raises BadValue."""
    try:
        return _type(key).validate_python(value)
    except pydantic.ValidationError as error:
        keys, message, _ = problem_of(error)
        raise BadValue(".".join((key, *keys)), message) from None
