"""What a node's BMC shows between tests: its sensors as states, new entries of its logs as events. Pure.

A sensor without a reading is neither good nor bad. What a log held at its first complete reading after the node entered
service is not new, since earlier tests have judged that machine. Each log starts on its own, so that one which the BMC
cannot read hides no entries of the others.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import zlib
from collections.abc import Iterable, Sequence
from typing import Literal

from muster_criteria.health.policy import Bmcs
from muster_criteria.health.readings import Reading
from muster_criteria.text import one_line

SILENT = "bmc_silent"
"""The state of a BMC that does not answer, or whose answer cannot be used."""
LOG_LONG = "bmc_log_long"
BAD = ("warning", "critical")
KEYS_MAX = 16_384
"""Entries of a BMC's logs that are remembered, and compared: the newest, of some logs of 2,000 entries each."""
PRESENT_MAX = 512
"""Power supplies that are remembered."""
LOGS_MAX = 4096
"""Logs that are remembered."""
DEVICES_MAX = 64
"""Sources of entries that are distinguished in one reading, since a BMC may name any number of them."""


@dataclasses.dataclass(frozen=True)
class Sensor:
    """One sensor. ``device``: unique within the BMC, by the vendor's name; ``state``: ok, warning or critical, "absent"
    for a bay that the BMC calls empty, None where it tells none; ``value``: RPM, % or °C by ``unit``, None without one.
    """

    kind: Literal["fan", "psu", "inlet", "leak"]
    device: str
    state: str | None = None
    value: float | None = None
    unit: str = ""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry of a log that is not OK. ``origin``: what it is about, "bmc" if it does not say; ``log``: a short,
    stable name of its log; ``repeated``: when its event was seen last, "" if that was at ``created``; ``resolved``:
    whether a person has marked it as resolved.
    """

    id: str
    created: str
    severity: str
    text: str
    origin: str = "bmc"
    log: str = ""
    repeated: str = ""
    resolved: bool = False

    @property
    def key(self) -> str:
        """A fingerprint. Number or time alone would not do: a cleared log restarts its numbers, and clocks are set."""
        repeated = (_in_utc(self.repeated),) if self.repeated else ()
        whole = "\0".join((self.id, _in_utc(self.created), self.severity, self.text, *repeated))
        return f"{zlib.crc32(whole.encode('utf-8', 'replace')):08x}"


def _in_utc(time: str) -> str:
    """Returns the time in UTC, since a BMC shows its whole log in another zone once its own was changed; unchanged if
    it has no zone, or is no time.
    """
    try:
        at = datetime.datetime.fromisoformat(time)
        return time if at.tzinfo is None else at.astimezone(datetime.UTC).isoformat()
    except (ValueError, OverflowError):
        return time


@dataclasses.dataclass(frozen=True)
class Shown:
    """What one reading of a BMC gave. ``logs``: those that were read whole, as ``Entry.log``; ``long``: logs whose
    newest entries may not have been reached, without entries; ``trouble``: why the reading is not complete.
    """

    sensors: tuple[Sensor, ...] = ()
    entries: tuple[Entry, ...] = ()
    logs: tuple[str, ...] = ()
    long: tuple[str, ...] = ()
    trouble: str = ""


@dataclasses.dataclass(frozen=True)
class Known:
    """What earlier readings left. ``keys``: of the entries; ``logs``: those that were read whole once, and ``present``:
    power supplies that had a state once, since the node entered service.
    """

    keys: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    present: tuple[str, ...] = ()


NOTHING_KNOWN = Known()


def read(shown: Shown, known: Known, policy: Bmcs) -> tuple[list[Reading], Known]:
    """Returns what a reading shows, and what to remember of it."""
    found = [Reading(SILENT, "bmc", one_line(shown.trouble), bad=bool(shown.trouble))]
    gone, present = _missed(shown, known)
    sensors = (*shown.sensors, *(Sensor("psu", each, "absent") for each in gone))
    found += [each for sensor in sensors if (each := _of_sensor(sensor, known, policy)) is not None]
    if not shown.trouble or shown.long:
        found.append(Reading(LOG_LONG, "bmc", ", ".join(shown.long), bad=bool(shown.long)))
    entries = sorted(shown.entries, key=lambda each: each.created)[-KEYS_MAX:]
    begun = frozenset(known.logs)
    found += _of_log([each for each in entries if each.log in begun], frozenset(known.keys))
    # With trouble, or with a long log, entries that are not shown may still be there.
    before = known if shown.trouble or shown.long else NOTHING_KNOWN
    keys = _newest(before.keys, [each.key for each in entries], KEYS_MAX)
    return found, Known(keys, _newest(before.logs, shown.logs, LOGS_MAX), present)


def _missed(shown: Shown, known: Known) -> tuple[list[str], tuple[str, ...]]:
    """Returns (supplies that are no longer listed, supplies to remember). Each new name counts as a renamed or replaced
    supply, but not one without a state: a supply without a document has no name of its own.
    """
    supplies = [each for each in shown.sensors if each.kind == "psu"]
    listed = {each.device for each in supplies}
    there = {each.device for each in supplies if each.state not in (None, "absent")}
    missing = [each for each in known.present if each not in listed]
    heirs = len(there.difference(known.present))
    present = there.union(known.present).difference(missing[:heirs])
    # With trouble, supplies that are not shown may still be there.
    return [] if shown.trouble else missing[heirs:], tuple(sorted(present)[:PRESENT_MAX])


def _newest(before: Iterable[str], now: Sequence[str], most: int) -> tuple[str, ...]:
    """Returns up to ``most`` values, with those of ``now`` last, so that older ones are dropped first."""
    latest = set(now)
    return tuple([*(each for each in before if each not in latest), *dict.fromkeys(now)][-most:])


def _of_sensor(sensor: Sensor, known: Known, policy: Bmcs) -> Reading | None:
    value = "" if sensor.value is None else f"{sensor.value:g} {sensor.unit}".strip()
    text = ", ".join(filter(None, (sensor.state or "", value)))
    if sensor.kind == "inlet":
        hot = sensor.value is not None and sensor.value > policy.inlet_c
        return None if sensor.value is None else Reading("inlet_hot", sensor.device, text, bad=hot)
    check = {"fan": "fan_failed", "psu": "psu_failed", "leak": "leak"}[sensor.kind]
    if sensor.kind == "psu" and sensor.state == "absent":
        return Reading(check, sensor.device, "absent", bad=True) if sensor.device in known.present else None
    stopped = sensor.value == 0 and sensor.unit == "RPM"
    if sensor.state in BAD or stopped:
        return Reading(check, sensor.device, text, bad=True)
    return Reading(check, sensor.device, text, bad=False) if sensor.state == "ok" else None


def _of_log(entries: Sequence[Entry], before: frozenset[str]) -> list[Reading]:
    """Returns a reading for each severity and origin of new ``entries`` (oldest first), with the newest one's text.

    A resolved entry does not count as new: the mark hides when it was repeated, so its key may have changed.
    """
    new: dict[tuple[str, str], list[Entry]] = collections.defaultdict(list)
    for each in entries:
        if each.key not in before and not each.resolved:
            origin = each.origin if len(new) < DEVICES_MAX or (each.severity, each.origin) in new else "bmc"
            new[each.severity, origin].append(each)
    return [
        Reading(f"bmc_log/{severity}", origin, one_line(those[-1].text), count=len({each.key for each in those}))
        for (severity, origin), those in new.items()
    ]
