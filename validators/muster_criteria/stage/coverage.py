"""Coverage: what (SKU, stage, level) requires, against what was measured and judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from muster_criteria.devices import kind_of, natural
from muster_criteria.labels import labelled
from muster_criteria.measured import NOT_SUPPORTED, ProbeEnd, StageResult
from muster_criteria.model import UNJUDGED, Coverage, Gap, Lack
from muster_criteria.rows import (
    COUNTED_BY,
    DEVICES_MAX,
    NOT_COUNTED,
    PRESENCE,
    PRESENCE_PROBE,
    counted_gpus,
    first_gpus,
)
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import Need, promised, requires, stage_probes, watching
from muster_criteria.stage.frame import Frame
from muster_criteria.stage.invalid import Invalid
from muster_criteria.stage.rules import RULES
from muster_criteria.words import listed

AT_REST = "no reading found the GPU at work"
"""The note of what is read under load only, as ``muster_node.workloads.under_load.gpus`` writes it. That siblings
were found at work is then no sign of a fault."""


SENSOR_SHARE, WHOLE = "sensor_share", 99.0
"""The metric with the share (%) of attempts to read a device's sensors that gave a reading, and the least share of a
device that answered throughout."""


@dataclasses.dataclass
class Tally:
    """Coverage while it is counted: what is missing or unjudged, and notes."""

    required: int = 0
    missing: list[Gap] = dataclasses.field(default_factory=list)
    unjudged: list[Gap] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    def miss(self, gap: Gap) -> None:
        """Count one more requirement, which was not met."""
        self.required += 1
        self.missing.append(gap)

    def leave_unjudged(self, gap: Gap) -> None:
        """Count one more requirement, which was measured and not judged."""
        self.required += 1
        self.unjudged.append(gap)

    def coverage(self) -> Coverage:
        """The tally as a value."""
        measured = self.required - len(self.missing)
        return Coverage(
            required=self.required,
            measured=measured,
            judged=measured - len(self.unjudged),
            missing=tuple(self.missing),
            unjudged=tuple(self.unjudged),
        )


def tally(result: StageResult, frame: Frame, invalid: Mapping[int, Invalid], sku: Sku, wanted: Sequence[Need]) -> Tally:
    """Count everything that was required; of a repeat, what the probes that watch its load must have measured.

    ``invalid``: {row: why it is invalid}; ``wanted``: of ``programme.needs``.
    """
    counted = Tally()
    if result.partial or result.end != "completed":
        why = result.notes[0] if result.notes else "the node gives no reason"
        counted.miss(Gap(Lack.ENDED_EARLY, why, f"the rest of the job, which ended early ({result.end})"))
    ends = _ends(result.probes)
    probes = stage_probes(sku, result.stage, result.level)
    if result.repeat:
        probes = {name: probes[name] for name in watching(sku, result.stage, result.level)}
        wanted = [need for need in wanted if need.probe in probes]
        invalid = {at: why for at, why in invalid.items() if frame["probe"][at] in probes}
    if PRESENCE_PROBE in probes:
        _presence(frame, ends, sku, counted)
    first = len(counted.missing)
    requirements = _Requirements(frame, invalid, ends, sku, counted, counted_gpus(result, sku))
    for need in wanted:
        requirements.count(need)
    requirements.finish()
    beside = [*_beside(frame, invalid, requirements.seen)]
    counted.required += len(beside)
    counted.missing[first:first] = beside  # before the gaps that follow from them
    if not counted.required:
        why = "the programme requires nothing here, so the stage cannot pass"
        counted.miss(Gap(Lack.NOTHING_REQUIRED, why, "everything"))
    for probe in probes:
        if probe not in requirements.missed_by and not _completed(ends.get(probe)):
            _unfinished_probe(probe, ends.get(probe), requires(sku, probe, probes[probe]), counted)
    return counted


def _ends(ends: Sequence[ProbeEnd]) -> dict[str, ProbeEnd]:
    """Returns {probe: its end}; of several ends, one that is not ``completed``."""
    chosen: dict[str, ProbeEnd] = {}
    for end in sorted(ends, key=lambda end: (end.status == "completed", end.status, end.reason)):
        chosen.setdefault(end.probe, end)
    return chosen


def _completed(end: ProbeEnd | None) -> bool:
    return end is not None and end.status == "completed"


def _ended(end: ProbeEnd | None) -> tuple[Lack, str]:
    if end is None:
        return Lack.DID_NOT_RUN, "the probe did not run"
    verb = {"skipped": "skipped", "crashed": "crashed", "timed_out": "timed out", "completed": "completed"}[end.status]
    return Lack.PROBE_ENDED, f"the probe {verb}{f': {end.reason}' if end.reason else ''}".rstrip(".")


def _unfinished_probe(probe: str, end: ProbeEnd | None, required: bool, counted: Tally) -> None:
    gap = Gap(*_ended(end), probe)
    if end is not None and end.status == "skipped" and not required:
        counted.notes.append(str(gap))
    else:
        counted.miss(gap)


def _presence(frame: Frame, ends: Mapping[str, ProbeEnd], sku: Sku, counted: Tally) -> None:
    number = sku.devices.get("gpu")
    if not isinstance(number, int) or number == 0:
        return
    answers = frame["value"][frame["metric"] == PRESENCE]
    if not answers.size:
        counted.miss(Gap(*_ended(ends.get(PRESENCE_PROBE)), f"whether all {number} GPUs answer"))
    elif not answers.any():
        notes = frame["note"][(frame["metric"] == COUNTED_BY["gpu"]) & (frame["note"] != "")]
        said = f": {notes[0]}" if notes.size else ", so first suspect the driver, then the baseboard"
        why = f"none of the {number} answers{said}"
        counted.miss(Gap(Lack.NO_ANSWER, why, "all GPUs"))
    else:
        counted.required += number


def _beside(frame: Frame, invalid: Mapping[int, Invalid], seen: Collection[int]) -> Iterator[Gap]:
    """Yields a gap for each row that is not required, but was to be judged, and is invalid or was refused.

    ``seen``: the rows of what is required.
    """
    gaps = {at: Gap(Lack.INVALID, reason.why) for at, reason in invalid.items() if reason.itself}
    for at in np.flatnonzero(frame["refused"] & frame["limited"] & (frame["note"] != NOT_COUNTED)).tolist():
        name = labelled(frame["metric"][at], frame["labels"][at])
        gaps[at] = Gap(Lack.REFUSED, frame["note"][at], name, frame["device"][at])
    return (gaps[at] for at in sorted(gaps.keys() - seen))


def _excused(need: Need, notes: Sequence[str]) -> bool:
    """Whether a need that could not be read, for these reasons, is excused."""
    requirement = need.requirement
    return requirement.where_readable or (requirement.where_supported and set(notes) == {NOT_SUPPORTED})


class _Requirements:
    """Counts needs against the frame's rows."""

    def __init__(
        self,
        frame: Frame,
        invalid: Mapping[int, Invalid],
        ends: Mapping[str, ProbeEnd],
        sku: Sku,
        counted: Tally,
        gpus: Collection[str] | None,
    ) -> None:
        self.missed_by: set[str] = set()
        self.seen: set[int] = set()
        self._frame, self._invalid, self._ends, self._sku, self._counted = frame, invalid, ends, sku, counted
        self._gpus = None if gpus is None else sorted(gpus, key=natural)
        self._rows: dict[tuple[str, str], dict[str, list[tuple[frozenset[tuple[str, str]], int]]]] = {}
        columns = zip(*(frame[name].tolist() for name in ("probe", "metric", "device", "labels")), strict=True)
        sets = {labels: frozenset(labels) for labels in set(frame["labels"].tolist())}
        for position, (probe, metric, device, labels) in enumerate(columns):
            self._rows.setdefault((probe, metric), {}).setdefault(device, []).append((sets[labels], position))
        judged = np.zeros(len(frame), dtype=np.bool_)
        for rule in RULES:
            if rule.judges and rule.column in frame.columns:
                judged |= ~np.isnan(frame[rule.column])
        self._judged, self._usable = judged.tolist(), frame["usable"].tolist()
        self._absent = set(frame["device"][(frame["metric"] == PRESENCE) & (frame["value"] == 0)].tolist())
        self._cpus = sorted(set(frame["device"][frame["kind"] == "cpu"].tolist()), key=natural)
        self._unreadable: dict[tuple[str, str], list[str]] = {}

    def count(self, need: Need) -> None:
        """Count one need on each of its devices."""
        name = labelled(need.requirement.metric, need.labels)
        devices = self._devices(need)
        if isinstance(devices, str):
            self._miss(need, Gap(Lack.UNCOUNTED, devices, name, need.requirement.devices))
            return
        wanted, rows = frozenset(need.labels), self._rows.get((need.probe, need.requirement.metric), {})
        for device in devices:
            positions = [position for labels, position in rows.get(device, ()) if labels >= wanted]
            if positions:
                self._on(need, name, device, positions)
            else:
                self._miss(need, Gap(*self._unreported(need, device), name, device))

    def finish(self) -> None:
        """Add a note per reason for what could not be read on this machine."""
        for (name, why), devices in sorted(self._unreadable.items()):
            self._counted.notes.append(f"{name} on {listed(devices)}: {why}")

    def _on(self, need: Need, name: str, device: str, positions: Sequence[int]) -> None:
        """Count one need on a device with rows at these positions."""
        self.seen.update(positions)
        empty = [at for at in positions if not self._usable[at]]
        notes = sorted({str(self._frame["note"][at]) or "no value and no reason given" for at in empty})
        honest = all(self._frame["note"][at] and not self._frame["refused"][at] for at in empty)
        invalid = [self._invalid[at].why for at in positions if at in self._invalid]
        if invalid:
            self._miss(need, Gap(Lack.INVALID, invalid[0], name, device))
        elif notes and honest and _excused(need, notes) and _completed(self._ends.get(need.probe)):
            if shown := self._shown_by_others(need, device, empty):
                self._miss(need, Gap(Lack.UNREADABLE, shown, name, device))
            elif not need.requirement.where_supported:  # what a device is not made with is not worth a note
                self._unreadable.setdefault((name, "; ".join(notes)), []).append(device)
            self._instead(need, device)
        elif notes:
            self._miss(need, Gap(Lack.UNREADABLE if honest else Lack.REFUSED, "; ".join(notes), name, device))
        else:
            self._counted.required += 1
            if need.requirement.judged and not all(self._judged[at] for at in positions):
                self._counted.unjudged.append(Gap(Lack.UNJUDGED, UNJUDGED, name, device))

    def _unreported(self, need: Need, device: str) -> tuple[Lack, str]:
        """Why there is no row of a device."""
        end = self._ends.get(need.probe)
        if device in self._absent:
            return Lack.NO_ANSWER, "it does not answer"
        if not _completed(end):
            return _ended(end)
        if promised(need):
            return self._no_sensor(need.probe, need.requirement.metric, device)
        return Lack.NOT_REPORTED, "the probe did not report it"

    def _instead(self, need: Need, device: str) -> None:
        """Count as unjudged ``or_judged``: what has to be judged on a device that lacks what ``need`` requires."""
        metric, wanted = need.requirement.or_judged, frozenset(need.labels)
        found = self._rows.get((need.probe, metric), {}).get(device, [])
        # What was not measured is missing by its own requirement.
        if any(self._usable[at] and not self._judged[at] for labels, at in found if labels >= wanted):
            self._counted.unjudged.append(Gap(Lack.UNJUDGED, UNJUDGED, labelled(metric, need.labels), device))

    def _shown_by_others(self, need: Need, device: str, empty: Sequence[int]) -> str:
        """Why a row without a value is a miss although the reason would excuse it: others of its kind have one."""
        rows, frame = self._rows[need.probe, need.requirement.metric], self._frame
        for at in empty:
            labels, note = set(frame["labels"][at]), str(frame["note"][at])
            others = [
                other
                for other, found in rows.items()
                if other != device and kind_of(other) == kind_of(device)
                and any(of == labels and self._usable[place] for of, place in found)
            ]  # fmt: skip
            if others and note != AT_REST:
                return (
                    f"{note or 'no value and no reason given'}, though {listed(sorted(others, key=natural), 3)} show it"
                )
        return ""

    def _no_sensor(self, probe: str, metric: str, device: str) -> tuple[Lack, str]:
        """A device whose sensors stopped answering may have the sensor; so may one whose siblings have it."""
        for _, position in self._rows.get((probe, SENSOR_SHARE), {}).get(device, ()):
            value, note = self._frame["value"][position], self._frame["note"][position]
            if not value >= WHOLE:
                why = f"the sensors of {device} did not answer throughout ({note or 'no reading came'})"
                return Lack.SENSOR_STOPPED, why
        siblings = [other for other in self._rows.get((probe, metric), {}) if kind_of(other) == kind_of(device)]
        if siblings:
            return Lack.NO_SENSOR, f"it reports none, though {listed(sorted(siblings, key=natural), 3)} do"
        return Lack.NO_SENSOR, "the node has no such sensor"

    def _miss(self, need: Need, gap: Gap) -> None:
        self.missed_by.add(need.probe)
        self._counted.miss(gap)

    def _devices(self, need: Need) -> list[str] | str:
        """The devices of a need by name, or why they cannot be named."""
        wanted = need.requirement.devices
        if not wanted.startswith("each "):
            return [wanted]
        kind = wanted.removeprefix("each ")
        number = self._number(kind)
        if isinstance(number, str):
            return number
        if kind == "gpu":
            return self._gpus or sorted(first_gpus(number), key=natural)
        seen = self._cpus
        if kind == "core":
            reported = self._rows.get((need.probe, need.requirement.metric), {})
            seen = [device for device in seen if device in reported]
        others = (f"cpu{n}" for n in range(DEVICES_MAX * 2) if f"cpu{n}" not in set(seen))
        return seen + [next(others) for _ in range(number - len(seen))]

    def _number(self, kind: str) -> int | str:
        counted = self._sku.devices.get(kind)  # type: ignore[call-overload]
        if isinstance(counted, int):
            return counted
        if counted is None:
            return f"SKU {self._sku.name} does not say how many there are"
        frame = self._frame
        counts = frame["value"][(frame["metric"] == COUNTED_BY[kind]) & (frame["device"] == "node") & frame["usable"]]
        if not counts.size or not 1 <= counts.min() <= DEVICES_MAX:
            return f"the inventory does not say how many there are ({COUNTED_BY[kind]})"
        return int(counts.max())
