"""Silent data corruption: matrix products of integers, compared element by element with the exact answer.

Operands are integers with K·Amax² below what the accumulator holds exactly, so the answer does not depend on order,
tiles, libraries or models of hardware: no golden value is needed, and one differing bit is a fault. Rows and columns
are scaled by random powers of two, which stays exact and sweeps the exponent range, since real faults fire for some
ranges of values only. Outputs that round (bf16, fp16) are compared with the exact value rounded to nearest even.

The exact answer is worked out once for a set of operands and serves many products of it (``_product_check``), so that
looking at every element costs next to nothing beside multiplying. How much it does cost is measured in the same run.

A product that was wrong is computed again on the same device at once, and afterwards on two of its siblings.

Not covered: significands of full entropy, since integers here fill at most the accumulator's square root.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Dict, List, Mapping, Optional, Tuple

from muster_node.hardware.cpu_compute import require_torch
from muster_node.hardware.seam import Compute, Device, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.probes._exact import different_bits, fitting_shape, make_operands, multiply
from muster_node.probes._product_check import ProductCheck
from muster_node.probes._rerun import TOLD, Rerun, peers_of, report_reruns
from muster_node.probes._shared import FORMATS, best_devices, precision_of, seed_of

SHAPES = {
    "cpu": [[256, 256, 256], [192, 320, 640]],
    "gpu": [[1024, 1024, 1024], [4096, 4096, 16384], [2048, 2048, 13312]],
}
RANGES = ("full", "unit", "high", "sparse")
_EXAMPLES = 2  # wrong products told in words
_PLACES = 4  # wrong elements of each
_BATCH = 8  # products that wait together for their checks: few enough to hold, enough to keep a GPU busy
_MOST_PRODUCTS = 4096  # of one set of operands: more of a tiny product would only put fresh operands off

Shape = Tuple[int, int, int]


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
        "dwell_s": Param(
            0.0, "device seconds for which each set of operands is multiplied again; above 0 the raw rate is timed too"
        ),
        "soak_s": Param(0.0, "load on all devices before they are tested together: cold alone, soaked together"),
        "reruns": Param(10, "how often a product that was wrong is computed again"),
    }
    metrics = {
        "gemm_mismatches": Metric("count", "elements that differ from the exact answer"),
        "gemm_rerun": Metric("count", TOLD),
        "gemm_checked_elements": Metric("count", "elements compared"),
        "gemm_checked_fraction": Metric("%", "share of all elements of all counted products that were compared"),
        "gemm_verified_to_raw": Metric(
            "%", "rate of products with operands made and all elements checked, against that of products alone"
        ),
        "gemm_not_supported": Metric("text", "number formats asked for that the device does not multiply exactly"),
    }
    needs = ("torch",)

    @classmethod
    def timed_s(cls, params: Mapping[str, Any], devices: int) -> float:
        """As long for each format, on each device alone and on all together, and once to soak."""
        turns = sum({"alone": devices, "together": 1}[mode] for mode in params["modes"])
        soak = params["soak_s"] if "together" in params["modes"] else 0.0
        return float(params["seconds"] * len(params["dtypes"]) * turns + soak)

    def run(self, context: Context) -> None:
        """Screen every device, one format after the other. Raises Skip where no device has any of the formats."""
        torch = require_torch()
        hardware, devices = context.hardware, best_devices(context.hardware)
        missing: Dict[str, List[str]] = {device.id: [] for device in devices}
        soak_s = context.params["soak_s"] if "together" in context.params["modes"] else 0.0
        for dtype in context.params["dtypes"]:
            findings: Dict[str, List[_Finding]] = {device.id: [] for device in devices}
            with precision_of(torch, dtype):
                for mode, group in _groups(context.params["modes"], devices):
                    if soak_s and mode == "together":
                        context.progress("soaking for %g s" % soak_s)
                        with hardware.loading(group):
                            soak_s -= max(hardware.at_once(group, _Soak(torch, context, dtype)))
                    context.progress("exact %s products on %s" % (dtype, ", ".join(device.id for device in group)))
                    with hardware.loading(group):
                        found = hardware.at_once(group, _Screen(torch, context, dtype, mode))
                    for device, finding in zip(group, found):
                        findings[device.id] += [finding] if finding is not None else []
                reruns = self._again(context, dtype, devices, findings)
            for device in devices:
                report_reruns(context, "gemm_rerun", device.id, {"dtype": dtype}, reruns.get(device.id, {}))
                if not _report(context, device, dtype, findings[device.id]):
                    missing[device.id].append(dtype)
        for device_id, formats in missing.items():
            if formats:
                context.emit("gemm_not_supported", device_id, text=", ".join(formats))
        if all(formats == context.params["dtypes"] for formats in missing.values()):
            raise Skip("no device here multiplies any of %s" % ", ".join(context.params["dtypes"]))

    def _again(
        self, context: Context, dtype: str, devices: List[Device], findings: Dict[str, List["_Finding"]]
    ) -> Dict[str, Dict[str, Rerun]]:
        """What was wrong, again: how it went on the same device, and on two siblings with the same operands.

        {accused: {device: how often it was wrong there}}.
        """
        wrong = {name: [vector for finding in found for vector in finding.wrong] for name, found in findings.items()}
        suspects = {name for name, vectors in wrong.items() if vectors}
        reruns: Dict[str, Dict[str, Rerun]] = {}
        for name in sorted(suspects):
            own = [finding.again for finding in findings[name]]
            on = reruns[name] = {name: Rerun(sum(one.runs for one in own), sum(one.wrong for one in own))}
            for peer in peers_of(name, suspects, devices):
                (on[peer.id],) = context.hardware.at_once([peer], _Repeat(context, dtype, wrong[name][:_EXAMPLES]))
        return reruns


def _groups(modes: List[str], devices: List[Device]) -> List[Tuple[str, List[Device]]]:
    alone = [("alone", [device]) for device in devices] if "alone" in modes else []
    return alone + ([("together", devices)] if "together" in modes else [])


@dataclasses.dataclass
class _Pace:
    """Device seconds that so many products of one shape took with all that checks them, and would have taken alone."""

    products: int = 0
    verified_s: float = 0.0
    raw_s: float = 0.0


@dataclasses.dataclass
class _Finding:
    """What one worker found: products and elements, and the first few wrong ones in words."""

    mode: str
    products: int = 0
    produced: int = 0
    checked: int = 0
    mismatches: int = 0
    wrong_products: int = 0
    examples: List[str] = dataclasses.field(default_factory=list)
    wrong: List[Tuple[Shape, str, int]] = dataclasses.field(default_factory=list)  # shape, range and seed of operands
    again: Rerun = dataclasses.field(default_factory=Rerun)
    paces: Dict[Shape, _Pace] = dataclasses.field(default_factory=dict)


def _report(context: Context, device: Device, dtype: str, findings: List[_Finding]) -> bool:
    if not findings:
        return False
    labels = {"dtype": dtype}
    total = sum(finding.mismatches for finding in findings)
    checked, produced = sum(f.checked for f in findings), sum(f.produced for f in findings)
    products = sum(finding.products for finding in findings)
    note = ""
    if total:
        wrong = sum(finding.wrong_products for finding in findings)
        modes = " and ".join(finding.mode for finding in findings if finding.mismatches)
        examples = "; ".join([e for finding in findings for e in finding.examples][:_EXAMPLES])
        note = "%d of %d products wrong (%s): %s" % (wrong, products, modes, examples)
    context.emit("gemm_mismatches", device.id, value=total, labels=labels, samples=products, note=note)
    context.emit("gemm_checked_elements", device.id, value=checked, labels=labels, samples=products)
    context.emit("gemm_checked_fraction", device.id, value=100.0 * checked / produced, labels=labels, samples=products)
    _report_pace(context, device, dtype, findings)
    return True


def _report_pace(context: Context, device: Device, dtype: str, findings: List[_Finding]) -> None:
    for shape in {shape: None for finding in findings for shape in finding.paces}:
        paces = [finding.paces[shape] for finding in findings if shape in finding.paces]
        verified, raw = sum(pace.verified_s for pace in paces), sum(pace.raw_s for pace in paces)
        products = sum(pace.products for pace in paces)
        work = 2e-9 * math.prod(shape) * products
        context.emit(
            "gemm_verified_to_raw",
            device.id,
            value=100.0 * raw / verified,
            labels={"dtype": dtype, "shape": "%dx%dx%d" % shape},
            samples=products,
            note="K = %d: %.4g GFLOPS checked, %.4g GFLOPS raw" % (shape[2], work / verified, work / raw),
        )


class _Screen:
    """The work of one device: operands with fresh seeds until rounds and seconds are both reached."""

    def __init__(self, torch: Any, context: Context, dtype: str, mode: str) -> None:
        self._torch, self._hardware, self._dtype, self._mode = torch, context.hardware, dtype, mode
        self._params, self._seed = context.params, context.seed

    def __call__(self, worker: Worker) -> Optional[_Finding]:
        compute = self._hardware.compute(worker.device)
        worker.ready()
        if not compute.supports(self._dtype):
            return None
        finding, clock = _Finding(self._mode), self._hardware.clock
        end, number = clock.now() + self._params["seconds"], 0
        while number < self._params["rounds"] or clock.now() < end:
            for wanted in self._params["shapes"] or SHAPES[worker.device.kind]:
                shape = fitting_shape(self._dtype, tuple(wanted))
                seed = seed_of(self._seed, self._mode, worker.device.id, self._dtype, shape, number)
                self._screen(compute, shape, RANGES[number % len(RANGES)], seed, finding)
            number += 1
        return finding

    def _screen(self, compute: Compute, shape: Shape, span: str, seed: int, finding: _Finding) -> None:
        """One set of operands: one product, or as many as fill the time, with the raw rate taken before and after."""
        reruns = self._params["reruns"]
        if not self._params["dwell_s"]:
            _Vector(self._torch, compute, self._dtype, shape, span, seed).check_first(reruns, finding)
            return
        with compute.timer() as preparing:
            vector = _Vector(self._torch, compute, self._dtype, shape, span, seed)
            vector.check_first(reruns, finding)
        with compute.timer() as once:
            vector.raw(1)
        wanted = math.ceil(self._params["dwell_s"] / max(once.seconds, 1e-9))
        products = min(max(wanted, _BATCH), _MOST_PRODUCTS)
        quarter = max(1, products // 4)
        with compute.timer() as before:
            vector.raw(quarter)
        with compute.timer() as checking:
            vector.check(products, reruns, finding)
        with compute.timer() as after:
            vector.raw(quarter)
        pace = finding.paces.setdefault(shape, _Pace())
        pace.raw_s += (before.seconds + after.seconds) / (2 * quarter) * products
        pace.verified_s += preparing.seconds + checking.seconds
        pace.products += products


class _Vector:
    """One set of operands, its exact answer, and the check against it, which serves any number of products."""

    def __init__(self, torch: Any, compute: Compute, dtype: str, shape: Shape, span: str, seed: int) -> None:
        self._torch, self._compute, self._shape = torch, compute, shape
        self.origin = (shape, span, seed)
        m, n, k = compute.physical(*shape)
        self._operands = make_operands(torch, compute.torch_device, dtype, (m, n, k), span, seed)
        self._told = "%dx%dx%d %s seed %d" % (m, n, k, span, seed)
        # Which format the product comes in is up to the device, and decides how the exact answer is rounded.
        self._first = self._multiply()
        self._expected = self._operands.expected(torch, self._first.dtype)
        self._check = ProductCheck(torch, self._expected, seed)

    def raw(self, products: int) -> None:
        """Multiply and look at nothing."""
        for _ in range(products):
            self._multiply()

    def check_first(self, reruns: int, finding: _Finding) -> None:
        """Check the product that came with the operands."""
        self._settle([(self._first, self._differs(self._first))], reruns, finding)

    def check(self, products: int, reruns: int, finding: _Finding) -> None:
        """Multiply so many times and check every element of every product, waiting for the device once a batch."""
        while products:
            batch = []
            for _ in range(min(products, _BATCH)):
                product = self._multiply()
                batch.append((product, self._differs(product)))
            self._settle(batch, reruns, finding)
            products -= len(batch)

    def is_wrong(self) -> bool:
        """Multiply once more and look at every element."""
        return bool(different_bits(self._torch, self._multiply(), self._expected).any())

    def _multiply(self) -> Any:
        return multiply(self._torch, self._compute, self._operands, self._shape)

    def _differs(self, product: Any) -> Any:
        m, n, _ = self._shape
        return self._check.differs(self._compute.touch(product, nominal_bytes=m * n * product.element_size()))

    def _settle(self, batch: List[Tuple[Any, Any]], reruns: int, finding: _Finding) -> None:
        flags = self._torch.stack([differs for _, differs in batch]).tolist()
        for (product, _), wrong in zip(batch, flags):
            finding.products += 1
            finding.produced += product.numel()
            finding.checked += self._expected.numel()
            if wrong:
                self._tell(product, reruns, finding)

    def _tell(self, product: Any, reruns: int, finding: _Finding) -> None:
        """Count the wrong elements of a product that the check objects to, and compute it again."""
        wrong = different_bits(self._torch, product, self._expected)
        count = int(wrong.sum())
        # The check itself runs on the device: if only its sums were wrong, that is a fault of the device as well.
        finding.mismatches += count or 1
        finding.wrong_products += 1
        if len(finding.examples) >= _EXAMPLES:
            return
        again = sum(self.is_wrong() for _ in range(reruns))
        finding.again = Rerun(finding.again.runs + reruns, finding.again.wrong + again)
        finding.wrong.append(self.origin)
        places = [tuple(place) for place in wrong.nonzero()[:_PLACES].tolist()]
        seen = ["(%d,%d) is %r, exact %r" % (*p, product[p].item(), self._expected[p].item()) for p in places]
        what = "%d elements, %s" % (count, ", ".join(seen)) if count else "its check sums alone"
        finding.examples.append("%s: %s, again in %d of %d reruns" % (self._told, what, again, reruns))


class _Repeat:
    """The same operands again, on a device that nobody suspects."""

    def __init__(self, context: Context, dtype: str, vectors: List[Tuple[Shape, str, int]]) -> None:
        self._hardware, self._dtype, self._vectors = context.hardware, dtype, vectors

    def __call__(self, worker: Worker) -> Rerun:
        torch, compute, seen = require_torch(), self._hardware.compute(worker.device), Rerun()
        worker.ready()
        for shape, span, seed in self._vectors:
            seen.add(_Vector(torch, compute, self._dtype, shape, span, seed).is_wrong())
        return seen


class _Soak:
    """Products that nobody looks at, for as long as the plan says; the seconds that this took, 0 without the format."""

    def __init__(self, torch: Any, context: Context, dtype: str) -> None:
        self._torch, self._hardware, self._dtype = torch, context.hardware, dtype
        self._seconds, self._shapes = context.params["soak_s"], context.params["shapes"]

    def __call__(self, worker: Worker) -> float:
        compute, clock = self._hardware.compute(worker.device), self._hardware.clock
        worker.ready()
        if not compute.supports(self._dtype):
            return 0.0
        wanted = tuple((self._shapes or SHAPES[worker.device.kind])[-1])
        vector = _Vector(self._torch, compute, self._dtype, fitting_shape(self._dtype, wanted), "full", 0)
        end = clock.now() + self._seconds
        while clock.now() < end:
            with compute.timer():
                vector.raw(_BATCH)
        return float(self._seconds)
