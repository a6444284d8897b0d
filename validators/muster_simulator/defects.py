"""Faults of a simulated machine: one entry for each kind; each changes physical quantities only.

The symptoms of a defect (a count that rises, a line in the log, a rate that falls) follow from the
quantities by ``physics`` and ``state``; nothing here knows how it is measured. How bad it is may be given with it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable

from muster_simulator.machine import (
    KERNEL_EDGE,
    SPEED,
    Gpu,
    Machine,
    Nic,
    draw_machine,
    save_machine,
)
from muster_simulator.models import Model

Spec = Mapping[str, Any]
Change = dict[str, Any]

# Chosen so that an integrity test of as few as 20 kernels misses the defect once in a million runs. Each represents a
# product of 10^9 to 10^11 multiply-adds.
_UPSET_RATE = 0.5


@dataclasses.dataclass(frozen=True)
class Defect:
    """A kind of defect: the part that has it ("gpu", "fan", "nic", "node"), and how it changes the machine.

    ``possible``: whether a model can have it at all.
    """

    part: str
    alter: Callable[[Machine, Spec, random.Random], Machine]
    possible: Callable[[Model], bool] = lambda model: True


DEFECTS: dict[str, Defect] = {}


def _on_gpu(kind: str, possible: Callable[[Model], bool] = lambda model: True) -> Callable[..., Any]:
    """Register a function that returns the changed quantities of the GPU in slot ``gpu``."""

    def enter(change: Callable[[Gpu, Spec, random.Random, Model], Change]) -> Any:
        def alter(machine: Machine, spec: Spec, dice: random.Random) -> Machine:
            slot = _place(kind, "gpu", "a slot", spec.get("gpu"), len(machine.gpus))
            gpus = list(machine.gpus)
            gpus[slot] = dataclasses.replace(gpus[slot], **change(gpus[slot], spec, dice, machine.model))
            return dataclasses.replace(machine, gpus=gpus)

        DEFECTS[kind] = Defect("gpu", alter, possible)
        return change

    return enter


def _on_nic(kind: str) -> Callable[..., Any]:
    """Register a function that returns the changed quantities of the fabric port ``nic``."""

    def enter(change: Callable[[Nic, Spec], Change]) -> Any:
        def alter(machine: Machine, spec: Spec, dice: random.Random) -> Machine:
            number = _place(kind, "nic", "a port", spec.get("nic"), len(machine.nics))
            nics = list(machine.nics)
            nics[number] = dataclasses.replace(nics[number], **change(nics[number], spec))
            return dataclasses.replace(machine, nics=nics)

        DEFECTS[kind] = Defect("nic", alter, lambda model: bool(model.nics))
        return change

    return enter


def _place(kind: str, key: str, what: str, number: Any, count: int) -> int:
    if not isinstance(number, int) or not 0 <= number < count:
        raise ValueError(f"defect {kind} needs {key}, {what} from 0 to {count - 1}, not {number!r}")
    return number


def _has_pcie(model: Model) -> bool:
    return model.pcie_width > 0


@_on_gpu("missing_gpu")
def _missing(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"enumerates": False}


@_on_gpu("gpu_lost")
def _open_joint(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    """A joint that opens as the board warms up: the GPU is present at intake and falls off the bus under load."""
    return {"opens_at_c": float(spec.get("celsius", model.supply_c + 0.3 * (model.rated_core_c - model.supply_c)))}


@_on_gpu("sdc")
def _marginal_lane(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {
        "upset_rate": float(spec.get("rate", _UPSET_RATE)),
        "upset_bit": dice.randrange(64),
        "upset_first": dice.randrange(4096),
        "upset_stride": dice.choice((1, 2, 4, 8)),
    }


@_on_gpu("wrong_unit")
def _stuck_output(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    """An execution unit that is wrong in the same way every time: a repeat on the same unit does not show it."""
    return {"stuck_output_bit": dice.randrange(64), "stuck_output_every": dice.choice((16, 64, 128))}


@_on_gpu("stuck_bit")
def _stuck_cell(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {
        "stuck_cell_bit": dice.randrange(64),
        "stuck_cell_word": dice.randrange(2**20),
        "stuck_cell_level": dice.randrange(2),
    }


@_on_gpu("throttle")
def _dried_paste(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"thermal_resistance": gpu.thermal_resistance * float(spec.get("factor", 2.6))}


@_on_gpu("slow_gemm")
def _lanes_off(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"lanes": float(spec.get("share", 0.80))}


@_on_gpu("hbm_slow")
def _slow_memory(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"memory_rate": gpu.memory_rate * float(spec.get("share", 0.80))}


@_on_gpu("leaky")
def _leaky(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    """Leakage leaves less power for the clock."""
    return {"leakage_w": float(spec.get("share", 0.5)) * model.power_limit_w}


@_on_gpu("power_limit")
def _lowered_limit(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"power_limit_w": round(float(spec.get("share", 0.7)) * model.power_limit_w)}


@_on_gpu("clock_lock")
def _locked_clock(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"clock_lock_mhz": round(float(spec.get("share", 0.65)) * model.gemm_clock_mhz)}


@_on_gpu("mig_mode")
def _partitioned(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"mig_on": True}


@_on_gpu("ecc_mode")
def _without_ecc(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"ecc_on": False}


@_on_gpu("ecc")
def _failing_memory(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"uncorrectable_per_hour": float(spec.get("per_hour", 60.0))}


@_on_gpu("ecc_storm")
def _weak_memory(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"corrected_per_hour": float(spec.get("per_hour", 40000.0))}


@_on_gpu("row_remap_pending")
def _waiting_row(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"waiting_rows": int(spec.get("rows", 1))}


@_on_gpu("row_remap_failed")
def _no_spare_row(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"waiting_rows": 1, "spare_rows": 0}


@_on_gpu("processor_hang")
def _hanging_processor(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    """The GPU's system processor sometimes responds too late, and the driver logs that."""
    return {"processor_timeouts_per_hour": float(spec.get("per_hour", 60.0))}


@_on_gpu("pcie_width", _has_pcie)
def _narrow_link(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"pcie_width": int(spec.get("width", 8))}


@_on_gpu("pcie_generation", _has_pcie)
def _old_link(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"pcie_generation": int(spec.get("generation", model.pcie_generation - 1))}


@_on_gpu("pcie_errors", _has_pcie)
def _noisy_link(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"pcie_replays_per_hour": float(spec.get("per_hour", 3600.0))}


@_on_gpu("nvlink_down")
def _links_down(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"nvlinks": gpu.nvlinks - int(spec.get("links", 1))}


@_on_gpu("nvlink_errors")
def _noisy_nvlink(gpu: Gpu, spec: Spec, dice: random.Random, model: Model) -> Change:
    return {"nvlink_errors_per_hour": float(spec.get("per_hour", 600.0))}


@_on_nic("nic_down")
def _port_down(nic: Nic, spec: Spec) -> Change:
    return {"up": False}


@_on_nic("nic_slow")
def _slow_port(nic: Nic, spec: Spec) -> Change:
    return {"speed": nic.speed * float(spec.get("share", 0.5))}


@_on_nic("nic_errors")
def _noisy_port(nic: Nic, spec: Spec) -> Change:
    return {"errors_per_hour": float(spec.get("per_hour", 600.0))}


def _stop_fan(machine: Machine, spec: Spec, dice: random.Random) -> Machine:
    stopped = int(spec.get("fan", dice.randrange(len(machine.fans))))
    fans = [0.0 if index == stopped else speed for index, speed in enumerate(machine.fans)]
    return dataclasses.replace(machine, fans=fans)


def _heat_inlet(machine: Machine, spec: Spec, dice: random.Random) -> Machine:
    return dataclasses.replace(machine, inlet_c=float(spec.get("celsius", 38.0)))


DEFECTS["fan_fail"] = Defect("fan", _stop_fan, lambda model: model.fans > 0)
DEFECTS["hot_inlet"] = Defect("node", _heat_inlet)


def with_defect(machine: Machine, spec: Spec, dice: random.Random) -> Machine:
    """The machine with one more defect. Raises ValueError, in one sentence, where it cannot have it."""
    kind = spec.get("kind")
    if kind not in DEFECTS:
        raise ValueError("no defect {!r} can be built in; there are: {}".format(kind, ", ".join(sorted(DEFECTS))))
    if not DEFECTS[kind].possible(machine.model):
        raise ValueError(f"defect {kind} needs a part that {machine.model_name} does not have")
    return DEFECTS[kind].alter(machine, spec, dice)


def create_machine(
    directory: Path,
    model: str = "h100-sxm-8",
    seed: int = 0,
    faults: Iterable[Spec] = (),
    *,
    speed: float = SPEED,
    kernel_edge: int = KERNEL_EDGE,
) -> None:
    """Build a machine into ``directory``/machine.json; its hostname is the directory's name.

    ``faults`` are dicts: ``kind``, one of ``DEFECTS``; the part that has it (``gpu``: a slot, ``nic`` or ``fan``: its
    number; a fan is drawn where none is named); and optionally how bad it is. ``speed``: simulated seconds per real
    second; ``kernel_edge``: largest physical extent of a matrix. Raises ValueError, in one sentence, for an unknown
    model, kind or part.
    """
    machine = draw_machine(directory.name, model, seed, speed, kernel_edge)
    dice = random.Random(f"{model}/{directory.name}/{seed}/parts")
    for spec in faults:
        machine = with_defect(machine, spec, dice)
    save_machine(directory, machine)
