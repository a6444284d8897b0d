"""One simulated machine as built: what machine.json holds, and how a fresh one is drawn. Its defects are ``defects``.

machine.json has physical quantities only. A defect is a part whose quantities are abnormal; the file
does not mark it.
"""

from __future__ import annotations

import dataclasses
import json
import random
import uuid
from pathlib import Path

from muster_simulator.models import MODELS, Model

SCHEMA = "muster.simulated/1"
SPEED = 150.0
"""Simulated seconds per real second: a soak of ten minutes takes four real seconds."""
KERNEL_EDGE = 96
"""Largest physical extent of a matrix dimension; a probe's nominal shape is cut down to it."""
KERNEL_ELEMENTS = 65536
"""Largest physical length of a one-dimensional buffer."""
NEVER_C = 200.0
"""A temperature in °C that no part reaches, since its slowdown begins below it."""
SPARE_ROWS = 8
"""Spare rows of a fresh memory bank: this simulation's own choice."""
_CLAMP = 2.5


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU as built.

    ``silicon``: clock at equal power, relative to a typical part. ``thermal_resistance``: °C/W, core to air.
    ``lanes``: share of multiply-add lanes that work. ``memory_rate``: share of the model's HBM rate.
    ``upset_rate``: probability per tensor-core kernel that a marginal lane flips bit ``upset_bit`` of four outputs,
    ``upset_stride`` apart from ``upset_first``. ``stuck_output_bit``: a bit that one execution unit, which works out
    every ``stuck_output_every``-th element, always sets (−1: none). ``stuck_cell_bit``: a bit of the memory word
    ``stuck_cell_word`` that holds nothing but ``stuck_cell_level`` and that ECC does not see (−1: none).
    Rates per hour are under load: memory errors that ECC cannot mend or can, NVLink errors, PCIe replays, time-outs of
    the GPU's system processor. ``waiting_rows``: memory rows to be remapped at the next reset; ``spare_rows``: what
    their bank has left for it. ``opens_at_c``: core temperature at which a joint of the PCIe connection opens.
    ``clock_lock_mhz``: highest clock that an operator has allowed (0: the model's own).
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
    stuck_output_bit: int
    stuck_output_every: int
    stuck_cell_bit: int
    stuck_cell_word: int
    stuck_cell_level: int
    corrected_per_hour: float
    nvlink_errors_per_hour: float
    pcie_replays_per_hour: float
    processor_timeouts_per_hour: float
    waiting_rows: int
    spare_rows: int
    opens_at_c: float
    power_limit_w: float
    clock_lock_mhz: float
    ecc_on: bool
    mig_on: bool


@dataclasses.dataclass(frozen=True)
class Nic:
    """One fabric port as built: whether it is up, its speed in Gb/s, and link errors an hour, loaded or not."""

    name: str
    up: bool
    speed: float
    errors_per_hour: float


@dataclasses.dataclass(frozen=True)
class Machine:
    """One simulated node. ``fans`` are shares of full speed that each can reach; ``inlet_c`` and ``coolant_c`` in °C.

    ``coolant_c`` is what comes in to the GPUs' cold plates, where they have any. ``reads_inlet``: whether the node
    itself reads ``inlet_c``; in most servers the BMC alone does.
    """

    model_name: str
    hostname: str
    boot_id: str
    machine_id: str
    serial_system: str
    serial_board: str
    inlet_c: float
    coolant_c: float
    fans: list[float]
    nics: list[Nic]
    speed: float
    kernel_edge: int
    kernel_elements: int
    gpus: list[Gpu]
    reads_inlet: bool = True
    schema: str = SCHEMA

    @property
    def model(self) -> Model:
        """The figures of its hardware model."""
        return MODELS[self.model_name]


def _draw(dice: random.Random, middle: float, sigma: float) -> float:
    """A normal draw within ±2.5 sigma: parts further out do not leave the factory."""
    while True:
        value = dice.gauss(middle, sigma)
        if abs(value - middle) <= _CLAMP * sigma:
            return value


def _draw_gpu(dice: random.Random, wear: random.Random, model: Model, slot: int) -> Gpu:
    return Gpu(
        slot=slot,
        enumerates=True,
        serial=f"SIM16{dice.randrange(10**11):011d}",
        uuid=f"GPU-{uuid.UUID(int=dice.getrandbits(128), version=4)}",
        pci=f"00000000:{0x19 + 0x1A * slot:02X}:00.0",
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
        stuck_output_bit=-1,
        stuck_output_every=1,
        stuck_cell_bit=-1,
        stuck_cell_word=0,
        stuck_cell_level=0,
        # Healthy parts have occasional corrected errors and replays; many of them are a fault.
        corrected_per_hour=wear.choice((0.0, 0.0, 0.0, 0.5, 2.0)),
        nvlink_errors_per_hour=0.0,
        pcie_replays_per_hour=wear.choice((0.0, 0.0, 0.0, 1.0, 6.0)) if model.pcie_width else 0.0,
        processor_timeouts_per_hour=0.0,
        waiting_rows=0,
        spare_rows=wear.choice((SPARE_ROWS, SPARE_ROWS, SPARE_ROWS, SPARE_ROWS - 1)),
        opens_at_c=NEVER_C,
        power_limit_w=model.power_limit_w,
        clock_lock_mhz=0.0,
        ecc_on=True,
        mig_on=False,
    )


def draw_machine(
    hostname: str, model_name: str, seed: int, speed: float = SPEED, kernel_edge: int = KERNEL_EDGE
) -> Machine:
    """A healthy machine with ordinary spread, drawn from ``seed`` and its name: two names are never the same machine.

    Raises ValueError for a model that is unknown.
    """
    if model_name not in MODELS:
        raise ValueError("no simulated model {!r}; there are: {}".format(model_name, ", ".join(sorted(MODELS))))
    model = MODELS[model_name]
    dice = random.Random(f"{model_name}/{hostname}/{seed}")
    wear = random.Random(f"{model_name}/{hostname}/{seed}/wear")
    return Machine(
        model_name=model_name,
        hostname=hostname,
        boot_id=str(uuid.UUID(int=dice.getrandbits(128), version=4)),
        machine_id=f"{dice.getrandbits(128):032x}",
        serial_system=f"SIM{dice.randrange(10**9):09d}",
        serial_board=f"SIMB{dice.randrange(10**10):010d}",
        inlet_c=_draw(dice, model.inlet_c, 0.8),
        coolant_c=_draw(wear, model.coolant_c, 0.8),
        fans=[1.0] * model.fans,
        nics=[Nic(name, True, speed_gbps, 0.0) for name, speed_gbps in model.nics],
        speed=speed,
        kernel_edge=kernel_edge,
        kernel_elements=KERNEL_ELEMENTS,
        gpus=[_draw_gpu(dice, wear, model, slot) for slot in range(model.gpu_count)],
    )


def save_machine(directory: Path, machine: Machine) -> None:
    """Write ``directory``/machine.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "machine.json").write_text(json.dumps(dataclasses.asdict(machine), indent=1), encoding="utf-8")


def load_machine(directory: Path) -> Machine:
    """Read ``directory``/machine.json. Raises ValueError, in one sentence, where it is missing or cannot be used."""
    path = directory / "machine.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.get("schema") != SCHEMA:
            raise ValueError("its schema is {!r}, not {!r}".format(raw.get("schema"), SCHEMA))
        if raw.get("model_name") not in MODELS:
            raise ValueError("its model {!r} is unknown".format(raw.get("model_name")))
        raw["gpus"] = [Gpu(**gpu) for gpu in raw["gpus"]]
        raw["nics"] = [Nic(**nic) for nic in raw["nics"]]
        return Machine(**raw)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} describes no simulated machine: {error}") from error
