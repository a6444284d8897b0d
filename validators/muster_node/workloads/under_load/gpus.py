"""How each GPU's states and counters changed under a load: one set of metrics, whatever the load was.

Pure: readings in, figures out. A state has its name in the inventory, so that the same rules judge it. The reported
value is the one furthest from that before the load, whenever it was read: a link that went down and came back was down.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, Union

from muster_node.hardware.seam import NOT_SUPPORTED, Fact
from muster_node.probe import Metric
from muster_node.workloads.under_load.growth import Growth, gone, growth, resets, total
from muster_node.workloads.under_load.settings import changes, settings

Content = Optional[Union[float, str]]
DELTAS = {
    "ecc_uncorrected_delta": "ecc_uncorrected",
    "ecc_corrected_delta": "ecc_corrected",
    "pcie_replay_delta": "pcie_replay",
    "row_remap_corrected_delta": "row_remap_corrected",
    "row_remap_uncorrected_delta": "row_remap_uncorrected",
}
STATES = {
    "row_remap_pending": Metric("bool", "whether a row remap waits for a reset", on="gpu"),
    "row_remap_failed": Metric("bool", "whether a row could not be remapped", on="gpu"),
    "channel_repair_pending": Metric("bool", "whether a spare memory channel waits for a reset", on="gpu"),
    "tpc_repair_pending": Metric("bool", "whether the retirement of a part of the GPU waits for a reset", on="gpu"),
    "unrepairable_memory": Metric("bool", "whether memory is bad beyond repair", on="gpu"),
    "retired_pages_pending": Metric("bool", "whether a page waits for a reset to be retired", on="gpu"),
    "sram_threshold_exceeded": Metric("bool", "whether SRAM errors passed NVIDIA's replacement limit", on="gpu"),
    "recovery_action": Metric("text", "what the driver says that the GPU needs", on="gpu"),
    "mode_change_pending": Metric("bool", "whether ECC or MIG mode will be another one after the next reset", on="gpu"),
    "ecc_mode": Metric("bool", "whether ECC is on", on="gpu"),
    "mig_mode": Metric("bool", "whether MIG is on", on="gpu"),
    "nvlink_active": Metric("count", "NVLinks that are up", on="gpu"),
    "fabric_state": Metric("text", "how far the GPU has come in joining its NVSwitch fabric", on="gpu"),
    "fabric_healthy": Metric("bool", "whether the fabric manager calls the GPU healthy", on="gpu"),
}
RECOVERIES = (
    "none", "recovery of the IMEX domain", "drain of peer traffic", "reset of the GPU", "reset of the bus",
    "drain and reset", "reboot of the node", "reboot of the system",
)  # fmt: skip
"""What a driver may say that a GPU needs, mildest first; what it says otherwise is taken for the gravest."""
WORST: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    **dict.fromkeys(
        ("row_remap_pending", "row_remap_failed", "channel_repair_pending", "tpc_repair_pending", "unrepairable_memory",
         "retired_pages_pending", "sram_threshold_exceeded", "mode_change_pending"),
        max,
    ),
    **dict.fromkeys(("nvlink_active", "fabric_healthy"), min),
    "recovery_action": lambda known: max(
        known, key=lambda each: RECOVERIES.index(each) if each in RECOVERIES else len(RECOVERIES)
    ),
}  # fmt: skip
"""States of which one end is bad, so that one that was bad before the load, or recovered in it, was bad."""
METRICS = {
    "ecc_uncorrected_delta": Metric("count", "uncorrected ECC errors during the load", on="gpu"),
    "ecc_corrected_delta": Metric("count", "corrected ECC errors during the load", on="gpu"),
    "pcie_replay_delta": Metric("count", "PCIe replays during the load", on="gpu"),
    "pcie_replay_rate": Metric("1/min", "most PCIe replays within a minute of the load", on="gpu"),
    "nvlink_errors_delta": Metric("count", "NVLink errors during the load, by kind, over all links", on="gpu"),
    "row_remap_corrected_delta": Metric("count", "rows remapped for corrected errors during the load", on="gpu"),
    "row_remap_uncorrected_delta": Metric("count", "rows remapped for uncorrected errors during the load", on="gpu"),
    "throttle_time": Metric("s", "time spent throttled during the load, by reason", on="gpu"),
    "throttle_peak": Metric("s", "most time spent throttled within a minute of the load, by reason", on="gpu"),
    "counters_reset": Metric("count", "counters of the GPU that were reset during the load", on="gpu"),
    "pcie_generation_loaded": Metric("count", "lowest PCIe generation while the GPU was busy", on="gpu"),
    "pcie_width": Metric("count", "fewest PCIe lanes in use", on="gpu"),
    "clock_share": Metric("%", "highest clock of a GPU at work that nothing held, of the highest it has", on="gpu"),
    "foreign_processes": Metric("count", "most processes on the GPU that were not the job's own", on="gpu"),
    "settings_changed": Metric(
        "count", "clocks, limits and modes that were set otherwise than before the load", on="gpu"
    ),
    "inlet_temperature": Metric("°C", "median inlet temperature, where the node reads one: what a hot hall did"),
    "gpu_lost": Metric("bool", "whether the driver called the GPU lost, or in need of a reset, at any time", on="gpu"),
    **STATES,
}

COUNTED = ("sw_power_cap", "hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake")
HEAT = ("hw_thermal", "sw_thermal")
VIOLATION = "thermal"
"""Reasons of which the time is reported; of older drivers, the counter of heat of either kind."""
WELL_SAMPLED = 0.9
"""Share of the load over which the reasons must be known where no counter has them. Chosen here, as for sensors."""
LEAST_SAMPLED = 0.5
"""Share of the load over which what may come and go must be known, even if no two readings in a row lack it."""
COARSE_S = 6.0
"""By how many seconds readings may exceed a counter without contradicting it: twice what each stands for."""
AT_REST = "no reading found the GPU at work"
"""What the controller takes for no fault of a GPU whose siblings were found at work."""
MINUTE_S = 60.0
BUSY = 50.0
"""% utilisation from which a GPU counts as busy."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """All states and counters at one time (s of the machine's clock)."""

    at: float
    facts: Sequence[Fact]


@dataclasses.dataclass(frozen=True)
class Found:
    """A figure or text on a device, or why there is none."""

    metric: str
    device: str
    value: float | None = None
    text: str | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    samples: int = 1
    note: str = ""


RUN = 3
"""Equal readings in a row that are kept."""
_MOVING = ("throttle_time", "utilisation", "clock_share")


def add(readings: list[Reading], new: Reading) -> None:
    """Append a reading, or let it take the place of the last of a run that tells the same, so that days need little."""
    last = {_place(fact): fact for fact in readings[-1].facts} if readings else {}
    shared = tuple(last[_place(fact)] if last.get(_place(fact)) == fact else fact for fact in new.facts)
    new = dataclasses.replace(new, facts=shared)
    alike = len(readings) >= RUN and all(_tells(each) == _tells(new) for each in readings[-RUN:])
    if alike and not any(_fell(last.get(_place(fact)), fact) for fact in shared):
        moved = [max(last.get(_place(fact), fact), fact, key=lambda one: one.value or 0.0) for fact in shared]
        facts = [top if top.name == "clock_share" else fact for top, fact in zip(moved, shared)]  # the run's highest
        readings[-1] = dataclasses.replace(new, facts=tuple(facts))
    else:
        readings.append(new)


def _place(fact: Fact) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    return fact.name, fact.device, tuple(fact.labels.items())


def _tells(reading: Reading) -> list[object]:
    """A reading without what changes under any load, except whether its GPUs were busy."""
    steady: list[object] = [fact for fact in reading.facts if fact.name not in _MOVING]
    return steady + [(f.device, (f.value or 0.0) >= BUSY) for f in reading.facts if f.name == "utilisation"]


def _fell(before: Fact | None, after: Fact) -> bool:
    if before is None or before.value is None or after.name != "throttle_time":
        return False
    return after.value is None or after.value < before.value


Key = tuple[str, str, str]
"""Name, kind or reason, and link."""
Series = Mapping[Key, Sequence[Optional[Fact]]]
Sampled = Mapping[str, Mapping[str, float]]
"""By GPU: seconds in each throttle state, as far as readings tell; states joined by "+" held at once."""


def under_load(readings: Sequence[Reading], gpus: Iterable[str], sampled: Sampled) -> Iterator[Found]:
    """Everything about each GPU, from readings of which the first was before the load and the last after it."""
    for gpu in gpus:
        series = _series(readings, gpu)
        counted = {key: growth(facts) for key, facts in series.items()}
        yield from _deltas(gpu, series, counted, readings)
        yield from _nvlink(gpu, counted)
        counters = {key[1]: each for key, each in counted.items() if key[0] == "throttle_time"}
        yield from throttled(gpu, counters, sampled.get(gpu, {}), _seconds(readings))
        yield _resets(gpu, counted)
        times = [reading.at for reading in readings]
        for name, metric in STATES.items():
            facts = series.get((name, "", ""), ())
            yield _state(gpu, name, metric.unit, facts, _blind(times, facts) if name in PASSING else "")
        yield from _pcie(gpu, series, times)
        yield from _clocks(gpu, series, times)
        for name in ("foreign_processes", "gpu_lost"):
            facts = series.get((name, "", ""), ())
            yield _most(gpu, name, facts, _blind(times, facts) if name == "foreign_processes" else "")
        yield _settings(gpu, readings)


PASSING = ("nvlink_active", "fabric_state", "fabric_healthy")
"""States that may come and go during a load and leave nothing: what lies between two readings of them is unknown."""


def _blind(times: Sequence[float], facts: Sequence[Fact | None]) -> str:
    """Why changes during a load are unknown, "" if it was read often enough. ``times``: of all readings.

    A reading stands for half of the time to its neighbours. One missing reading between two others is no gap.
    """
    known = [_content(fact) is not None for fact in facts]
    pairs = list(zip(known, known[1:]))
    seen = sum((later - earlier) * (a + b) / 2.0 for (earlier, later), (a, b) in zip(zip(times, times[1:]), pairs))
    share = seen / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else 1.0
    in_a_row = any(not (a or b) for a, b in pairs)
    if not any(known) or share >= (WELL_SAMPLED if in_a_row else LEAST_SAMPLED):
        return ""
    why = next(gone(fact) for fact in facts if _content(fact) is None)
    return f"it was read for {share:.0%} of the load only ({why})"


def _series(readings: Sequence[Reading], gpu: str) -> dict[Key, list[Fact | None]]:
    """Each fact about a GPU in all readings; ECC counts of its whole life are written too late to be differenced."""
    found: dict[Key, list[Fact | None]] = {}
    for place, reading in enumerate(readings):
        for fact in reading.facts:
            if fact.device != gpu or fact.labels.get("scope", "volatile") != "volatile":
                continue
            kind = fact.labels.get("kind") or fact.labels.get("reason") or fact.labels.get("domain") or ""
            facts = found.setdefault((fact.name, kind, fact.labels.get("link", "")), [None] * len(readings))
            facts[place] = fact
    return found


def _seconds(readings: Sequence[Reading]) -> float:
    return readings[-1].at - readings[0].at if readings else 0.0


def _deltas(gpu: str, series: Series, counted: Mapping[Key, Growth], readings: Sequence[Reading]) -> Iterator[Found]:
    for metric, counter in DELTAS.items():
        added = counted.get((counter, "", "")) or growth(())
        yield Found(metric, gpu, added.value, samples=len(readings), note=added.note)
        if counter == "pcie_replay" and _seconds(readings) > 0:
            rate = None if added.value is None else _most_in_a_minute(series[counter, "", ""], readings)
            yield Found("pcie_replay_rate", gpu, rate, samples=len(readings), note=added.note)


def _most_in_a_minute(facts: Sequence[Fact | None], readings: Sequence[Reading]) -> float:
    """Most that a counter gained within a minute; of readings that span more, a minute's share of the gain."""
    known = [(each.at, fact) for each, fact in zip(readings, facts) if fact is not None and fact.value is not None]
    most, first = 0.0, 0
    for last in range(1, len(known)):
        while first < last - 1 and known[last][0] - known[first + 1][0] >= MINUTE_S:
            first += 1
        for start in (first, min(first + 1, last - 1)):  # a minute or a little more, and the most that lies within one
            added = growth([fact for _, fact in known[start : last + 1]]).value or 0.0
            most = max(most, added * MINUTE_S / max(MINUTE_S, known[last][0] - known[start][0]))
    return most


def _nvlink(gpu: str, counted: Mapping[Key, Growth]) -> Iterator[Found]:
    for kind in sorted({key[1] for key in counted if key[0] == "nvlink_errors"}):
        by_link = {link: added for (name, of, link), added in counted.items() if (name, of) == ("nvlink_errors", kind)}
        if len(by_link) > 1:  # why none was up at some reading; the links' own readings show what that costs
            by_link.pop("", None)
        value, known, note = total({f"link {link}" if link else "links": each for link, each in by_link.items()})
        yield Found("nvlink_errors_delta", gpu, value, labels={"kind": kind}, samples=known, note=note)


def throttled(
    device: str, counters: Mapping[str, Growth], sampled: Mapping[str, float], seconds: float
) -> Iterator[Found]:
    """By reason, the counter's value unless readings contradict it; without a counter, what the readings show.

    ``sampled``: seconds that readings stand for in each state, of the ``seconds`` of the load.
    """
    share = min(1.0, sum(sampled.values()) / seconds) if seconds > 0 else 0.0
    violation = counters.get(VIOLATION)
    others = {reason for state in sampled for reason in state.split("+")} | set(counters)
    for reason in (*COUNTED, *sorted(others - {*COUNTED, "none"})):
        added = counters.get(reason) or Growth(None, NOT_SUPPORTED)
        if added.value is None and reason in HEAT and violation is not None and violation.value == 0.0:
            added = violation
        seen = sum(spent for state, spent in sampled.items() if reason in state.split("+"))
        value, note = added.value, added.note
        if value is None and (share >= WELL_SAMPLED or seen > 0):
            value, note = seen, f"by readings of {share:.0%} of the time: shorter spells between them are not seen"
        elif value is None:
            note = f"no counter ({added.note}), and its readings cover {share:.0%} of the time"
        elif seen > value + COARSE_S:
            value, note = seen, f"read for {seen:.1f} s, but the driver's counter has {value:.1f} s"
        elif note or not value:  # a lower bound, or a counter without what was seen
            value = max(value, seen)
        yield Found("throttle_time", device, value, labels={"reason": reason}, note=note)


def _resets(gpu: str, counted: Mapping[Key, Growth]) -> Found:
    named = {
        " ".join(filter(None, (name, kind, link and f"link {link}"))): added
        for (name, kind, link), added in counted.items()
        if name in _CUMULATIVE
    }
    found = resets(named)
    if not any(each.value is not None or each.reset for each in named.values()):
        why = next((each.note for each in named.values() if each.note), NOT_SUPPORTED)
        return Found("counters_reset", gpu, note=why)
    return Found("counters_reset", gpu, float(len(found)), note="; ".join(found[:3]))


_CUMULATIVE = (*DELTAS.values(), "nvlink_errors", "throttle_time")


def _state(gpu: str, name: str, unit: str, facts: Sequence[Fact | None], blind: str) -> Found:
    """The worst content if one end is bad, else the one furthest from that before the load.

    ``blind``: why equal readings prove nothing, "" if they do prove that nothing changed.
    """
    read = [_content(fact) for fact in facts]
    known = [content for content in read if content is not None]
    if not known:
        notes = [fact.note for fact in facts if fact is not None and fact.note]
        return Found(name, gpu, note=notes[-1] if notes else NOT_SUPPORTED)
    other = [content for content in known if content != known[0]]
    if not other and (blind or read[-1] is None):
        return Found(name, gpu, samples=len(known), note=gone(facts[-1]) if read[-1] is None else blind)
    chosen = max(other, key=lambda content: _distance(content, known[0]), default=known[0])
    if name in WORST:
        chosen = WORST[name](known)
    note = f"{known[0]} before the load, {read[-1]} after it" if other else ""
    if isinstance(chosen, str):
        return Found(name, gpu, text=chosen, samples=len(known), note=note)
    return Found(name, gpu, chosen, samples=len(known), note=note)


def _content(fact: Fact | None) -> Content:
    if fact is None:
        return None
    return fact.text if fact.value is None else fact.value


def _distance(content: Content, first: Content) -> float:
    if isinstance(content, str) or isinstance(first, str) or content is None or first is None:
        return 1.0
    return abs(content - first)


def _pcie(gpu: str, series: Series, times: Sequence[float]) -> Iterator[Found]:
    """A link saves power at rest: its generation counts where readings before and after found the GPU busy too."""
    loaded = _loaded(series)
    within = [place for place in range(1, len(loaded) - 1) if all(loaded[place - 1 : place + 2])]
    generations, widths = series.get(("pcie_generation", "", ""), ()), series.get(("pcie_width", "", ""), ())
    if within:
        read = [generations[place] for place in within]
        blind = _blind([times[place] for place in within], read)
        yield _least(gpu, "pcie_generation_loaded", read, blind)
    else:
        notes = [fact.note for fact in series.get(("utilisation", "", ""), ()) if fact is not None and fact.note]
        yield Found("pcie_generation_loaded", gpu, samples=0, note=notes[0] if notes else AT_REST)
    yield _least(gpu, "pcie_width", widths, _blind(times, widths))


def _loaded(series: Series) -> list[bool]:
    return [fact is not None and (fact.value or 0.0) >= BUSY for fact in series.get(("utilisation", "", ""), ())]


def _clocks(gpu: str, series: Series, times: Sequence[float]) -> Iterator[Found]:
    """By domain, if the driver named no cause that held the GPU for half of its work: a free clock still rises."""
    held = [_content(fact) for fact in series.get(("throttle_reason", "", ""), ())]
    spans = [after - before for before, after in zip((*times[:1], *times), (*times[1:], *times[-1:]))]
    for domain in [domain for name, domain, _ in series if name == "clock_share"]:
        shares = [None if fact is None else fact.value for fact in series["clock_share", domain, ""]]
        work = [each for each in zip(shares, _loaded(series), held, spans) if each[1] and each[0] is not None]
        free = [each for each in work if each[2] == "none"]
        enough = len(free) >= RUN and 2.0 * sum(each[3] for each in free) >= sum(each[3] for each in work)
        note = "" if enough else "the driver named what held it for most of the work" if work else AT_REST
        value = max(each[0] or 0.0 for each in free) if enough else None
        yield Found("clock_share", gpu, value, labels={"domain": domain}, note=note)


def _least(gpu: str, name: str, facts: Sequence[Fact | None], blind: str) -> Found:
    """The lowest reading. No value if all readings are equal and the last one, or too many, are missing."""
    values = [value for fact in facts if isinstance(value := _content(fact), float)]
    if not values:
        return Found(name, gpu, samples=0, note=_reason(facts))
    if (blind or _content(facts[-1]) is None) and len(set(values)) == 1:
        return Found(name, gpu, samples=len(values), note=blind or gone(facts[-1]))
    return Found(name, gpu, min(values), samples=len(values))


def _reason(facts: Sequence[Fact | None]) -> str:
    return next((fact.note for fact in facts if fact is not None and fact.note), NOT_SUPPORTED)


def _most(gpu: str, name: str, facts: Sequence[Fact | None], blind: str) -> Found:
    """The highest reading: a single occurrence counts. No value if none is above zero and the last one, or too many,
    are missing."""
    known = [fact for fact in facts if fact is not None and fact.value is not None]
    worst = max(known, key=lambda fact: fact.value or 0.0, default=None)
    silent = facts[-1] if facts and _content(facts[-1]) is None else None
    if worst is None or (not worst.value and (blind or silent is not None)):
        return Found(name, gpu, note=_reason(facts) if not known else gone(silent) if silent is not None else blind)
    return Found(name, gpu, worst.value, samples=len(known), note=worst.note)


def _settings(gpu: str, readings: Sequence[Reading]) -> Found:
    """How many settings differed from before the load in any reading."""
    of = [settings(fact for fact in reading.facts if fact.device == gpu) for reading in readings]
    if not of or not of[0]:
        return Found("settings_changed", gpu, note="the GPU reports no settings")
    changed: dict[tuple[str, str, tuple[tuple[str, str], ...]], str] = {}
    for later in of[1:-1]:  # one that a single reading lacks has not changed
        changed.update(changes({key: fact for key, fact in of[0].items() if key in later}, later))
    changed.update(changes(of[0], of[-1]))
    if not changed and not of[-1]:
        return Found("settings_changed", gpu, note="the GPU no longer reports its settings")
    return Found("settings_changed", gpu, float(len(changed)), samples=len(readings), note="; ".join(changed.values()))
