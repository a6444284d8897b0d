"""A simulated machine behind the hardware seam: sensors, counters, inventory and compute of the model."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
import os
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from muster_node.hardware import HARDWARE_ENV
from muster_node.hardware.seam import Clock, Collective, Compute, Device, Fact, Hardware, Sample, Usage
from muster_node.probe import Skip
from muster_simulator import fabric, inventory, physics
from muster_simulator.clock import SimulatedClock
from muster_simulator.compute import SimulatedCompute
from muster_simulator.kernel_log import kernel_log
from muster_simulator.machine import Machine, load_machine
from muster_simulator.state import Reading, SharedState

MACHINE_ENV = "MUSTER_SIMULATED_MACHINE"
"""The directory of the machine that ``open_simulated()`` opens."""

_CLOCK_STEP_MHZ = 15.0
_POWER_NOISE = 0.005


class SimulatedHardware(Hardware):
    """One simulated GPU node. Its CPUs are inventory only: CPU work is not modelled, so it offers no CPU devices."""

    simulated = True

    def __init__(self, directory: Path, clock: Clock | None = None, noise: random.Random | None = None) -> None:
        """Opens the machine in ``directory``. ``noise`` is not reproducible unless given, as on a real machine."""
        self.machine: Machine = load_machine(directory)
        self.clock = clock or SimulatedClock(self.machine.speed)
        self._directory = directory
        self._state = SharedState(directory, self.machine, self.clock)
        self._dice = noise or random.Random()
        self._holder = f"{self._dice.getrandbits(64):016x}"
        self._held: Counter[int] = collections.Counter()
        self._held_lock = threading.Lock()
        self._known: list[int] | None = None

    def devices(self, kind: str) -> list[Device]:
        """GPUs that answered the first query, by slot; no device of any other kind."""
        return [Device(f"gpu{slot}", "gpu", slot) for slot in self._slots()] if kind == "gpu" else []

    def _slots(self) -> list[int]:
        """Fixed like a driver's handles: a GPU that is lost later keeps its slot and does not answer."""
        if self._known is None:
            with self._state.now() as state:
                self._known = sorted(slot for slot, gpu in state.gpus.items() if not gpu.lost)
        return self._known

    def boot_id(self) -> str:
        """The machine's boot id."""
        return self.machine.boot_id

    def lost(self, device: Device) -> bool:
        """Whether a GPU fell off the bus."""
        with self._state.now() as state:
            return device.kind == "gpu" and state.gpus[device.index].lost

    def inventory(self) -> Iterable[Fact]:
        """Everything that intake compares."""
        known = self._slots()
        with self._state.now() as state:
            return inventory.inventory(self.machine, state, known)

    def counters(self) -> Iterable[Fact]:
        """Cumulative counters of GPUs and host."""
        known = self._slots()
        with self._state.now() as state:
            return inventory.counters(self.machine, state, known)

    def port_counters(self) -> Iterable[Fact]:
        """Error counters of ports."""
        with self._state.now() as state:
            return fabric.port_errors(state)

    def port_links(self) -> dict[str, bool]:
        """As the machine was made."""
        return {f"nic:{nic.name}": nic.up for nic in self.machine.nics}

    def states(self) -> Iterable[Fact]:
        """What a load may change on GPUs."""
        known = self._slots()
        with self._state.now() as state:
            return inventory.states(self.machine, state, known)

    def domain(self) -> Iterable[Fact]:
        """Of a machine whose NVLinks end at its own switches."""
        known = self._slots()
        with self._state.now() as state:
            return inventory.domain(state, known)

    def telemetry(self) -> Iterable[Sample]:
        """One reading of every sensor."""
        with self._state.now() as state:
            gpus = {slot: gpu for slot, gpu in state.gpus.items() if not gpu.lost}
            load = float(len(state.loads))
        duty = physics.fan_duty(max((gpu.core_c for gpu in gpus.values()), default=0.0))
        inlet_c = round(self.machine.inlet_c + self._dice.gauss(0.0, 0.1), 1)
        samples = [
            *([Sample("inlet_temperature", "node", "°C", inlet_c)] if self.machine.reads_inlet else []),
            Sample("fan", "node", "%", round(duty)),
            Sample("load", "node", "count", load),
        ]
        samples += [
            Sample("fan_speed", f"fan{number}", "RPM", round(self.machine.model.fan_rpm * share * duty / 100.0, -1))
            for number, share in enumerate(self.machine.fans)
        ]
        for slot, gpu in gpus.items():
            device = f"gpu{slot}"
            power = gpu.power_w * (1.0 + self._dice.gauss(0.0, _POWER_NOISE))
            core = float(round(gpu.core_c))
            samples += [
                Sample("temperature", device, "°C", core),
                Sample("hbm_temperature", device, "°C", float(round(gpu.hbm_c))),
                Sample("thermal_margin", device, "°C", self.machine.model.slowdown_c - core),
                Sample("hbm_margin", device, "°C", self.machine.model.hbm_max_c - round(gpu.hbm_c)),
                Sample("power", device, "W", round(power, 1)),
                Sample("clock", device, "MHz", _CLOCK_STEP_MHZ * math.floor(gpu.clock_mhz / _CLOCK_STEP_MHZ)),
                Sample("utilisation", device, "%", 100.0 if gpu.busy else 0.0),
                Sample("throttle", device, "state", state=gpu.throttle),
            ]
        return samples

    def usage(self) -> Usage:
        """Idle, unless ``usage.json`` in the machine's directory gives fields of ``Usage``."""
        idle = Usage(load_1min=0.1, cpu_count=self.machine.model.cpu_threads)
        try:
            raw = json.loads((self._directory / "usage.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return idle
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in raw.items()}
        return dataclasses.replace(idle, **fields)

    def kernel_log(self) -> list[str] | None:
        """The modelled kernel's log since boot."""
        with self._state.now() as state:
            return kernel_log(self.machine, state)

    def compute(self, device: Device) -> Compute:
        """Compute on a GPU. Raises Skip where PyTorch is missing or the device is none of this machine's."""
        noise = random.Random(self._dice.getrandbits(64))
        return SimulatedCompute(self, device, self.machine.gpus[self._slot(device)], noise)

    def collective(self, op: str, elements: int, seed: int) -> Collective:
        """A ring of copies between all GPUs, in this process."""
        import torch

        from muster_simulator.collectives import Ring

        return Ring(torch, [self.compute(gpu) for gpu in self.devices("gpu")], op, elements, seed)

    @contextlib.contextmanager
    def loading(self, devices: list[Device]) -> Iterator[None]:
        """Keep devices busy during the block, as seen by every process that opens this machine."""
        slots = [self._slot(device) for device in devices]
        self._hold(slots, 1)
        try:
            yield
        finally:
            self._hold(slots, -1)

    def _hold(self, slots: list[int], change: int) -> None:
        """Blocks may nest and overlap: a GPU rests when the last of them has ended."""
        with self._held_lock:
            before = {slot for slot, blocks in self._held.items() if blocks > 0}
            for slot in slots:
                self._held[slot] += change
            after = {slot for slot, blocks in self._held.items() if blocks > 0}
            if after != before:
                self._state.hold(self._holder, sorted(after))

    def simulate_reset(self, serial: str) -> str:
        """A GPU in use, or one that fell off the bus, is not reset, as by a driver."""
        slots = [gpu.slot for gpu in self.machine.gpus if gpu.serial == serial]
        if len(slots) != 1 or slots[0] not in self._slots():
            return f"no GPU here answers to the serial number {serial}"
        with self._state.now() as state:
            if any(slots[0] in load.slots for load in state.loads):
                return f"gpu{slots[0]} is in use"
        self._state.reset(slots[0])
        return ""

    def reading(self, device: Device) -> Reading:
        """Progress of one GPU's clock and energy, for timers."""
        return self._state.reading(device.index)

    def _slot(self, device: Device) -> int:
        if device not in self.devices("gpu"):
            raise Skip(f"this machine has no {device.id} that computes")
        return device.index


def open_simulated(directory: Path | None = None) -> Hardware:
    """The machine that ``create_machine`` built in ``directory``, or in the one that the environment names.

    Raises ValueError where there is none.
    """
    return SimulatedHardware(Path(os.environ[MACHINE_ENV]) if directory is None else directory)


def environment(directory: Path) -> dict[str, str]:
    """The environment in which the node side measures the machine in ``directory`` instead of its host."""
    return {HARDWARE_ENV: "muster_simulator:open_simulated", MACHINE_ENV: str(directory)}
