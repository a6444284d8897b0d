"""Does the integrity battery find what it claims, and what does looking at every element cost?

Run as ``python -m tests.bench.integrity [--seed S] [--trials N]``, on the best device of this machine. An injector at
the hardware seam damages buffers in flight while the probes run unchanged; each trial is one short run of a probe with
one fault, fresh operands and a fresh place. Every kind must be found every time, and no alarm may come without a fault.
Copies between host and GPUs are tried on simulated GPUs where this machine has none, and counted apart; collectives run
between its cores, over gloo.
Then the rate of checked products is set beside the raw rate, and the rate of memory patterns beside the device's own
copies, with how much of the free memory they went over. The bars are those of real GPUs; on a CPU, of which only a part
may be tested and whose direct comparison is not what they were set for, and on simulated GPUs, figures are only shown.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster_node.hardware import open_hardware
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Hardware, Worker
from muster_node.probe import Context, Probe, Skip, resolve_params
from muster_node.probes.exact_gemm import ExactGemm
from muster_node.probes.memory_pattern import MemoryPattern
from muster_node.workloads.common import FORMATS, GIB, best_devices, precision_of, seed_of
from muster_node.workloads.patterns import BLOCK_BYTES, PATTERNS, Region, sequences
from muster_node.workloads.products.exact import fitting_shape
from muster_node.workloads.products.exact_vector import BATCH, RANGES, Finding, Vector
from muster_node.workloads.products.timed import products_in
from tests.bench.detectors import (
    BLOCK_MOVE,
    COLLECTIVE,
    HOST_COPY,
    MEMORY,
    PEER_COPY,
    TRIAL_SHAPES,
    copies_of,
    detector_of,
    seen_by,
    simulated_gpus,
)
from tests.support.injector import KINDS, Injector, OneDevice

BARS = {"bf16": 0.95, "fp16": 0.95, "tf32": 0.95, "fp64": 0.95, "fp8": 0.90, "int8": 0.90}
PATTERN_TO_COPY = "memory_pattern_to_copy"
MEMORY_BARS = {PATTERN_TO_COPY: 0.80, "memory_coverage": 0.95}
NO_FAULT = "none"
DRAWS = 8  # a shift of a constant pattern changes nothing, and is no trial
RATE_SHAPES = {"cpu": (256, 256, 2048), "gpu": (4096, 4096, 16384)}
DWELL_S = {"cpu": 0.2, "gpu": 2.0}
COPIES = 3
# As much as may be of a GPU; on a CPU far more than its caches hold, and no more than a shared machine can spare.
RATE_MEMORY: dict[str, dict[str, Any]] = {"cpu": {"fraction": 0.25, "max_gib": 0.25}, "gpu": {"fraction": 0.97}}

Emitted = list[tuple[str, dict[str, Any]]]
Scores = dict[str, dict[str, "Score"]]
"""Kind of fault → detector → score."""


@dataclasses.dataclass
class Score:
    """Trials of one kind of fault with one detector, and in how many of them it raised an alarm."""

    trials: int = 0
    found: int = 0


def run(probe: type[Probe], hardware: Hardware, seed: int, params: dict[str, Any]) -> Emitted:
    """What a probe reports of this hardware: metric and the rest."""
    emitted: Emitted = []

    def emit(metric: str, device: str, **values: Any) -> None:
        if not values.pop("so_far", False):
            emitted.append((metric, {"device": device, **values}))

    with tempfile.TemporaryDirectory(prefix="muster-bench-") as scratch:
        context = Context(hardware, resolve_params(probe, params), seed, Path(scratch), emit, lambda sentence: None)
        probe().run(context)
    return emitted


def supported(machine: Hardware, seed: int) -> list[str]:
    """The number formats that the device multiplies exactly."""
    shape = TRIAL_SHAPES[best_devices(machine)[0].kind]
    emitted = run(ExactGemm, OneDevice(machine), seed, {"shapes": [shape], "rounds": 1, "modes": ["alone"]})
    return [row["labels"]["dtype"] for metric, row in emitted if metric == "gemm_mismatches"]


def trial(machine: Hardware, name: str, kind: str, seed: int) -> Score:
    """One run of a detector with one fault, or without. A fault that changed no bit is no trial."""
    put = detector_of(name, machine, seed)
    injector = Injector(kind, put.operation, put.among, seed) if kind != NO_FAULT else None
    with seen_by(name, machine, injector) as seen:
        emitted = run(put.probe, seen, seed, put.params)
    if injector is not None and not injector.changed:
        return Score()
    return Score(1, int(any(metric.endswith("_mismatches") and row["value"] for metric, row in emitted)))


def detection(machine: Hardware, detectors: list[str], trials: int, seed: int) -> Scores:
    """Kind of fault → detector → score; a trial whose fault changed nothing is drawn again."""
    scores: Scores = {}
    for kind in (*KINDS, NO_FAULT):
        for detector in detectors:
            score = scores.setdefault(kind, {}).setdefault(detector, Score())
            for number in range(DRAWS * trials):
                if score.trials == trials:
                    break
                one = trial(machine, detector, kind, seed_of(seed, kind, detector, number))
                score.trials += one.trials
                score.found += one.found
    return scores


def add(scores: Scores, others: Scores) -> None:
    """Set other detectors beside these, for every kind of fault."""
    for kind, row in others.items():
        scores[kind].update(row)


def stood_in(machine: Hardware, trials: int, seed: int) -> Scores:
    """Detection of the copies that this machine lacks GPUs for, on simulated ones; prints the table, which says so."""
    lacking = [name for name in (HOST_COPY, PEER_COPY) if name not in copies_of(machine)]
    if not lacking:
        return {}
    with simulated_gpus(seed) as node:
        scores = detection(node, lacking, trials, seed)
        print(f"{device_name(node)}, since this machine has too few GPUs for it:\n{table(scores)}")
    return scores


def rates(scores: Scores) -> dict[str, float]:
    """Kind of fault → share of the trials in which it was found, over all detectors."""
    return {
        kind: sum(one.found for one in row.values()) / max(1, sum(one.trials for one in row.values()))
        for kind, row in scores.items()
        if kind != NO_FAULT
    }


def ratios(machine: Hardware, dtypes: list[str], seed: int) -> dict[str, tuple[float, str]]:
    """Number format → verified rate over raw rate, and shape, K and rates in words."""
    return {dtype: _on_best(machine, lambda compute, dtype=dtype: _paces(compute, dtype, seed)) for dtype in dtypes}


def _on_best(machine: Hardware, work: Callable[[Compute], tuple[float, str]]) -> tuple[float, str]:
    """What ``work`` returns on the best device, while the others rest."""

    def alone(worker: Worker) -> tuple[float, str]:
        worker.ready()
        return work(machine.compute(worker.device))

    (found,) = machine.at_once(best_devices(machine)[:1], alone)
    return found


def _paces(compute: Compute, dtype: str, seed: int) -> tuple[float, str]:
    """Rate of products with operands made and all elements checked over that of products alone."""
    torch, kind, finding = require_torch(), compute.device.kind, Finding("alone")
    m, n, k = fitting_shape(dtype, RATE_SHAPES[kind])
    work = verified_s = raw_s = 0.0
    with precision_of(torch, dtype):
        for number, span in enumerate(RANGES):
            with compute.timer() as preparing:
                vector = Vector(torch, compute, dtype, (m, n, k), span, seed_of(seed, dtype, number))
                vector.check_first(0, finding)
            with compute.timer() as once:
                vector.raw(1)
            products = max(BATCH, products_in(DWELL_S[kind], once.seconds))
            with compute.timer() as before:
                vector.raw(products // 4)
            with compute.timer() as checking:
                vector.check(products, 0, finding)
            with compute.timer() as after:
                vector.raw(products // 4)
            raw_s += (before.seconds + after.seconds) / (2 * (products // 4)) * products
            verified_s += preparing.seconds + checking.seconds
            work += 2e-9 * m * n * k * products
    rates = f"{work / verified_s:.4g} GFLOPS checked, {work / raw_s:.4g} GFLOPS raw"
    checked = 100.0 * finding.checked / finding.produced
    return raw_s / verified_s, f"{m}x{n}x{k}, {rates}, {checked:g} % of elements checked"


def memory(machine: Hardware, seed: int) -> dict[str, tuple[float, str]]:
    """Rate of all patterns over that of copies, and coverage of the free memory: share, and what is behind it."""
    params = {"walk": 1, **RATE_MEMORY[best_devices(machine)[0].kind]}
    emitted = run(MemoryPattern, OneDevice(machine), seed, params)
    (tested,) = (row["value"] for metric, row in emitted if metric == "memory_tested")
    return {
        PATTERN_TO_COPY: _on_best(machine, lambda compute: _patterns_and_copies(compute, int(tested * GIB), seed)),
        **{metric: (row["value"] / 100.0, row["note"]) for metric, row in emitted if metric in MEMORY_BARS},
    }


def _patterns_and_copies(compute: Compute, nominal_bytes: int, seed: int) -> tuple[float, str]:
    """Rate at which all patterns write and read so much memory over that at which the device copies it."""
    torch, passes = require_torch(), 0
    region = Region(torch, compute, nominal_bytes, BLOCK_BYTES[compute.device.kind])
    with compute.timer() as testing:
        for pattern in PATTERNS:
            for fills in sequences(torch, pattern, seed_of(seed, pattern), 1):
                region.run(pattern, fills)
                # Each fill is written and read once; blocks that are moved are read and written once more.
                passes += 4 if pattern == "block_move" else 2 * len(fills)
    lower, upper = region.words[: len(region.words) // 2], region.words[-(len(region.words) // 2) :]
    compute.copy(lower, upper, nominal_bytes=region.nominal_bytes // 2)
    with compute.timer() as copying:
        for _ in range(COPIES):
            compute.copy(lower, upper, nominal_bytes=region.nominal_bytes // 2)
    rate = passes * region.nominal_bytes / testing.seconds
    copied = COPIES * region.nominal_bytes / copying.seconds
    return rate / copied, f"{rate / 1e9:.4g} GB/s written and read, {copied / 1e9:.4g} GB/s when copied"


def device_name(machine: Hardware) -> str:
    """What was tested, by its model; a simulated device says so."""
    kind = best_devices(machine)[0].kind
    models = [fact.text for fact in machine.inventory() if fact.name == f"{kind}_model" and fact.text]
    name = f"{kind}: {models[0] if models else 'unknown model'}"
    return f"simulated {name}" if machine.simulated else name


def table(scores: Scores) -> str:
    """Alarms of trials, by kind of fault and detector."""
    detectors = list(next(iter(scores.values())))
    lines = ["fault".ljust(14) + "".join(name.rjust(11) for name in detectors)]
    for kind, row in scores.items():
        lines.append(kind.ljust(14) + "".join(f"{one.found}/{one.trials}".rjust(11) for one in row.values()))
    return "\n".join(lines)


def complaints(scores: Scores, found: dict[str, float], memory_found: dict[str, float], barred: bool) -> list[str]:
    """What falls short, one sentence each."""
    short = []
    for kind, row in scores.items():
        for detector, score in row.items():
            if score.trials == 0:
                short.append(f"No {kind} fault could be put before the {detector} test: it is untested.")
            elif kind == NO_FAULT and score.found:
                short.append(f"The {detector} test raised {score.found} alarms in {score.trials} runs without a fault.")
            elif kind != NO_FAULT and score.found < score.trials:
                short.append(
                    f"The {detector} test missed {score.trials - score.found} of {score.trials} {kind} faults."
                )
    for dtype, ratio in found.items():
        if barred and dtype in BARS and ratio < BARS[dtype]:
            short.append(f"Checked {dtype} products reach {ratio:.3f} of the raw rate, below the bar of {BARS[dtype]}.")
    for metric, bar in MEMORY_BARS.items():
        if barred and memory_found.get(metric, 0.0) < bar:
            short.append(f"{metric} is {memory_found.get(metric, 0.0):.3f}, below the bar of {bar}.")
    return short


def main() -> int:
    """Print tables, what falls short, and last one JSON line; 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=8, help="faults of each kind for each detector")
    chosen = parser.parse_args()
    machine = open_hardware()
    try:
        dtypes = supported(machine, chosen.seed)
    except Skip as reason:
        print(f"The battery cannot run here: {reason}")
        return 1
    device = device_name(machine)
    barred = best_devices(machine)[0].kind == "gpu" and not machine.simulated
    lacking = [dtype for dtype in FORMATS if dtype not in dtypes]
    print(f"{device}; not supported, so skipped: {', '.join(lacking) or 'nothing'}")
    paces = ratios(machine, dtypes, chosen.seed)
    for dtype, (ratio, note) in paces.items():
        print(f"{dtype}: checked at {ratio:.3f} of the raw rate ({note})")
    tested = memory(machine, chosen.seed)
    for metric, (share, note) in tested.items():
        print(f"{metric}: {share:.3f} ({note})")
    scores = detection(machine, [*dtypes, MEMORY, BLOCK_MOVE, *copies_of(machine)], chosen.trials, chosen.seed)
    if not machine.simulated:
        # Between this machine's own cores also where it has GPUs: what is proved is the check, which is the same.
        add(scores, detection(HostHardware(), [COLLECTIVE], chosen.trials, chosen.seed))
    print(table(scores))
    found = {dtype: ratio for dtype, (ratio, _) in paces.items()}
    shares = {metric: round(share, 4) for metric, (share, _) in tested.items()}
    print(f"bars: {BARS | MEMORY_BARS if barred else 'none on this device (they are for real GPUs)'}")
    faults = complaints(scores, found, shares, barred)
    stand_in = stood_in(machine, chosen.trials, chosen.seed)
    faults += complaints(stand_in, {}, {}, barred=False)
    for sentence in faults:
        print(sentence)
    answer = {
        "verified_to_raw": {dtype: round(ratio, 4) for dtype, ratio in found.items()},
        "detection": rates(scores),
        "detection_simulated": rates(stand_in),
        "memory": shares,
        "device": device,
    }
    print(json.dumps(answer))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
