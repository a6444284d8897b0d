"""The readings of a node's BMC, joined to the node's own measurements. Pure.

The readings become measurements of the probe ``chassis``, marked by the label ``source``. Of those before, during and
after the load of a stage, the worst of each sensor counts.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping

from pydantic import ValidationError

from muster_criteria.measured import Measured, ProbeEnd, StageResult

PROBE = "chassis"
SOURCE = "redfish"
STAGES = ("burn_in", "thermal")
"""Stages in which a configured BMC is read: those that load the machine and judge cooling and power."""

UNITS = {
    "fan_speed": "RPM",
    "fan_duty": "%",
    "fan_state": "text",
    "inlet_temperature": "°C",
    "psu_state": "text",
    "psu_input_power": "W",
}
_LOWER_IS_WORSE = ("fan_speed", "fan_duty")
_WORST_FIRST = ("lost", "critical", "warning", "ok")
_SILENT = ": not supported"
_AND = "; "


@dataclasses.dataclass(frozen=True)
class Chassis:
    """A BMC's readings during one stage. ``trouble``: why readings are missing, one sentence."""

    readings: tuple[Measured, ...] = ()
    trouble: str = ""

    def to_json(self) -> str:
        """JSON, as kept with a waiting task and with the stage's result."""
        return json.dumps({"readings": [each.model_dump() for each in self.readings], "trouble": self.trouble})

    @classmethod
    def from_json(cls, text: str | bytes) -> Chassis:
        """Parses ``to_json``'s output; unreadable text becomes ``trouble``."""
        try:
            raw = json.loads(text)
            readings = tuple(Measured.model_validate(each) for each in raw["readings"])
            return cls(readings, str(raw["trouble"]))
        except (ValueError, KeyError, TypeError, ValidationError):
            return cls(trouble="the BMC readings from before the load cannot be read")


def reading(metric: str, device: str, value: float | None, text: str | None, name: str) -> Measured:
    """One sensor's reading; ``name`` is the vendor's. Neither ``value`` nor ``text``: the sensor gives no reading."""
    silent = value is None and text is None
    return Measured(
        probe=PROBE,
        metric=metric,
        device=device,
        unit=UNITS[metric],
        value=value,
        text=text,
        labels={"source": SOURCE},
        note=f"{name}{_SILENT} (the BMC has no reading of it)" if silent else name,
    )


def merged(before: Chassis | None, after: Chassis, *, meanwhile: bool = False) -> Chassis:
    """Two readings of a stage as one: the worse of each sensor.

    A state that is gone afterwards becomes "lost". It stays ``meanwhile`` (during the load), since a busy BMC omits
    sensors now and then. A last reading with trouble says nothing of what it lacks: what was ok has no reading then.
    """
    if before is None:
        return after
    sentences = (each for chassis in (before, after) for each in chassis.trouble.split(_AND) if each)
    trouble = _AND.join(dict.fromkeys(sentences))
    partial = meanwhile or bool(after.trouble)
    later = dict(_keyed(_as_many(before.readings, after.readings) if partial else after.readings))
    earlier = dict(_keyed(before.readings))
    gone = _kept if meanwhile else _unknown if after.trouble else _lost
    both = [_worse(each, later.get(key), gone) for key, each in earlier.items()]
    same = {each.device: earlier[key].device for key, each in later.items() if key in earlier}
    new = [each for key, each in later.items() if key not in earlier]
    return Chassis((*both, *_added(both, new, same)), trouble)


def with_earlier(earlier: str, now: Chassis, *, meanwhile: bool = False) -> Chassis:
    """The reading merged with the ``earlier`` ones of its stage (JSON, "" for none); see ``merged``."""
    return merged(Chassis.from_json(earlier) if earlier else None, now, meanwhile=meanwhile)


def _added(both: Iterable[Measured], new: Iterable[Measured], same: Mapping[str, str]) -> Iterator[Measured]:
    """The readings that are new, with devices of their own: a BMC's parts have other numbers while one is missing.

    ``same``: the earlier device of each part that has another reading in common.
    """
    taken, devices = {each.device for each in both}, dict(same)
    for each in new:
        kind = each.device.rstrip("0123456789")
        free = (device for number in itertools.count() if (device := f"{kind}{number}") not in taken)
        if each.device not in devices:
            devices[each.device] = each.device if each.device not in taken else next(free)
            taken.add(devices[each.device])
        yield each.model_copy(update={"device": devices[each.device]})


def _as_many(before: Iterable[Measured], now: Iterable[Measured]) -> list[Measured]:
    """The present readings whose names occur as often as before or more: which of equal names is omitted is unknown."""
    names = collections.Counter(key[:2] for key, _ in _keyed(before))
    listed = list(_keyed(now))
    again = collections.Counter(key[:2] for key, _ in listed)
    return [each for key, each in listed if again[key[:2]] >= names[key[:2]]]


def _keyed(readings: Iterable[Measured]) -> Iterator[tuple[tuple[str, str, int], Measured]]:
    """Each reading with a key of metric, vendor's name and count, since names repeat and lists may get shorter."""
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    for each in readings:
        name = "" if each.device == "inlet" else each.note.partition(_SILENT)[0]
        seen[each.metric, name] += 1
        yield (each.metric, name, seen[each.metric, name]), each


def _silent(measured: Measured | None) -> bool:
    return measured is None or (measured.value is None and measured.text is None)


def _kept(state: Measured) -> Measured:
    return state


def _unknown(state: Measured) -> Measured:
    name = state.note.partition(_SILENT)[0]
    return state if state.text != "ok" else reading(state.metric, state.device, None, None, name)


def _lost(state: Measured) -> Measured:
    return state.model_copy(update={"text": "lost"})


def _worse(one: Measured, other: Measured | None, gone: Callable[[Measured], Measured]) -> Measured:
    if _silent(one):
        return one if other is None else other.model_copy(update={"device": one.device})
    if other is None or _silent(other):
        return one if one.text is None else gone(one)
    samples = one.samples + other.samples
    if one.text is not None and other.text is not None:
        return one.model_copy(update={"text": min(one.text, other.text, key=_gravity), "samples": samples})
    values = [each.value for each in (one, other) if each.value is not None]
    value = min(values) if one.metric in _LOWER_IS_WORSE else max(values)
    return one.model_copy(update={"value": value, "samples": samples})


def _gravity(state: str) -> int:
    return _WORST_FIRST.index(state) if state in _WORST_FIRST else 0


def joined(result: StageResult, chassis: Chassis | None) -> StageResult:
    """The node's result with the BMC's readings among its measurements.

    Unless the node's own chassis probe ran, that probe ends as the BMC's reading did, so that a promised sensor is
    missing for the true reason.
    """
    if chassis is None:
        return result
    notes = [*result.notes, chassis.trouble] if chassis.trouble else result.notes
    return result.model_copy(
        update={
            "measurements": [*result.measurements, *chassis.readings],
            "probes": list(_ends(result.probes, chassis)),
            "notes": notes,
        }
    )


def _ends(ends: Iterable[ProbeEnd], chassis: Chassis) -> Iterable[ProbeEnd]:
    own = next((end for end in ends if end.probe == PROBE), None)
    yield from (end for end in ends if end.probe != PROBE)
    if own is not None and own.status != "skipped":
        yield own
        return
    started, took = (own.started_at, own.duration_s) if own else (0.0, 0.0)
    if chassis.readings:
        yield ProbeEnd(probe=PROBE, status="completed", reason="", started_at=started, duration_s=took)
    else:
        yield ProbeEnd(probe=PROBE, status="skipped", reason=chassis.trouble, started_at=started, duration_s=took)
