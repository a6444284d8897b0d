"""Rows that are no measurement of their device: by their own value, or since another measurement says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from muster_criteria.fleet.series.keyed import given_name
from muster_criteria.fleet.single import FLEET_PROBE
from muster_criteria.kinds import LIMIT_KINDS
from muster_criteria.model import Finding, Severity, Variant
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.findings import Breaking, Origins
from muster_criteria.stage.frame import Frame
from muster_criteria.stage.rules import FLEET_KINDS, INVALID_KINDS

_TEMPERATURE = "°C"
_OF_LIMITS = frozenset(kind.rule for kind in LIMIT_KINDS.values())
_OF_READINGS = (Variant.RETEST, Variant.PERSISTENT, Variant.CLEARED)


@dataclasses.dataclass(frozen=True)
class Invalid:
    """Why a row is invalid.

    Attributes:
        why: A sentence for operators.
        itself: Whether its own value is the reason, and not another measurement.
        excess: By how many °C the air that reaches the device is too hot; 0 where the reason is another.
    """

    why: str
    itself: bool
    excess: float = 0.0


def invalid_rows(frame: Frame, breaking: Sequence[Breaking], sku: Sku) -> dict[int, Invalid]:
    """Returns {invalid row: reason}; the reason is the row's own value or another measurement's.

    What is computed from invalid rows is invalid too: derived metrics, and what the fleet's rules compute.
    """
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
    if invalid:
        _add_computed(invalid, frame, breaking, sku)
    return invalid


def _add_computed(invalid: dict[int, Invalid], frame: Frame, breaking: Sequence[Breaking], sku: Sku) -> None:
    """Add what is computed from invalid rows; of the fleet's rows, only those that break a rule matter."""
    bad = {(frame["metric"][at], frame["device"][at], frame["labels"][at]): why for at, why in invalid.items()}
    for each in sku.programme.derive:
        for at in _positions_of(frame, (each.metric,)):
            device, labels = frame["device"][at], frame["labels"][at]
            sources = ((each.of, device, labels), (each.per, device, labels), (each.per, device, ()))
            if why := next((bad[source] for source in sources if source in bad), None):
                invalid.setdefault(at, dataclasses.replace(why, itself=False))
    origins = Origins(frame)
    for item in breaking:
        if item.rule.kind not in FLEET_KINDS or frame["probe"][item.position] != FLEET_PROBE:
            continue
        row = frame.row(item.position)
        comparison = sku.programme.compare[int(row[f"{item.rule.column}_by"])]
        if why := next((invalid[at] for at in origins.of(row, comparison, sku) if at in invalid), None):
            invalid.setdefault(item.position, dataclasses.replace(why, itself=False))


def finding_of_invalid(item: Breaking, frame: Frame, invalid: Mapping[int, Invalid], sku: Sku) -> Finding:
    """The finding of a row, invalid or not: an invalid row fails no device, and a temperature that exceeds its limit by
    no more than the incoming air exceeds its own says nothing about its device.
    """
    reason = invalid.get(item.position)
    if reason is None:
        return item.finding
    of_limit = item.rule.kind not in (*FLEET_KINDS, *INVALID_KINDS)
    if of_limit and 0 < _beyond(item, frame, _limit_of(item, frame, sku)) <= reason.excess:
        return dataclasses.replace(item.finding, severity=Severity.INFO)
    critical = item.finding.severity is Severity.CRITICAL
    return dataclasses.replace(item.finding, severity=Severity.WARNING) if critical else item.finding


def explained(findings: Sequence[Finding], breaking: Sequence[Breaking], frame: Frame, sku: Sku) -> list[Finding]:
    """The findings; those that a broken limit of their device ``explains`` get its fault and action, and say so.

    Those that repeats cleared or have yet to decide stay as they are: their action concerns the readings.
    """
    causes: dict[tuple[str, str], Limit] = {}
    for item in breaking:
        if item.rule.kind in _OF_LIMITS:
            limit = _limit_of(item, frame, sku)
            causes.update(((item.finding.device, metric), limit) for metric in _with_indices(limit, sku))

    def named(each: Finding) -> Finding:
        limit = causes.get((each.device, each.metric))
        if limit is None or each.severity is Severity.INFO or each.variant in _OF_READINGS:
            return each
        summary = f"{each.summary} It {limit.meaning}."
        return dataclasses.replace(each, fault_class=limit.fault, action=limit.action, summary=summary)

    return [named(each) for each in findings]


def _with_indices(limit: Limit, sku: Sku) -> set[str]:
    """The metrics that the limit explains, and the indices of their families: in a fleet these judge them too."""
    compare = [each for each in sku.programme.compare if each.family and each.device == limit.device]
    families = {each.family for each in compare if each.metric in limit.explains}
    given = {given_name(each) for each in compare if each.given and each.family in families}
    return {*limit.explains, *given, *(f"{family}_index" for family in families)}


def _limit_of(item: Breaking, frame: Frame, sku: Sku) -> Limit:
    return sku.all_limits[int(frame[f"{item.rule.column}_by"][item.position])]


def _beyond(item: Breaking, frame: Frame, limit: Limit) -> float:
    """By how many °C a temperature is beyond a limit of its own; 0 for all else: siblings take in the same air."""
    if limit.unit != _TEMPERATURE or limit.kind.looks_at(limit) != "value":
        return 0.0
    return abs(float(frame["value"][item.position]) - float(frame[f"{item.rule.column}_at"][item.position]))


def _positions_of(frame: Frame, metrics: Sequence[str]) -> list[int]:
    return [at for at, metric in enumerate(frame["metric"]) if metric in metrics] if metrics else []
