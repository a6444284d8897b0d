"""The soak: what sensors say under load, and only what they say."""

import contextlib
import itertools
import threading
import time

import pynvml
import pytest

from muster_node.hardware.host.cpu_compute import CpuCompute
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.nvidia import nvml as nvml_module
from muster_node.hardware.nvidia.gpus import NvidiaGpus
from muster_node.hardware.seam import Sample, Timing
from muster_node.probes.thermal_soak import ThermalSoak
from tests.muster_node.hardware.nvml_standin import FakeNvml, Hangs, run_or_hang

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.needs_torch


class Instrumented(HostHardware):
    """This machine's cores with sensors on paper: it warms, slows down and throttles as it is read."""

    def __init__(self):
        super().__init__()
        self.readings = 0

    def telemetry(self):
        self.readings += 1
        late = self.readings > 4
        yield Sample("temperature", "cpu0", "°C", value=60.0 + self.readings)
        yield Sample("inlet_temperature", "node", "°C", value=22.0)
        yield Sample("power", "cpu0", "W", value=100.0)
        yield Sample("clock", "cpu0", "MHz", value=1800.0 if late else 3600.0)
        yield Sample("fan", "node", "%", value=40.0 + self.readings)
        yield Sample("throttle", "cpu0", "state", state="hw_thermal" if late else "none")


def test_this_machine_reports_its_load_and_the_sensors_it_has(run_probe, cpus):
    run = run_probe(ThermalSoak, seconds=0.6, interval_s=0.1)
    for cpu in cpus:
        assert run.one("soak_rate", cpu).value > 0.1
        run.one("soak_rate_drop", cpu)
    sensed = {sample.series for sample in HostHardware().telemetry()}
    assert bool(run.all("temperature_max")) == ("temperature" in sensed)
    assert bool(run.all("clock_median")) == ("clock" in sensed)


def test_sensor_readings_under_load(run_probe):
    hardware = Instrumented()
    run = run_probe(ThermalSoak, hardware, seconds=1.0, interval_s=0.1)
    assert hardware.readings > 8
    assert run.one("temperature_max", "cpu0").value == 60.0 + hardware.readings
    assert run.one("fan_max", "node").value == 40.0 + hardware.readings
    assert run.one("power_mean", "cpu0").value == 100.0
    assert run.one("inlet_temperature", "node").value == 22.0
    assert 0.0 < run.one("throttle_time", "cpu0", reason="hw_thermal").value < 1.5
    # Not measured where this machine was too busy to read nine tenths of the time.
    assert run.one("throttle_time", "cpu0", reason="sw_thermal").value in (0.0, None)
    # temperatures rise by one degree a reading from 61, so their median is half way; 22 °C inlet, 100 W
    median = 60.0 + (1 + hardware.readings) / 2
    assert run.one("thermal_resistance", "cpu0").value == pytest.approx((median - 22.0) / 100.0)
    assert not run.all("hbm_temperature_max")
    assert not run.all("thermal_margin")


def test_without_a_cool_down_or_a_settled_temperature_the_note_gives_the_reason(run_probe):
    run = run_probe(ThermalSoak, Instrumented(), seconds=1.0, interval_s=0.1)
    cooling, steady = run.one("cooldown_constant", "cpu0"), run.one("time_to_steady", "cpu0")
    assert cooling.value is None
    assert cooling.note
    assert steady.value is None
    assert "not steady" in steady.note
    assert not run.all("hbm_gradient")
    assert not run.all("hbm_margin")


def test_without_an_inlet_thermal_resistance_says_so(run_probe):
    class Sealed(Instrumented):
        def telemetry(self):
            return [sample for sample in super().telemetry() if sample.series != "inlet_temperature"]

    resistance = run_probe(ThermalSoak, Sealed(), seconds=0.5, interval_s=0.1).one("thermal_resistance", "cpu0")
    assert (resistance.value, resistance.labels) == (None, {"method": "cool-down"})
    assert "inlet" in resistance.note


class Memory(Instrumented):
    """With memory on top of its core, which names a limit only if ``limited``."""

    limited = True

    def telemetry(self):
        yield from super().telemetry()
        yield Sample("hbm_temperature", "cpu0", "°C", value=60.0 + 1.5 * self.readings)
        if self.limited:
            yield Sample("hbm_margin", "cpu0", "°C", value=30.0 - self.readings)


def test_memory_temperature_is_reported_against_its_core_once_settled(run_probe):
    hardware = Memory()
    run = run_probe(ThermalSoak, hardware, seconds=1.0, interval_s=0.1, settle=0.5)
    settled = range(int(0.5 * hardware.readings) + 1, hardware.readings + 1)
    assert run.one("hbm_gradient", "cpu0").value == pytest.approx(0.5 * sum(settled) / len(settled))
    assert run.one("hbm_margin", "cpu0").value == 30.0 - hardware.readings


def test_a_limit_of_memory_that_is_not_named_is_not_supported_and_not_zero(run_probe):
    hardware = Memory()
    hardware.limited = False
    margin = run_probe(ThermalSoak, hardware, seconds=0.5, interval_s=0.1).one("hbm_margin", "cpu0")
    assert (margin.value, margin.note) == (None, "not supported")


class Board(HostHardware):
    """Three GPUs behind a strict NVML; their products take almost no time, and their power never stands still."""

    def __init__(self, nvml):
        milliwatts = itertools.cycle([699500, 699613, 698907, 700008])
        nvml.answers["nvmlDeviceGetPowerUsage"] = lambda handle: next(milliwatts)
        super().__init__(accelerators=NvidiaGpus(nvml))

    def compute(self, device):
        return Multiplier(device)


class Multiplier(CpuCompute):
    def __init__(self, device):
        self.device, self.torch_device = device, torch.device("cpu")

    def physical(self, *shape):
        return tuple(16 for _ in shape)

    def matmul(self, a, b, *, nominal, out_dtype=None):
        time.sleep(0.001)

    @contextlib.contextmanager
    def timer(self):
        timing, begun = Timing(), time.monotonic()
        yield timing
        timing.seconds = time.monotonic() - begun


SOAK = {"seconds": 1.5, "interval_s": 0.05}


def stops(nvml, index, error, after=5):
    """From the ``after``-th reading of its temperature on, NVML answers for this GPU with an error, or hangs."""
    seen = itertools.count()

    def before(name, arguments):
        if arguments[:1] != (index,):
            return
        if name == "nvmlDeviceGetTemperature" and next(seen) >= after:
            nvml.refuse_gpu[index] = error
        if error is None and index in nvml.refuse_gpu:
            raise Hangs

    nvml.before = before


def test_sensors_of_a_healthy_board_are_read_in_full(run_probe):
    run = run_probe(ThermalSoak, Board(FakeNvml(count=3)), seconds=2.0, interval_s=0.3)
    assert all(row.value > 90.0 for row in run.all("sensor_share"))
    assert {row.value for row in run.all("gpu_lost")} == {0.0}
    assert all(50.0 < row.value <= 100.0 for row in run.all("load_share"))


@pytest.mark.parametrize("error", [None, pynvml.NVML_ERROR_UNKNOWN])
def test_sensors_that_stop_are_a_small_share_and_no_loss(run_probe, monkeypatch, error):
    monkeypatch.setattr(nvml_module._Worker, "run", run_or_hang)
    nvml = FakeNvml(count=3)
    hardware = Board(nvml)
    stops(nvml, 1, error)  # NVML index 1 sits in slot 5
    run = run_probe(ThermalSoak, hardware, **SOAK)
    assert run.one("sensor_share", "gpu5").value < 50.0
    assert all(run.one("sensor_share", gpu).value > 50.0 for gpu in ("gpu4", "gpu7"))
    assert run.one("gpu_lost", "gpu5").value == 0.0


def test_a_gpu_that_nvml_reports_lost_is_lost_though_it_still_multiplies(run_probe):
    nvml = FakeNvml(count=3)
    hardware = Board(nvml)
    stops(nvml, 1, pynvml.NVML_ERROR_GPU_IS_LOST)
    run = run_probe(ThermalSoak, hardware, **SOAK)
    assert {row.device: row.value for row in run.all("gpu_lost")} == {"gpu4": 0.0, "gpu5": 1.0, "gpu7": 0.0}
    assert run.one("sensor_share", "gpu5").value < 50.0


def test_sensors_that_take_long_to_read_stand_for_part_of_the_soak_only(run_probe):
    """Two of two readings came, and a GPU may have been at any temperature between them."""
    nvml = FakeNvml(count=3)
    nvml.before = lambda name, arguments: time.sleep(0.25) if name == "nvmlDeviceGetTemperature" else None
    run = run_probe(ThermalSoak, Board(nvml), seconds=1.6, interval_s=0.05)
    assert {row.value < 60.0 for row in run.all("sensor_share")} == {True}
    assert not run.all("throttle_time")


def test_sensors_that_are_stuck_give_no_reading(run_probe):
    nvml, hardware_power = FakeNvml(count=3), itertools.count(699000)
    hardware = Board(nvml)
    nvml.answers["nvmlDeviceGetPowerUsage"] = lambda handle: 650000 if handle == 1 else next(hardware_power)
    run = run_probe(ThermalSoak, hardware, **SOAK)
    stuck = run.one("sensor_share", "gpu5")
    assert stuck.value == 0.0
    assert "power is stuck" in stuck.note
    assert {row.device for row in run.all("power_mean")} == {"gpu4", "gpu7"}


def test_readings_that_cannot_be_are_none(run_probe):
    nvml, odd = FakeNvml(count=3), itertools.cycle([64, 64, 255, 0, 4294967295, 64])
    nvml.answers["nvmlDeviceGetTemperature"] = lambda handle, kind: next(odd) if handle == 1 else 64
    run = run_probe(ThermalSoak, Board(nvml), **SOAK)
    assert run.one("temperature_max", "gpu5").value == 64.0


def test_a_gpu_whose_sensors_this_user_never_saw_is_not_lost_for_failing(run_probe):
    nvml = FakeNvml(count=3)
    hardware = Board(nvml)
    nvml.refuse_gpu[1] = pynvml.NVML_ERROR_NO_PERMISSION

    def compute(device):
        if device.id == "gpu5":
            raise RuntimeError("CUDA error: out of memory")
        return Multiplier(device)

    hardware.compute = compute
    row = run_probe(ThermalSoak, hardware, **SOAK).one("gpu_lost", "gpu5")
    assert row.value is None
    assert "out of memory" in row.note


def test_a_gpu_that_hangs_is_named_and_the_others_are_measured(run_probe):
    hardware, released = Board(FakeNvml(count=3)), threading.Event()
    hardware.late_s = 0.5

    class Hanging(Multiplier):
        def matmul(self, a, b, *, nominal, out_dtype=None):
            released.wait(600)

    hardware.compute = lambda device: (Hanging if device.id == "gpu5" else Multiplier)(device)
    hardware.start_limit_s = 0.5
    run = run_probe(ThermalSoak, hardware, **SOAK)
    released.set()
    assert run.one("soak_rate", "gpu5").value is None
    assert "gpu5 hangs" in run.one("soak_rate", "gpu5").note
    assert all(run.one("soak_rate", gpu).value > 0 for gpu in ("gpu4", "gpu7"))
