"""Power pulses: bursts of products with rests of equal length, on all GPUs in phase or on every other one in turn.

Steady load gives a power supply no steps; bursts of 5 to 50 ms on all GPUs at once do
(docs/science.md#conditions). What each burst computes last is compared, bit by bit, with what the same product gave
before the pulses. Whether that was right is not checked here: ``exact_gemm`` pulses by the same ``Rhythm`` and compares
every product with the exact answer.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from muster_node.hardware.seam import Clock, Compute, Device, Worker
from muster_node.probe import Context, Metric, Param
from muster_node.workloads.common import reason_of
from muster_node.workloads.products import products_in

PATTERNS = ("in phase", "anti-phase")
PARAMS = {
    "pulse_s": Param(0.0, "how long to pulse, in phase and then as long in anti-phase; 0: not at all"),
    "pulse_ms": Param([5, 10, 20, 50], "widths of the pulses, each for an equal part of the time"),
}
METRICS = {
    "pulses": Metric("count", "bursts that were given, by pattern"),
    "pulse_mismatches": Metric("count", "elements that a burst computed otherwise than before the pulses, by pattern"),
}
"""Metrics of a probe that pulses."""
NO_BURST = "no burst came in time for its place"
_LEAD_S = 0.05  # from the common start signal to the first burst: time for every thread to wake

Operands = Callable[[Compute], list[Any]]
"""Makes both factors of the product on a device."""


@dataclasses.dataclass
class Pulsed:
    """One GPU's result: bursts, elements that differ from the reference, and the error that ended it early, if any."""

    pulses: int = 0
    mismatches: int = 0
    lost: str = ""


class Rhythm:
    """When bursts begin: each width (ms) in turn for an equal part of ``seconds``, with rests as long as the bursts.

    All GPUs go by one rhythm; a burst that would be late is left out, never moved.
    """

    def __init__(self, clock: Clock, seconds: float, widths_ms: Sequence[float], pattern: str) -> None:
        self._clock, self._each = clock, seconds / len(widths_ms)
        self._widths = [width / 1000.0 for width in widths_ms]
        self._anti_phase = pattern == PATTERNS[1]
        self._begin: float | None = None
        self._lock = threading.Lock()

    def widths(self, gpu: Device) -> Iterator[tuple[float, Iterator[None]]]:
        """(seconds of a burst, what waits for each moment at which one is to begin) for each width, on this GPU."""
        begin, odd = self._agreed_begin(), gpu.index % 2 == 1
        for number, width in enumerate(self._widths):
            first = begin + number * self._each
            yield width, self._places(first + (width if self._anti_phase and odd else 0.0), width, first + self._each)

    def _agreed_begin(self) -> float:
        """The same time for all GPUs, set by the first caller."""
        with self._lock:
            if self._begin is None:
                self._begin = self._clock.now() + _LEAD_S
            return self._begin

    def _places(self, first: float, width: float, end: float) -> Iterator[None]:
        """Waits for each moment at which a burst is to begin, until ``end``."""
        place = 0
        while True:
            place = max(place, math.ceil((self._clock.now() - first) / (2.0 * width)))
            begin = first + 2.0 * width * place
            if begin + width > end:
                return
            self._clock.sleep(max(0.0, begin - self._clock.now()))
            yield
            place += 1


class Pulsing:
    """The work of one GPU: bursts of each width in turn, ``pulse_s`` in all, in the rhythm of all GPUs."""

    def __init__(self, torch: Any, context: Context, operands: Operands, pattern: str) -> None:
        params = context.params
        self._torch, self._hardware, self._operands = torch, context.hardware, operands
        self._size = params["size"]
        self._rhythm = Rhythm(context.hardware.clock, params["pulse_s"], params["pulse_ms"], pattern)

    def __call__(self, worker: Worker) -> Pulsed:
        """Pulse the worker's GPU."""
        compute, pulsed = self._hardware.compute(worker.device), Pulsed()
        prepared = None
        try:
            prepared = self._prepare(compute)
        except RuntimeError as error:  # what PyTorch raises when a device has gone
            pulsed.lost = reason_of(error)
        worker.ready()  # also by failed ones, for which the others would wait
        if prepared is not None:
            try:
                self._pulse(compute, prepared, pulsed)
            except RuntimeError as error:
                pulsed.lost = reason_of(error)
        return pulsed

    def _prepare(self, compute: Compute) -> tuple[tuple[Any, Any, Any], float]:
        """Factors and the product that bursts are compared with; and the seconds that one takes."""
        a, b = self._operands(compute)
        reference = self._product(compute, a, b)
        with compute.timer() as timing:
            self._product(compute, a, b)
        return (a, b, reference), timing.seconds

    def _pulse(self, compute: Compute, prepared: tuple[tuple[Any, Any, Any], float], pulsed: Pulsed) -> None:
        matrices, product_s = prepared
        for width, places in self._rhythm.widths(compute.device):
            with compute.timer():
                pulses, wrong = self._bursts(compute, matrices, products_in(width, product_s), places)
            pulsed.pulses, pulsed.mismatches = pulsed.pulses + pulses, pulsed.mismatches + wrong

    def _bursts(
        self, compute: Compute, matrices: tuple[Any, Any, Any], products: int, places: Iterator[None]
    ) -> tuple[int, int]:
        """Queues a burst at each place, without waiting for it: (bursts, elements that differ from the reference)."""
        a, b, reference = matrices
        pulses, wrong = 0, self._torch.zeros((), dtype=self._torch.int64, device=compute.torch_device)
        for _ in places:
            for _ in range(products):
                out = self._product(compute, a, b)
            wrong += (out != reference).sum()
            pulses += 1
        return pulses, int(wrong)

    def _product(self, compute: Compute, a: Any, b: Any) -> Any:
        return compute.matmul(a, b, nominal=(self._size, self._size, self._size))


def pulse(context: Context, torch: Any, gpus: list[Device], operands: Operands) -> dict[Device, str]:
    """Pulse in both patterns, if ``pulse_s`` is not 0. Returns the GPUs that failed, with the reason."""
    lost: dict[Device, str] = {}
    for pattern in PATTERNS if context.params["pulse_s"] else ():
        left = [gpu for gpu in gpus if gpu not in lost]
        if not left:
            break
        context.progress(f"pulses of {context.params['pulse_ms']} ms on {len(left)} GPUs, {pattern}")
        pulsing = Pulsing(torch, context, operands, pattern)
        found = context.hardware.at_once(left, pulsing, late=lambda _, why: Pulsed(lost=why))
        for gpu, pulsed in zip(left, found):
            if pulsed.lost:
                lost[gpu] = f"lost under pulses {pattern}: {pulsed.lost}"
            _emit(context, gpu, pattern, pulsed)
    return lost


def _emit(context: Context, gpu: Device, pattern: str, pulsed: Pulsed) -> None:
    labels, note = {"pattern": pattern}, pulsed.lost or ("" if pulsed.pulses else NO_BURST)
    for metric, count in (("pulses", pulsed.pulses), ("pulse_mismatches", pulsed.mismatches)):
        value = None if note else count
        context.emit(metric, gpu.id, value=value, labels=labels, samples=pulsed.pulses, note=note)
