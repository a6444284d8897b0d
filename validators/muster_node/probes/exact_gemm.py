"""Silent data corruption: matrix products of integers, compared element by element with the exact answer.

Operands are integers with K·Amax² below what the accumulator holds exactly, so the answer does not depend on order,
tiles, libraries or models of hardware: no golden value is needed, and one differing bit is a fault. Rows and columns
are scaled by random powers of two, which stays exact and sweeps the exponent range, since real faults fire for some
ranges of values only. Outputs that round (bf16, fp16) are compared with the exact value rounded to nearest even.

The exact answer is worked out once for a set of operands and serves many products of it (``products.check``), so that
looking at every element costs next to nothing compared with multiplying.

Conditions: cold (each device alone, after a wait until all are cool), soaked (all together, after unchecked load),
pulsed (all together in bursts).

A product that was wrong is computed again on the same device at once, and afterwards on two of its siblings.

Not covered: significands of full entropy, since integers here fill at most the accumulator's square root.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, Callable

from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Device, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.tools.run import COOL_PARAMS, cool_down
from muster_node.workloads.common import FORMATS, best_devices, precision_of, seed_of
from muster_node.workloads.each_device import error_of, on_each
from muster_node.workloads.products.exact import fitting_shape
from muster_node.workloads.products.exact_conditions import pulsed, soak
from muster_node.workloads.products.exact_vector import BATCH, EXAMPLES, RANGES, SHAPES, Finding, Shape, Vector, hung
from muster_node.workloads.products.pulses import METRICS as PULSE_METRICS
from muster_node.workloads.products.pulses import NO_BURST, PATTERNS, Pulsing
from muster_node.workloads.products.pulses import PARAMS as PULSE_PARAMS
from muster_node.workloads.rerun import DOC as RERUN_DOC
from muster_node.workloads.rerun import Rerun, peers_of, report_reruns

_MOST_PRODUCTS = 4096  # of one set of operands: with more, a tiny product would seldom get fresh operands
_Found = dict[str, list[Finding]]  # by device
_COLD, _SOAKED, _AS_FOUND = "cold", "soaked", "as found"


class ExactGemm(Probe):
    """Every element of many integer products, on each device alone and on all together."""

    name = "exact_gemm"
    stage = "integrity"
    doc = "Integer matrix products compared bit by bit with the exact answer"
    params = {
        "dtypes": Param(list(FORMATS), "number formats to test; those a device does not have are left out"),
        "shapes": Param(None, "list of [m, n, k]; None takes shapes that suit the kind of device"),
        "rounds": Param(4, "products for each format and shape; operand ranges take turns, so 4 covers all"),
        "seconds": Param(0.0, "go on for at least so many seconds for each format, device and mode"),
        "modes": Param(["alone", "together"], "each device in turn, all at once, or both"),
        "dwell_s": Param(0.0, "device seconds for which each set of operands is multiplied again"),
        "soak_s": Param(0.0, "load on all devices before they are tested together: cold alone, soaked together"),
        "pulse_s": Param(0.0, "how long to pulse with each format in phase, then as long in anti-phase; 0: not at all"),
        "pulse_ms": PULSE_PARAMS["pulse_ms"],
        # Chosen here. For a GPU that is warmer than this when idle, the wait ends when it becomes no cooler.
        "cool_c": Param(45.0, "before devices are tested alone, wait until no GPU is hotter than this, in °C"),
        "cool_limit_s": COOL_PARAMS["cool_limit_s"],
        "reruns": Param(10, "how often a product that was wrong is computed again"),
    }
    metrics = {
        "gemm_mismatches": Metric("count", "elements that differ from the exact answer"),
        "gemm_rerun": Metric("count", RERUN_DOC),
        "gemm_checked_elements": Metric("count", "elements compared"),
        "gemm_checked_fraction": Metric("%", "share of all elements of all counted products that were compared"),
        "gemm_pulses": Metric("count", "bursts of which every product was compared, by pattern"),
        "pulse_share": PULSE_METRICS["pulse_share"],
        "gemm_accumulator": Metric("text", "format in which sums came, where none of their bits were rounded away"),
        "gemm_not_supported": Metric("text", "requested number formats that the device does not multiply exactly"),
    }
    needs = ("torch",)

    @classmethod
    def timed_s(cls, params: Mapping[str, Any], devices: int) -> float:
        """The set time for each format, on each device alone, on all together, and in each pattern; and one soak."""
        turns = sum({"alone": devices, "together": 1}[mode] for mode in params["modes"])
        soak = params["soak_s"] if "together" in params["modes"] else 0.0
        each = params["seconds"] * turns + params["pulse_s"] * len(PATTERNS)
        return float(each * len(params["dtypes"]) + soak)

    def run(self, context: Context) -> None:
        """Screen every device under each condition. Raises Skip where no device has any of the formats."""
        torch, devices = require_torch(), best_devices(context.hardware)
        dtypes = context.params["dtypes"]
        found: dict[str, _Found] = {dtype: {device.id: [] for device in devices} for dtype in dtypes}
        missing: dict[str, list[str]] = {device.id: [] for device in devices}
        # Cold comes first and for all formats: after the first soak nothing is cold any more.
        if "alone" in context.params["modes"]:
            _cold(torch, context, devices, found)
        soak_s = context.params["soak_s"] if "together" in context.params["modes"] else 0.0
        for dtype in dtypes:
            with precision_of(torch, dtype):
                if soak_s > 0:
                    soak_s -= _soaked(torch, context, devices, dtype)
                _loaded(torch, context, devices, dtype, found[dtype])
                reruns = self._again(context, dtype, devices, found[dtype])
            for device in devices:
                report_reruns(context, "gemm_rerun", device.id, {"dtype": dtype}, reruns.get(device.id, {}))
                if not _report(context, device, dtype, found[dtype][device.id]):
                    missing[device.id].append(dtype)
        for device_id, formats in missing.items():
            if formats:
                context.emit("gemm_not_supported", device_id, text=", ".join(formats))
        if all(formats == dtypes for formats in missing.values()):
            raise Skip("no device here multiplies any of {}".format(", ".join(dtypes)))

    def _again(
        self, context: Context, dtype: str, devices: list[Device], findings: _Found
    ) -> dict[str, dict[str, Rerun]]:
        """Repeats wrong products on the same device, and on two siblings with the same operands.

        {device with mismatches: {device: number of wrong repeats there}}.
        """
        wrong = {name: [vector for finding in found for vector in finding.wrong] for name, found in findings.items()}
        failing = {name for name, vectors in wrong.items() if vectors}
        suspects = failing | {name for name, found in findings.items() if any(finding.error for finding in found)}
        reruns: dict[str, dict[str, Rerun]] = {}
        for name in sorted(failing):
            own = [finding.again for finding in findings[name]]
            on = reruns[name] = {name: Rerun(sum(one.runs for one in own), sum(one.wrong for one in own))}
            again = functools.partial(_repeat, context, dtype, wrong[name][:EXAMPLES])
            for peer in peers_of(name, suspects, devices):
                (seen,) = on_each(context.hardware, [peer], again)
                if not error_of(seen):
                    on[peer.id] = seen
        return reruns


def _cold(torch: Any, context: Context, devices: list[Device], found: dict[str, _Found]) -> None:
    """Each device by itself, format after format, so that the others rest meanwhile."""
    context.progress("waiting until the devices are cool")
    if warm := cool_down(context):
        context.progress(warm)
    for dtype, findings in found.items():
        with precision_of(torch, dtype):
            for device in devices:
                _at_once(context, [device], _COLD, dtype, _Screen(torch, context, dtype, "alone"), findings)


def _soaked(torch: Any, context: Context, devices: list[Device], dtype: str) -> float:
    """Heat all devices; returns the seconds that this took, 0 where none has the format."""
    context.progress("soaking for {:g} s".format(context.params["soak_s"]))
    with context.hardware.loading(devices):
        work, takes_s = functools.partial(soak, torch, context, dtype), context.params["soak_s"]
        soaked = on_each(context.hardware, devices, work, takes_s=takes_s)
        return float(max((seconds for seconds in soaked if not error_of(seconds)), default=0.0))


def _loaded(torch: Any, context: Context, devices: list[Device], dtype: str, findings: _Found) -> None:
    """All devices at once: steadily, then in pulses of both patterns."""
    if "together" in context.params["modes"]:
        condition = _SOAKED if context.params["soak_s"] else _AS_FOUND
        _at_once(context, devices, condition, dtype, _Screen(torch, context, dtype, "together"), findings)
    for pattern in PATTERNS if context.params["pulse_s"] else ():
        pulsing = pulsed(torch, context, dtype, pattern)
        _at_once(context, devices, "pulsed " + pattern, dtype, pulsing, findings)
        _report_pulses(context, devices, pulsing, {"pattern": pattern, "dtype": dtype}, findings)


def _at_once(
    context: Context,
    devices: list[Device],
    condition: str,
    dtype: str,
    work: Callable[[Worker], Finding | None],
    findings: _Found,
) -> None:
    """One turn of these devices under a condition."""
    context.progress(
        "exact {} products, {}, on {}".format(dtype, condition, ", ".join(device.id for device in devices))
    )
    takes_s = max(context.params["seconds"], context.params["pulse_s"])
    with context.hardware.loading(devices):
        found = context.hardware.at_once(devices, work, late=hung, takes_s=takes_s)
        for device, finding in zip(devices, found):
            if finding is not None:
                findings[device.id].append(finding)


def _report_pulses(
    context: Context, devices: list[Device], pulsing: Pulsing, labels: dict[str, str], findings: _Found
) -> None:
    """Reports the number of bursts and their share; zero bursts are a missing value, since nothing was tested."""
    for device in devices:
        for finding in findings[device.id][-1:]:
            note = finding.error or ("" if finding.bursts else NO_BURST)
            context.emit("gemm_pulses", device.id, value=finding.bursts or None, labels=labels, note=note)
            pulsing.emit_share(context, device, finding, labels)


def _report(context: Context, device: Device, dtype: str, findings: list[Finding]) -> bool:
    if not findings:
        return False
    labels = {"dtype": dtype}
    total = sum(finding.mismatches for finding in findings)
    error = next((finding.error for finding in findings if finding.error), "")
    if error and not total:  # correct products before an error do not clear the device
        for metric in ("gemm_mismatches", "gemm_checked_elements", "gemm_checked_fraction", "gemm_accumulator"):
            context.emit(metric, device.id, labels=labels, note=error)
        return True
    checked, produced = sum(f.checked for f in findings), sum(f.produced for f in findings)
    products = sum(finding.products for finding in findings)
    note = ""
    if total:
        wrong = sum(finding.wrong_products for finding in findings)
        modes = " and ".join(finding.mode for finding in findings if finding.mismatches)
        examples = "; ".join([e for finding in findings for e in finding.examples][:EXAMPLES])
        note = f"{wrong} of {products} products wrong ({modes}): {examples}"
    context.emit("gemm_mismatches", device.id, value=total, labels=labels, samples=products, note=note)
    context.emit("gemm_checked_elements", device.id, value=checked, labels=labels, samples=products)
    context.emit("gemm_checked_fraction", device.id, value=100.0 * checked / produced, labels=labels, samples=products)
    _report_accumulator(context, device, labels, next(f.accumulator for f in findings if f.accumulator))
    return True


def _report_accumulator(context: Context, device: Device, labels: dict[str, str], name: str) -> None:
    if name in ("bfloat16", "float16"):
        note = f"this PyTorch rounds sums to {name}, and what that hides was not compared"
        context.emit("gemm_accumulator", device.id, labels=labels, note=note)
    else:
        context.emit("gemm_accumulator", device.id, text=name, labels=labels)


class _Screen:
    """The work of one device: operands with fresh seeds until rounds and seconds are both reached."""

    def __init__(self, torch: Any, context: Context, dtype: str, mode: str) -> None:
        self._torch, self._hardware, self._dtype, self._mode = torch, context.hardware, dtype, mode
        self._emit, self._params, self._seed = context.emit, context.params, context.seed

    def __call__(self, worker: Worker) -> Finding | None:
        compute = self._hardware.compute(worker.device)
        worker.ready()
        if not compute.supports(self._dtype):
            return None
        finding = Finding(self._mode)
        with finding.keeping_errors():
            self._run(compute, finding)
        return finding

    def _run(self, compute: Compute, finding: Finding) -> None:
        clock, device = self._hardware.clock, compute.device
        end, number = clock.now() + self._params["seconds"], 0
        while number < self._params["rounds"] or clock.now() < end:
            for wanted in self._params["shapes"] or SHAPES[device.kind]:
                shape = fitting_shape(self._dtype, tuple(wanted))
                seed = seed_of(self._seed, self._mode, device.id, self._dtype, shape, number)
                self._screen(compute, shape, RANGES[number % len(RANGES)], seed, finding)
            number += 1

    def _screen(self, compute: Compute, shape: Shape, span: str, seed: int, finding: Finding) -> None:
        """One set of operands: one product, and as many more as fill the time."""
        reruns = self._params["reruns"]
        vector = Vector(self._torch, compute, self._dtype, shape, span, seed, self._emit)
        vector.check_first(reruns, finding)
        if not self._params["dwell_s"]:
            return
        with compute.timer() as once:
            vector.raw(1)
        wanted = math.ceil(self._params["dwell_s"] / max(once.seconds, 1e-9))
        with compute.timer():
            vector.check(min(max(wanted, BATCH), _MOST_PRODUCTS), reruns, finding)


def _repeat(context: Context, dtype: str, vectors: list[tuple[Shape, str, int]], worker: Worker) -> Rerun:
    """The same operands again, on a device that is no suspect."""
    torch, compute, seen = require_torch(), context.hardware.compute(worker.device), Rerun()
    worker.ready()
    for shape, span, seed in vectors:
        seen.add(Vector(torch, compute, dtype, shape, span, seed).is_wrong())
    return seen
