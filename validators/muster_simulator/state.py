"""The present state of a simulated machine: one small file, shared by every process of that node under a lock.

The agent samples sensors while its probe child loads the GPUs; both see one machine. Each transaction first lets the
physics run from the last one to now. A load belongs to the process that began it: one that died holds none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from muster_node.hardware.seam import Clock
from muster_simulator import physics
from muster_simulator.machine import Gpu, Machine

_STEP_S = 1.0
_STEPS_MAX = 2000
_SETTLED_C = 0.01
_UP_S = 3600.0
"""Uptime in seconds of a machine when it is opened for the first time."""
EVENTS_MAX = 1000
"""The kernel log is a ring: of a storm the newest events are kept."""

LOST, UNCORRECTABLE, TIMED_OUT = "lost", "uncorrectable", "timed out"
"""Kinds of events that the driver logs."""

_COUNTED = {
    "uncorrectable": "uncorrectable_per_hour",
    "corrected": "corrected_per_hour",
    "nvlink_errors": "nvlink_errors_per_hour",
    "pcie_replays": "pcie_replays_per_hour",
    "processor_timeouts": "processor_timeouts_per_hour",
}
"""Counts of a GPU's state, with the quantity of the part that makes them grow under load."""
_NOTICED = {"uncorrectable": UNCORRECTABLE, "processor_timeouts": TIMED_OUT}


class Event(NamedTuple):
    """An event that the driver noticed: time (simulated s), slot of the GPU, kind."""

    at: float
    slot: int
    kind: str


@dataclasses.dataclass
class GpuState:
    """One GPU now. ``megacycles`` (MHz·s), ``joules``, ``throttled_s`` and all counts only ever grow.

    ``lost``: it has fallen off the bus, and only a reboot brings it back. ``remapped``: memory rows that resets have
    replaced by spare ones.
    """

    core_c: float
    hbm_c: float
    power_w: float
    clock_mhz: float
    slowed: bool = False
    throttle: str = "none"
    busy: bool = False
    megacycles: float = 0.0
    joules: float = 0.0
    throttled_s: dict[str, float] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(physics.THROTTLE_REASONS, 0.0)
    )
    lost: bool = False
    uncorrectable: float = 0.0
    corrected: float = 0.0
    nvlink_errors: float = 0.0
    pcie_replays: float = 0.0
    processor_timeouts: float = 0.0
    remapped: int = 0

    def waiting(self, built: Gpu) -> int:
        """Memory rows that lost data and are still in use."""
        return built.waiting_rows + int(self.uncorrectable) - self.remapped


@dataclasses.dataclass
class Load:
    """GPUs (by slot) that a process keeps busy. ``born`` distinguishes it from a later process with the same id.

    ``holder`` distinguishes several holders within one process.
    """

    pid: int
    born: str
    holder: str
    slots: list[int]


@dataclasses.dataclass
class State:
    """The machine at simulated time ``at`` (s), up since ``booted``; ``nic_errors`` are by port and only grow."""

    at: float
    booted: float
    gpus: dict[int, GpuState]
    nic_errors: dict[str, float]
    loads: list[Load] = dataclasses.field(default_factory=list)
    events: list[Event] = dataclasses.field(default_factory=list)


class Reading(NamedTuple):
    """One GPU's readings for timers: time, cycles and energy so far, temperature, whether it is lost."""

    at: float
    megacycles: float
    joules: float
    clock_mhz: float
    power_w: float
    core_c: float
    lost: bool


def idle_state(machine: Machine, at: float) -> State:
    """The machine at rest, settled."""
    gpus = {}
    for gpu in machine.gpus:
        if not gpu.enumerates:
            continue
        core = machine.coolant_c if machine.model.liquid else machine.inlet_c
        for _ in range(20):
            core = physics.settled_core(machine, gpu, _idle_power(machine, gpu.slot, core), 0.0)
        running = physics.operate(machine.model, gpu, core, False, False)
        hbm = physics.settled_hbm(gpu, core, False)
        gpus[gpu.slot] = GpuState(core, hbm, running.power_w, running.clock_mhz)
    return State(at, at - _UP_S, gpus, {nic.name: 0.0 for nic in machine.nics})


def _idle_power(machine: Machine, slot: int, core_c: float) -> float:
    return physics.operate(machine.model, machine.gpus[slot], core_c, False, False).power_w


def advance(machine: Machine, state: State, now: float) -> None:
    """Let the physics run from ``state.at`` to ``now`` under the loads as they stand."""
    elapsed = now - state.at
    if elapsed <= 0:
        # A monotonic clock that has gone back means that the real host was restarted: no time has passed here.
        state.booted += elapsed
        state.events = [event._replace(at=event.at + elapsed) for event in state.events]
        state.at = now
        return
    for nic in machine.nics:
        state.nic_errors[nic.name] += nic.errors_per_hour * elapsed / 3600.0
    busy = _busy(state)
    step = max(_STEP_S, elapsed / _STEPS_MAX)
    while elapsed > 0:
        seconds = min(step, elapsed)
        settled = _advance_all(machine, state, busy, seconds)
        elapsed -= seconds
        if settled and elapsed > 0:
            _advance_all(machine, state, busy, elapsed)
            elapsed = 0
    state.at = now
    state.events = sorted(state.events)[-EVENTS_MAX:]


def _busy(state: State) -> set[int]:
    return {slot for load in state.loads for slot in load.slots}


def _advance_all(machine: Machine, state: State, busy: set[int], seconds: float) -> bool:
    """One step of all GPUs; True if all temperatures have settled."""
    half = len(machine.gpus) // 2
    settled = True
    for slot, gpu in state.gpus.items():
        upstream = state.gpus.get(slot - half)
        power_w = upstream.power_w if upstream is not None else 0.0
        settled = _advance_gpu(machine, slot, gpu, slot in busy, power_w, seconds) and settled
        state.events += _noticed(machine.gpus[slot], gpu, state.at, seconds)
    state.at += seconds
    return settled


def _advance_gpu(machine: Machine, slot: int, gpu: GpuState, busy: bool, upstream_w: float, seconds: float) -> bool:
    model, built = machine.model, machine.gpus[slot]
    if gpu.core_c >= model.slowdown_c:
        gpu.slowed = True
    elif gpu.core_c <= model.slowdown_release_c:
        gpu.slowed = False
    busy = busy and not gpu.lost
    running = physics.operate(model, built, gpu.core_c, gpu.slowed, busy)
    gpu.clock_mhz, gpu.power_w, gpu.throttle, gpu.busy = running.clock_mhz, running.power_w, running.throttle, busy
    gpu.megacycles += running.clock_mhz * seconds
    gpu.joules += running.power_w * seconds
    if running.throttle != "none":
        gpu.throttled_s[running.throttle] += seconds
    core_goal = physics.settled_core(machine, built, running.power_w, upstream_w)
    hbm_goal = physics.settled_hbm(built, gpu.core_c, busy)
    # The step is sized for temperatures on their way; once settled, one long step is exact.
    settled = abs(core_goal - gpu.core_c) < _SETTLED_C and abs(hbm_goal - gpu.hbm_c) < _SETTLED_C
    gpu.core_c = physics.towards(gpu.core_c, core_goal, seconds, model.core_seconds)
    gpu.hbm_c = physics.towards(gpu.hbm_c, hbm_goal, seconds, model.hbm_seconds)
    return settled


def _noticed(built: Gpu, gpu: GpuState, since: float, seconds: float) -> Iterator[Event]:
    """Count a step's errors; returns the events that the driver notices, each with its time."""
    if gpu.lost:
        return
    for count, rate in _COUNTED.items() if gpu.busy else ():
        before, per_second = getattr(gpu, count), getattr(built, rate) / 3600.0
        setattr(gpu, count, before + per_second * seconds)
        if count in _NOTICED and per_second:
            for number in range(int(before) + 1, int(getattr(gpu, count)) + 1):
                yield Event(since + (number - before) / per_second, built.slot, _NOTICED[count])
    if gpu.core_c >= built.opens_at_c:
        gpu.lost = True
        yield Event(since + seconds, built.slot, LOST)


def _born(pid: int) -> str | None:
    """Start time of a process in kernel ticks; None when it is gone (a zombie is gone: it loads nothing)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


class SharedState:
    """The state file of one machine's directory."""

    def __init__(self, directory: Path, machine: Machine, clock: Clock) -> None:
        self._machine = machine
        self._clock = clock
        self._file = directory / "state.json"
        self._lock = directory / "state.lock"

    @contextlib.contextmanager
    def now(self, changing: bool = False) -> Iterator[State]:
        """The state now. With ``changing`` it may be changed in the block and is written back when that ends.

        Without, it is written back only once a step's time has passed: until then the physics, run again from the last
        state on file, comes to the same result.
        """
        with open(self._lock, "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Time is read under the lock, so that no two transactions run backwards.
            now = self._clock.now()
            filed = self._load()
            state = filed or idle_state(self._machine, now)
            filed_at, filed_loads = (state.at if filed else -math.inf), len(state.loads)
            state.loads = [load for load in state.loads if _born(load.pid) == load.born]
            advance(self._machine, state, now)
            yield state
            if changing or abs(now - filed_at) >= _STEP_S or len(state.loads) != filed_loads:
                self._save(state)

    def hold(self, holder: str, slots: Sequence[int]) -> None:
        """From now on ``holder`` in this process keeps exactly these GPUs busy."""
        pid = os.getpid()
        with self.now(changing=True) as state:
            state.loads = [load for load in state.loads if (load.pid, load.holder) != (pid, holder)]
            if slots:
                state.loads.append(Load(pid, _born(pid) or "", holder, list(slots)))
            # Clock and power follow a new load at once.
            _advance_all(self._machine, state, _busy(state), 0.0)

    def reset(self, slot: int) -> None:
        """Reset one GPU: rows that wait are replaced, as far as their bank has spare ones."""
        with self.now(changing=True) as state:
            built, gpu = self._machine.gpus[slot], state.gpus[slot]
            gpu.remapped += min(gpu.waiting(built), built.spare_rows - gpu.remapped)

    def reading(self, slot: int) -> Reading:
        """One GPU's progress."""
        with self.now() as state:
            gpu = state.gpus[slot]
            return Reading(state.at, gpu.megacycles, gpu.joules, gpu.clock_mhz, gpu.power_w, gpu.core_c, gpu.lost)

    def _load(self) -> State | None:
        try:
            raw: dict[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        gpus = {int(slot): GpuState(**gpu) for slot, gpu in raw["gpus"].items()}
        loads, events = [Load(**load) for load in raw["loads"]], [Event(*event) for event in raw["events"]]
        return State(raw["at"], raw["booted"], gpus, raw["nic_errors"], loads, events)

    def _save(self, state: State) -> None:
        raw = {
            "at": state.at,
            "booted": state.booted,
            "nic_errors": state.nic_errors,
            "events": state.events,
            "gpus": {slot: vars(gpu) for slot, gpu in state.gpus.items()},
            "loads": [vars(load) for load in state.loads],
        }
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(raw), encoding="utf-8")
        os.replace(fresh, self._file)
