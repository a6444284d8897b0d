"""Rows that are no measurement of their device: by their own value, or since another measurement says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from muster_criteria.model import Finding, Severity
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.findings import Breaking
from muster_criteria.stage.frame import Frame
from muster_criteria.stage.rules import FLEET_KINDS, INVALID_KINDS

_TEMPERATURE = "°C"


@dataclasses.dataclass(frozen=True)
class Invalid:
    """Why a row is invalid.

    Attributes:
        why: For operators.
        itself: Because of its own value, not of another measurement's.
        excess: By how many °C the air that reaches the device is too hot; 0 where the reason is another.
    """

    why: str
    itself: bool
    excess: float = 0.0


def invalid_rows(frame: Frame, breaking: Sequence[Breaking], sku: Sku) -> dict[int, Invalid]:
    """Returns {invalid row: reason}; the reason is the row's own value or another measurement's."""
    invalid: dict[int, Invalid] = {}
    for item in breaking:
        if item.rule.breach != "invalid":
            continue
        invalid[item.position] = Invalid(item.finding.summary.rstrip("."), itself=True)
        if item.rule.kind in INVALID_KINDS:
            continue
        limit = _limit_of(item, frame, sku)
        for position in _positions_of(frame, limit.invalidates):
            if frame["kind"][position] == limit.device and frame["device"][position] != frame["device"][item.position]:
                continue  # a sibling's
            why = f"invalid, since {item.finding.metric} is {item.finding.observed}"
            invalid.setdefault(position, Invalid(why, itself=False, excess=_beyond(item, frame, limit)))
    return invalid


def finding_of_invalid(item: Breaking, frame: Frame, invalid: Mapping[int, Invalid], sku: Sku) -> Finding:
    """The finding of a row, invalid or not: an invalid row fails no device, and a temperature that is beyond its limit
    by no more than the air is too hot says nothing about its device.
    """
    reason = invalid.get(item.position)
    if reason is None:
        return item.finding
    of_limit = item.rule.kind not in (*FLEET_KINDS, *INVALID_KINDS)
    if of_limit and 0 < _beyond(item, frame, _limit_of(item, frame, sku)) <= reason.excess:
        return dataclasses.replace(item.finding, severity=Severity.INFO)
    critical = item.finding.severity is Severity.CRITICAL
    return dataclasses.replace(item.finding, severity=Severity.WARNING) if critical else item.finding


def _limit_of(item: Breaking, frame: Frame, sku: Sku) -> Limit:
    return sku.all_limits[int(frame[f"{item.rule.column}_by"][item.position])]


def _beyond(item: Breaking, frame: Frame, limit: Limit) -> float:
    """By how many °C a temperature is beyond a limit of its own; 0 for all else: siblings take in the same air."""
    if limit.unit != _TEMPERATURE or limit.kind.looks_at(limit) != "value":
        return 0.0
    return abs(float(frame["value"][item.position]) - float(frame[f"{item.rule.column}_at"][item.position]))


def _positions_of(frame: Frame, metrics: Sequence[str]) -> list[int]:
    return [at for at, metric in enumerate(frame["metric"]) if metric in metrics] if metrics else []
