"""Power pulses: bursts of products with rests of equal length, on all GPUs in phase or on every other one in turn.

Steady load gives a power supply no steps; bursts of 5 to 50 ms on all GPUs at once do
(docs/science.md#conditions). Burn-in compares what each burst computes last, bit by bit, with what the product gave
before the pulses; ``exact_gemm`` compares every product with the exact answer.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from muster_node.hardware.seam import Clock, Compute, Device, Worker
from muster_node.probe import Context, Metric, Param
from muster_node.workloads.products.exact_vector import Finding, hung
from muster_node.workloads.products.timed import least_s, products_in

PATTERNS = ("in phase", "anti-phase")
PARAMS = {
    "pulse_s": Param(0.0, "how long to pulse, in phase and then as long in anti-phase; 0: not at all"),
    "pulse_ms": Param([5, 10, 20, 50], "widths of the pulses, each for an equal part of the time"),
}
METRICS = {
    "pulse_mismatches": Metric("count", "elements that a burst computed otherwise than before the pulses, by pattern"),
    "pulse_share": Metric("%", "bursts that came in time, of those that the rhythm has places for, by pattern"),
}
"""Metrics of a probe that pulses."""
NO_BURST = "no burst came in time for its place"
_LEAD_S = 0.05  # from the common start signal to the first burst: time for every thread to wake

Work = tuple[Callable[[int], None], Callable[[int], None]]
"""Gives a device so many products: unchecked, and as a burst that is checked."""


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
        self.places = sum(int(self._each / (2.0 * width)) for width in self._widths)
        """Bursts of a GPU that is never late, all but one of each width."""

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
    """The work of one device: bursts of each width in turn, ``pulse_s`` in all, in the rhythm of all devices.

    ``work_of``: makes the operands on a device; its bursts add to the finding, whose errors end it.
    """

    def __init__(self, context: Context, dtype: str, pattern: str, work_of: Callable[[Compute, Finding], Work]) -> None:
        params = context.params
        self._hardware, self._dtype, self._work_of, self._mode = context.hardware, dtype, work_of, "pulsed " + pattern
        self.rhythm = Rhythm(context.hardware.clock, params["pulse_s"], params["pulse_ms"], pattern)

    def __call__(self, worker: Worker) -> Finding | None:
        """None without the format."""
        compute, finding = self._hardware.compute(worker.device), Finding(self._mode)
        if not compute.supports(self._dtype):
            worker.ready()
            return None
        with finding.keeping_errors():
            give, burst = self._work_of(compute, finding)
            worker.ready()
            finding.product_s = least_s(compute, functools.partial(give, 1))
            worker.ready()
            for width, places in self.rhythm.widths(worker.device):
                products = products_in(width, finding.product_s)
                with compute.timer():
                    for _ in places:
                        burst(products)
                        finding.bursts += 1
        return finding

    def emit_share(self, context: Context, device: Device, finding: Finding, labels: dict[str, str]) -> None:
        """The share of the bursts that came in time; none where a product is too long for any burst."""
        note = finding.error
        if self._hardware.simulated:  # its clock outruns the processor that computes for the GPU
            note = note or "not measured on simulated hardware"
        if finding.product_s > max(context.params["pulse_ms"]) / 1000.0:
            note = note or "one product lasts longer than any burst"
        share = min(100.0, 100.0 * finding.bursts / max(1, self.rhythm.places))
        context.emit("pulse_share", device.id, value=None if note else share, labels=labels, note=note)


def repeated(
    context: Context, operands_on: Callable[[Compute], Sequence[Any]], pattern: str, compute: Compute, finding: Finding
) -> Work:
    """The last product of each burst is compared with the first of all."""
    operands, size, labels = operands_on(compute), context.params["size"], {"pattern": pattern}

    def product() -> Any:
        return compute.matmul(*operands, nominal=(size, size, size))

    def give(products: int) -> None:
        for _ in range(products):
            product()

    def burst(products: int) -> None:
        give(products - 1)
        wrong = int((product() != reference).sum())
        if wrong and not finding.mismatches:
            context.emit("pulse_mismatches", compute.device.id, value=wrong, labels=labels, so_far=True)
        finding.mismatches += wrong

    reference = product()
    return give, burst


def pulse(context: Context, gpus: list[Device], operands: Callable[[Compute], Sequence[Any]]) -> dict[Device, str]:
    """Pulse in both patterns, if ``pulse_s`` is not 0. Returns the GPUs that failed, with the reason."""
    lost: dict[Device, str] = {}
    hardware, dtype = context.hardware, context.params["dtype"]
    for pattern in PATTERNS if context.params["pulse_s"] else ():
        left = [gpu for gpu in gpus if gpu not in lost]
        if not left:
            break
        context.progress(f"pulses of {context.params['pulse_ms']} ms on {len(left)} GPUs, {pattern}")
        pulsing = Pulsing(context, dtype, pattern, functools.partial(repeated, context, operands, pattern))
        findings = hardware.at_once(left, pulsing, late=hung, takes_s=context.params["pulse_s"])
        for gpu, finding in zip(left, findings):
            if finding.error:
                lost[gpu] = f"lost under pulses {pattern}: {finding.error}"
            note = finding.error or ("" if finding.bursts else NO_BURST)
            value, labels = None if note else finding.mismatches, {"pattern": pattern}
            context.emit("pulse_mismatches", gpu.id, value=value, labels=labels, samples=finding.bursts, note=note)
            pulsing.emit_share(context, gpu, finding, labels)
    return lost
