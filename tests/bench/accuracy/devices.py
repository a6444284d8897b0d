"""The physical state of generated nodes: eight GPUs each, as built, where they stand and what air they get.

Spreads and where they come from:

* clock at power: 1.75 % in all, which is the voltage curve's own (normal, 1.5 %) and leakage's, skewed to the
  slow side: the range of eight such draws is 5 %, the spread within one healthy node that stas00/ml-engineering
  publishes. Not Student-t(4): of that width one healthy node in 400 would have a GPU 12 % slow, and no test could hold
  both a recall at 12 % and one false fail in 1,000.
* work per clock, HBM, PCIe and NVLink efficiency: Student-t(4), 0.2 %. Issue 5 says that they hardly vary; the width is
  this generator's choice, such that a healthy GPU 3 % off is rare and not unheard of.
* leakage and thermal resistance: log-normal (skewed), 10 % and 4 % (this generator's choice; none are published).
* inlet: 24 °C, racks and heights apart by about 1 °C (this generator's choice), and a day's swing of ±3.5 °C, which
  costs 1–2 % of clock between night and noon, as Llama 3's report tells of its fleet (arXiv 2407.21783).
* drivers: four nodes in five have the older one; the newer multiplies fp8 1.5 % faster (this generator's choice).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.bench.accuracy.draws import Array, Shape, skewed, student

GPUS = 8
CURVE_SIGMA = 0.015
RATE_SIGMA = 0.002
LEAKAGE_SIGMA = 0.10
RESISTANCE_SIGMA = 0.04

INLET_C = 24.0
RACK_SIGMA_C = 1.0
HEIGHT_STEP_C = 0.5
DAY_SWING_C = 3.5
HOTTEST_HOUR = 15.0
NODES_PER_RACK = 4
RACKS_PER_ZONE = 32

DRIVERS = ("570.124.06", "575.57.08")
NEW_DRIVER_SHARE = 0.2
FP8_GAIN = 1.015

DTYPES = ("bf16", "fp8")


@dataclasses.dataclass(frozen=True)
class Devices:
    """What faults may alter: arrays of nodes × GPUs.

    ``silicon``: clock at rated power and temperature, 1 is typical. ``lanes_bf16`` and ``lanes_fp8``: share of the
    matrix units at work. ``clock_cap_mhz``: fastest clock that software allows. ``power_share``: power delivered, as a
    share of the limit. ``airflow``: share of the designed flow past the GPU. ``resistance``: core to air, °C/W at full
    flow; ``hbm_offset_c``: HBM above core. ``hbm``, ``pcie``, ``nvlink``: bandwidth efficiency, 1 is typical;
    ``pcie_lost``, ``nvlink_lost``: shares of link time lost to replays. ``upsets``: wrong products per product;
    ``flips``: bits lost per GiB tested; ``uncorrectable``: ECC events per hour of load; ``brake``: share of load time
    under the power brake.
    """

    present: Array
    silicon: Array
    lanes_bf16: Array
    lanes_fp8: Array
    clock_cap_mhz: Array
    power_share: Array
    leakage_w: Array
    airflow: Array
    resistance: Array
    hbm_offset_c: Array
    hbm: Array
    pcie: Array
    nvlink: Array
    pcie_width: Array
    pcie_generation: Array
    pcie_lost: Array
    nvlinks: Array
    nvlink_lost: Array
    upsets: Array
    flips: Array
    uncorrectable: Array
    brake: Array
    remap_pending: Array

    def __len__(self) -> int:
        """Number of nodes."""
        return len(self.present)

    @classmethod
    def joined(cls, parts: Sequence[Devices]) -> Devices:
        """All nodes of these, one after another."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


@dataclasses.dataclass(frozen=True)
class Places:
    """Where each node stands and what it runs: indices of rack, height in the rack and driver."""

    rack: npt.NDArray[np.int64]
    height: npt.NDArray[np.int64]
    driver: npt.NDArray[np.int64]

    @property
    def zone(self) -> npt.NDArray[np.int64]:
        """Cooling zone: a row of racks that share their air."""
        return self.rack // RACKS_PER_ZONE


@dataclasses.dataclass(frozen=True)
class Hall:
    """The racks of one fleet, by how much warmer than the hall each one's air is, in °C."""

    rack_offset_c: Array

    @classmethod
    def draw(cls, rng: np.random.Generator, nodes: int) -> Hall:
        """A hall with room for so many nodes."""
        return cls(rng.normal(0.0, RACK_SIGMA_C, -(-nodes // NODES_PER_RACK)))

    def fill(self, rng: np.random.Generator, nodes: int) -> Places:
        """Places for nodes, spread evenly over racks and heights, in random order and with drivers at random."""
        order = rng.permutation(nodes)
        rack = (order // NODES_PER_RACK) % len(self.rack_offset_c)
        driver = (rng.random(nodes) < NEW_DRIVER_SHARE).astype(np.int64)
        return Places(rack, order % NODES_PER_RACK, driver)

    def inlet(self, rng: np.random.Generator, places: Places) -> tuple[Array, Array]:
        """(hour of the day, inlet temperature in °C) at which each node is visited."""
        hour = rng.uniform(0.0, 24.0, len(places.rack))
        swing = DAY_SWING_C * np.cos(2.0 * np.pi * (hour - HOTTEST_HOUR) / 24.0)
        gradient = self.rack_offset_c[places.rack] + HEIGHT_STEP_C * places.height
        return hour, np.asarray(INLET_C + gradient + swing)


def build(rng: np.random.Generator, nodes: int) -> Devices:
    """Healthy nodes, fresh from the factory."""
    shape: Shape = (nodes, GPUS)

    def all_of(value: float) -> Array:
        return np.full(shape, value)

    def nearly(value: float, sigma: float) -> Array:
        return value * (1.0 + student(rng, sigma, shape))

    return Devices(
        present=all_of(1.0),
        silicon=rng.normal(1.0, CURVE_SIGMA, shape),
        lanes_bf16=nearly(1.0, RATE_SIGMA),
        lanes_fp8=nearly(1.0, RATE_SIGMA),
        clock_cap_mhz=all_of(1980.0),
        power_share=all_of(1.0),
        leakage_w=120.0 * skewed(rng, LEAKAGE_SIGMA, shape),
        airflow=all_of(1.0),
        resistance=0.055 * skewed(rng, RESISTANCE_SIGMA, shape),
        hbm_offset_c=9.0 * skewed(rng, 0.10, shape),
        hbm=nearly(1.0, RATE_SIGMA),
        pcie=nearly(1.0, RATE_SIGMA),
        nvlink=nearly(1.0, RATE_SIGMA),
        pcie_width=all_of(16.0),
        pcie_generation=all_of(5.0),
        pcie_lost=all_of(0.0),
        nvlinks=all_of(18.0),
        nvlink_lost=all_of(0.0),
        upsets=all_of(0.0),
        flips=all_of(0.0),
        uncorrectable=all_of(0.0),
        brake=all_of(0.0),
        remap_pending=all_of(0.0),
    )
