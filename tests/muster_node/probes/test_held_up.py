"""What holds up the work of a GPU: another's start is no measure of what it takes; what hangs is left behind."""

import contextlib
import threading
import time

import pytest

from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.seam import Compute, Device, Timing
from muster_node.probes.gemm_rate import GemmRate
from muster_node.probes.memory_bandwidth import MemoryBandwidth
from muster_node.probes.thermal_soak import ThermalSoak
from muster_node.workloads.products.pulses import Pulsing

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.needs_torch

GPUS = [Device(f"gpu{slot}", "gpu", slot) for slot in range(2)]
PRODUCT_S, FLUSH_S, HELD_UP = 1e-3, 1e-4, 20.0
START_S = 0.2


class Queue(Compute):
    """Device seconds by a model: all work takes ``HELD_UP`` times as long until the last GPU has started."""

    def __init__(self, device, started, blocks):
        self.device, self.torch_device = device, torch.device("cpu")
        self._started, self._blocks, self._queued, self._products = started, blocks, 0.0, 0

    def physical(self, *shape):
        return tuple(min(side, 8) for side in shape)

    def _queue(self, seconds):
        self._queued += seconds * (1.0 if self._started.is_set() else HELD_UP)

    def matmul(self, a, b, *, nominal, out_dtype=None):
        self._queue(PRODUCT_S)
        self._products += 1
        return a

    def touch(self, tensor, *, nominal_bytes):
        self._queue(FLUSH_S)
        return tensor

    @contextlib.contextmanager
    def timer(self):
        timing, self._queued, self._products = Timing(), 0.0, 0
        yield timing
        timing.seconds, timing.mean_clock_mhz = self._queued, 1500.0
        self._blocks.append(self._products)

    def free_memory(self):
        return 1 << 36

    def supports(self, dtype):
        return True


class Board(HostHardware):
    def __init__(self):
        super().__init__()
        self.started, self.blocks = threading.Event(), {gpu: [] for gpu in GPUS}

    def devices(self, kind):
        return GPUS if kind == "gpu" else super().devices(kind)

    def compute(self, device):
        if device.kind != "gpu":
            return super().compute(device)
        if device is GPUS[-1]:
            time.sleep(START_S)
            self.started.set()
        return Queue(device, self.started, self.blocks[device])


def test_rates_leave_out_what_a_flush_takes_when_all_have_started(run_probe):
    run = run_probe(GemmRate, Board(), dtypes=["bf16"], seconds=0.2, warmup_s=0.1)
    for gpu in GPUS:
        rate = run.one("gemm_rate", gpu.id).value
        assert rate == pytest.approx(2 * 8192**3 / PRODUCT_S / 1e12)


def test_a_soak_rests_after_blocks_of_the_length_that_keeps_a_gpu_busy(run_probe):
    board = Board()
    run_probe(ThermalSoak, board, seconds=0.1, interval_s=0.05)
    assert {gpu.id: max(board.blocks[gpu]) for gpu in GPUS} == {gpu.id: 100 for gpu in GPUS}


def test_bursts_are_as_long_as_their_width(run_probe, tmp_path):
    board, bursts = Board(), {gpu: set() for gpu in GPUS}

    class Context:
        hardware, params = board, {"pulse_s": 0.2, "pulse_ms": [10]}

    def work_of(compute, finding):
        def give(products):
            for _ in range(products):
                compute.matmul(None, None, nominal=(8, 8, 8))

        return give, bursts[compute.device].add

    board.at_once(GPUS, Pulsing(Context, "bf16", "in phase", work_of))
    assert bursts == {gpu: {10} for gpu in GPUS}


def test_an_only_gpu_whose_copies_hang_is_left_behind(run_probe, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(Queue, "copy", lambda self, *_, **__: (released.wait(1.0), self._queue(1.0)))
    board = Board()
    board.devices = lambda kind: GPUS[:1] if kind == "gpu" else HostHardware.devices(board, kind)
    board.start_limit_s = board.late_s = 0.3
    run = run_probe(MemoryBandwidth, board, seconds=0.01, array_mib=1)
    released.set()
    assert "gpu0 hangs" in run.one("memory_bandwidth", "gpu0", op="copy").note
    assert run.one("memory_bandwidth", "memory", op="copy").value > 0
