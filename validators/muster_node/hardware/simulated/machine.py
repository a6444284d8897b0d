"""One simulated machine as built: what machine.json holds, how a fresh one is drawn, how a defect alters it.

machine.json has physical quantities only. A defect is a part whose quantities are out of the ordinary; nothing in the
file says which of them is meant.
"""

from __future__ import annotations

import dataclasses
import json
import random
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping

from muster_node.hardware.simulated.models import MODELS, Model

SCHEMA = "muster.simulated/1"
SPEED = 150.0
"""Simulated seconds per real second: a soak of ten minutes takes four real seconds."""
KERNEL_EDGE = 96
"""Largest physical extent of a matrix dimension; a probe's nominal shape is cut down to it."""
KERNEL_ELEMENTS = 65536
"""Largest physical length of a one-dimensional buffer."""
_CLAMP = 2.5
# Chosen so that an integrity test of as few as 20 kernels misses the defect once in a million runs. Each stands for a
# product of 10^9 to 10^11 multiply-adds.
_UPSET_RATE = 0.5


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU as built.

    ``silicon``: clock at equal power, relative to a typical part. ``thermal_resistance``: °C/W, core to air.
    ``lanes``: share of multiply-add lanes that work. ``memory_rate``: share of the model's HBM rate.
    ``upset_rate``: probability per tensor-core kernel that a marginal lane flips bit ``upset_bit`` of four outputs,
    ``upset_stride`` apart from ``upset_first``. ``uncorrectable_per_hour``: HBM errors under load that ECC cannot mend.
    """

    slot: int
    enumerates: bool
    serial: str
    uuid: str
    pci: str
    silicon: float
    leakage_w: float
    thermal_resistance: float
    hbm_offset_c: float
    lanes: float
    memory_rate: float
    upset_rate: float
    upset_bit: int
    upset_first: int
    upset_stride: int
    uncorrectable_per_hour: float
    corrected: int
    nvlinks: int
    pcie_generation: int
    pcie_width: int


@dataclasses.dataclass(frozen=True)
class Machine:
    """One simulated node. ``fans`` are shares of full speed that each can reach; ``inlet_c`` in °C."""

    model_name: str
    hostname: str
    boot_id: str
    machine_id: str
    serial_system: str
    serial_board: str
    inlet_c: float
    fans: List[float]
    speed: float
    kernel_edge: int
    kernel_elements: int
    gpus: List[Gpu]
    schema: str = SCHEMA

    @property
    def model(self) -> Model:
        """The drawing-board figures."""
        return MODELS[self.model_name]


def _draw(dice: random.Random, middle: float, sigma: float) -> float:
    """A normal draw within ±2.5 sigma: parts further out do not leave the factory."""
    while True:
        value = dice.gauss(middle, sigma)
        if abs(value - middle) <= _CLAMP * sigma:
            return value


def _draw_gpu(dice: random.Random, model: Model, slot: int) -> Gpu:
    return Gpu(
        slot=slot,
        enumerates=True,
        serial="SIM16%011d" % dice.randrange(10**11),
        uuid="GPU-%s" % uuid.UUID(int=dice.getrandbits(128), version=4),
        pci="00000000:%02X:00.0" % (0x19 + 0x1A * slot),
        silicon=_draw(dice, 1.0, 0.0175),
        leakage_w=_draw(dice, model.leakage_w, 0.10 * model.leakage_w),
        thermal_resistance=_draw(dice, model.thermal_resistance, 0.04 * model.thermal_resistance),
        hbm_offset_c=_draw(dice, model.hbm_offset_c, 1.0),
        lanes=1.0,
        memory_rate=_draw(dice, 1.0, 0.004),
        upset_rate=0.0,
        upset_bit=0,
        upset_first=0,
        upset_stride=1,
        uncorrectable_per_hour=0.0,
        corrected=dice.choice((0, 0, 0, 0, 1, 2)),
        nvlinks=model.nvlinks,
        pcie_generation=model.pcie_generation,
        pcie_width=model.pcie_width,
    )


def draw_machine(hostname: str, model_name: str, seed: int) -> Machine:
    """A healthy machine with ordinary spread, drawn from ``seed`` and its name: two names are never the same machine.

    Raises ValueError for a model that is unknown.
    """
    if model_name not in MODELS:
        raise ValueError("no simulated model %r; there are: %s" % (model_name, ", ".join(sorted(MODELS))))
    model = MODELS[model_name]
    dice = random.Random("%s/%s/%s" % (model_name, hostname, seed))
    return Machine(
        model_name=model_name,
        hostname=hostname,
        boot_id=str(uuid.UUID(int=dice.getrandbits(128), version=4)),
        machine_id="%032x" % dice.getrandbits(128),
        serial_system="SIM%09d" % dice.randrange(10**9),
        serial_board="SIMB%010d" % dice.randrange(10**10),
        inlet_c=_draw(dice, model.inlet_c, 0.8),
        fans=[1.0] * model.fans,
        speed=SPEED,
        kernel_edge=KERNEL_EDGE,
        kernel_elements=KERNEL_ELEMENTS,
        gpus=[_draw_gpu(dice, model, slot) for slot in range(model.gpu_count)],
    )


Defect = Callable[[Gpu, Mapping[str, Any], random.Random], Gpu]


def _missing(gpu: Gpu, spec: Mapping[str, Any], dice: random.Random) -> Gpu:
    return dataclasses.replace(gpu, enumerates=False)


def _marginal_lane(gpu: Gpu, spec: Mapping[str, Any], dice: random.Random) -> Gpu:
    return dataclasses.replace(
        gpu,
        upset_rate=float(spec.get("rate", _UPSET_RATE)),
        upset_bit=dice.randrange(64),
        upset_first=dice.randrange(4096),
        upset_stride=dice.choice((1, 2, 4, 8)),
    )


def _dried_paste(gpu: Gpu, spec: Mapping[str, Any], dice: random.Random) -> Gpu:
    return dataclasses.replace(gpu, thermal_resistance=gpu.thermal_resistance * float(spec.get("factor", 2.6)))


def _lanes_off(gpu: Gpu, spec: Mapping[str, Any], dice: random.Random) -> Gpu:
    return dataclasses.replace(gpu, lanes=float(spec.get("share", 0.80)))


def _narrow_link(gpu: Gpu, spec: Mapping[str, Any], dice: random.Random) -> Gpu:
    return dataclasses.replace(gpu, pcie_width=int(spec.get("width", 8)))


def _links_down(gpu: Gpu, spec: Mapping[str, Any], dice: random.Random) -> Gpu:
    return dataclasses.replace(gpu, nvlinks=gpu.nvlinks - int(spec.get("links", 1)))


def _failing_memory(gpu: Gpu, spec: Mapping[str, Any], dice: random.Random) -> Gpu:
    return dataclasses.replace(gpu, uncorrectable_per_hour=float(spec.get("per_hour", 60.0)))


def _slow_memory(gpu: Gpu, spec: Mapping[str, Any], dice: random.Random) -> Gpu:
    return dataclasses.replace(gpu, memory_rate=gpu.memory_rate * float(spec.get("share", 0.80)))


_GPU_DEFECTS: Dict[str, Defect] = {
    "missing_gpu": _missing,
    "sdc": _marginal_lane,
    "throttle": _dried_paste,
    "slow_gemm": _lanes_off,
    "pcie_width": _narrow_link,
    "nvlink_down": _links_down,
    "ecc": _failing_memory,
    "hbm_slow": _slow_memory,
}


def _with_defect(machine: Machine, spec: Mapping[str, Any], dice: random.Random) -> Machine:
    kind = spec.get("kind")
    if kind == "fan_fail":
        stopped = int(spec.get("fan", dice.randrange(len(machine.fans))))
        fans = [0.0 if index == stopped else speed for index, speed in enumerate(machine.fans)]
        return dataclasses.replace(machine, fans=fans)
    if kind == "hot_inlet":
        return dataclasses.replace(machine, inlet_c=float(spec.get("celsius", 38.0)))
    if kind not in _GPU_DEFECTS:
        known = ", ".join([*sorted(_GPU_DEFECTS), "fan_fail", "hot_inlet"])
        raise ValueError("no defect %r can be built in; there are: %s" % (kind, known))
    slot = spec.get("gpu")
    if not isinstance(slot, int) or not 0 <= slot < len(machine.gpus):
        raise ValueError("defect %s needs gpu, a slot from 0 to %d, not %r" % (kind, len(machine.gpus) - 1, slot))
    gpus = [_GPU_DEFECTS[kind](gpu, spec, dice) if gpu.slot == slot else gpu for gpu in machine.gpus]
    return dataclasses.replace(machine, gpus=gpus)


def create_machine(
    directory: Path, model: str = "h100-sxm-8", seed: int = 0, faults: Iterable[Mapping[str, Any]] = ()
) -> None:
    """Build a machine into ``directory``/machine.json; its hostname is the directory's name.

    ``faults`` are dicts: ``kind`` (missing_gpu, sdc, throttle, slow_gemm, pcie_width, nvlink_down, ecc, hbm_slow, each
    with ``gpu``, a slot; fan_fail, hot_inlet) and optionally how bad it is. Each alters physical quantities only.
    Raises ValueError, in one sentence, for an unknown model, kind or slot.
    """
    machine = draw_machine(directory.name, model, seed)
    dice = random.Random("%s/%s/%s/parts" % (model, directory.name, seed))
    for spec in faults:
        machine = _with_defect(machine, spec, dice)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "machine.json").write_text(json.dumps(dataclasses.asdict(machine), indent=1), encoding="utf-8")


def load_machine(directory: Path) -> Machine:
    """Read ``directory``/machine.json. Raises ValueError, in one sentence, where it is missing or cannot be used."""
    path = directory / "machine.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.get("schema") != SCHEMA:
            raise ValueError("its schema is %r, not %r" % (raw.get("schema"), SCHEMA))
        if raw.get("model_name") not in MODELS:
            raise ValueError("its model %r is unknown" % raw.get("model_name"))
        raw["gpus"] = [Gpu(**gpu) for gpu in raw["gpus"]]
        return Machine(**raw)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError("%s describes no simulated machine: %s" % (path, error)) from error
