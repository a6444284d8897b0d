"""Does the integrity battery find what it claims, and what does looking at every element cost?

Run as ``python -m tests.bench.integrity [--seed S] [--trials N]``, on the best device of this machine. An injector at
the hardware seam damages buffers in flight while the probes run unchanged; each trial is one short run of a probe with
one fault, fresh operands and a fresh place. Every kind must be found every time, and no alarm may come without a fault.
Then the rate of checked products is set beside the raw rate, and the rate of memory patterns beside the device's own
copies, with how much of the free memory they went over. The bars are those of real GPUs; on a CPU, of which only a part
may be tested and whose direct comparison is not what they were set for, and on simulated GPUs, figures are only told.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from muster_node.hardware import open_hardware
from muster_node.hardware.seam import Hardware
from muster_node.probe import Context, Probe, Skip, resolve_params
from muster_node.probes._patterns import PATTERNS
from muster_node.probes._shared import FORMATS, best_devices, seed_of
from muster_node.probes.exact_gemm import ExactGemm
from muster_node.probes.memory_pattern import MemoryPattern
from tests.support.injector import KINDS, Injector, OneDevice

BARS = {"bf16": 0.95, "fp16": 0.95, "tf32": 0.95, "fp64": 0.95, "fp8": 0.90, "int8": 0.90}
MEMORY_BARS = {"memory_pattern_to_copy": 0.80, "memory_coverage": 0.95}
NO_FAULT = "none"
ROUNDS = 4
DRAWS = 8  # a shift of a constant pattern changes nothing, and is no trial
MEMORY, BLOCK_MOVE = "memory", "block_move"
WRITTEN = tuple(pattern for pattern in PATTERNS if pattern != BLOCK_MOVE)
TRIAL_SHAPES = {"cpu": [48, 40, 64], "gpu": [256, 512, 1024]}
RATE_SHAPES = {"cpu": [256, 256, 2048], "gpu": [4096, 4096, 16384]}
DWELL_S = {"cpu": 0.2, "gpu": 2.0}
MEMORY_GIB = 1 / 64
MOVES = 4  # the least that so little memory is moved in
# As much as may be of a GPU; on a CPU far more than its caches hold, and no more than a shared machine can spare.
RATE_MEMORY: dict[str, dict[str, Any]] = {"cpu": {"fraction": 0.25, "max_gib": 0.25}, "gpu": {"fraction": 0.97}}

Emitted = list[tuple[str, dict[str, Any]]]


@dataclasses.dataclass
class Score:
    """Trials of one kind of fault with one detector, and in how many of them it raised an alarm."""

    trials: int = 0
    found: int = 0


def run(probe: type[Probe], hardware: Hardware, seed: int, params: dict[str, Any]) -> Emitted:
    """What a probe reports of this hardware: metric and the rest."""
    emitted: Emitted = []

    def emit(metric: str, device: str, **told: Any) -> None:
        emitted.append((metric, {"device": device, **told}))

    with tempfile.TemporaryDirectory(prefix="muster-bench-") as scratch:
        context = Context(hardware, resolve_params(probe, params), seed, Path(scratch), emit, lambda sentence: None)
        probe().run(context)
    return emitted


def supported(machine: Hardware, seed: int) -> list[str]:
    """The number formats that the device multiplies exactly."""
    shape = TRIAL_SHAPES[best_devices(machine)[0].kind]
    emitted = run(ExactGemm, OneDevice(machine), seed, {"shapes": [shape], "rounds": 1, "modes": ["alone"]})
    return [told["labels"]["dtype"] for metric, told in emitted if metric == "gemm_mismatches"]


def trial(machine: Hardware, detector: str, kind: str, seed: int) -> Score:
    """One run of a detector with one fault, or without. A fault that changed no bit is no trial."""
    shape = TRIAL_SHAPES[best_devices(machine)[0].kind]
    if detector in (MEMORY, BLOCK_MOVE):
        probe: type[Probe] = MemoryPattern
        pattern = BLOCK_MOVE if detector == BLOCK_MOVE else WRITTEN[seed % len(WRITTEN)]
        params: dict[str, Any] = {"max_gib": MEMORY_GIB, "patterns": [pattern], "walk": 1, "reruns": 1}
        # Memory is damaged between being written and being read for the first time, or while a block is moved.
        operation, among = ("copy", MOVES) if detector == BLOCK_MOVE else ("touch", 1)
    else:
        probe = ExactGemm
        params = {"dtypes": [detector], "shapes": [shape], "rounds": ROUNDS, "modes": ["alone"], "reruns": 2}
        operation, among = "matmul", ROUNDS
    injector = Injector(kind, operation, among, seed) if kind != NO_FAULT else None
    emitted = run(probe, OneDevice(machine, injector), seed, params)
    if injector is not None and not injector.changed:
        return Score()
    return Score(1, int(any(metric.endswith("_mismatches") and told["value"] for metric, told in emitted)))


def detection(machine: Hardware, detectors: list[str], trials: int, seed: int) -> dict[str, dict[str, Score]]:
    """Kind of fault → detector → score; a trial whose fault changed nothing is drawn again."""
    scores: dict[str, dict[str, Score]] = {}
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


def ratios(machine: Hardware, dtypes: list[str], seed: int) -> dict[str, tuple[float, str]]:
    """Number format → verified rate over raw rate, and shape, K and rates in words."""
    kind = best_devices(machine)[0].kind
    params = {"dtypes": dtypes, "shapes": [RATE_SHAPES[kind]], "rounds": ROUNDS, "modes": ["alone"],
              "dwell_s": DWELL_S[kind]}  # fmt: skip
    emitted = run(ExactGemm, OneDevice(machine), seed, params)
    checked = {told["labels"]["dtype"]: told["value"] for name, told in emitted if name == "gemm_checked_fraction"}
    return {
        told["labels"]["dtype"]: (
            told["value"] / 100.0,
            f"{told['labels']['shape']}, {told['note']}, {checked[told['labels']['dtype']]:g} % of elements checked",
        )
        for metric, told in emitted
        if metric == "gemm_verified_to_raw"
    }


def memory(machine: Hardware, seed: int) -> dict[str, tuple[float, str]]:
    """Rate of all patterns over that of copies, and coverage of the free memory: share, and what is behind it."""
    params = {"walk": 1, **RATE_MEMORY[best_devices(machine)[0].kind]}
    emitted = run(MemoryPattern, OneDevice(machine), seed, params)
    return {metric: (told["value"] / 100.0, told["note"]) for metric, told in emitted if metric in MEMORY_BARS}


def device_name(machine: Hardware) -> str:
    """What was tested, by its model; a simulated device says so."""
    kind = best_devices(machine)[0].kind
    models = [fact.text for fact in machine.inventory() if fact.name == f"{kind}_model" and fact.text]
    name = f"{kind}: {models[0] if models else 'unknown model'}"
    return f"simulated {name}" if machine.simulated else name


def table(scores: dict[str, dict[str, Score]]) -> str:
    """Alarms of trials, by kind of fault and detector."""
    detectors = list(next(iter(scores.values())))
    lines = ["fault".ljust(14) + "".join(name.rjust(11) for name in detectors)]
    for kind, row in scores.items():
        lines.append(kind.ljust(14) + "".join(f"{one.found}/{one.trials}".rjust(11) for one in row.values()))
    return "\n".join(lines)


def complaints(
    scores: dict[str, dict[str, Score]], found: dict[str, float], memory_found: dict[str, float], barred: bool
) -> list[str]:
    """What falls short, one sentence each."""
    said = []
    for kind, row in scores.items():
        for detector, score in row.items():
            if score.trials == 0:
                said.append(f"No {kind} fault could be put before the {detector} test: nothing is known of it.")
            elif kind == NO_FAULT and score.found:
                said.append(f"The {detector} test raised {score.found} alarms in {score.trials} runs without a fault.")
            elif kind != NO_FAULT and score.found < score.trials:
                said.append(f"The {detector} test missed {score.trials - score.found} of {score.trials} {kind} faults.")
    for dtype, ratio in found.items():
        if barred and dtype in BARS and ratio < BARS[dtype]:
            said.append(f"Checked {dtype} products reach {ratio:.3f} of the raw rate, below the bar of {BARS[dtype]}.")
    for metric, bar in MEMORY_BARS.items():
        if barred and memory_found.get(metric, 0.0) < bar:
            said.append(f"{metric} is {memory_found.get(metric, 0.0):.3f}, below the bar of {bar}.")
    return said


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
    scores = detection(machine, [*dtypes, MEMORY, BLOCK_MOVE], chosen.trials, chosen.seed)
    print(table(scores))
    paces = ratios(machine, dtypes, chosen.seed)
    for dtype, (ratio, told) in paces.items():
        print(f"{dtype}: checked at {ratio:.3f} of the raw rate ({told})")
    tested = memory(machine, chosen.seed)
    for metric, (share, told) in tested.items():
        print(f"{metric}: {share:.3f} ({told})")
    found = {dtype: ratio for dtype, (ratio, _) in paces.items()}
    shares = {metric: round(share, 4) for metric, (share, _) in tested.items()}
    print(f"bars: {BARS | MEMORY_BARS if barred else 'none on this device (they are for real GPUs)'}")
    said = complaints(scores, found, shares, barred)
    for sentence in said:
        print(sentence)
    rates = {
        kind: sum(one.found for one in row.values()) / max(1, sum(one.trials for one in row.values()))
        for kind, row in scores.items()
        if kind != NO_FAULT
    }
    verified = {dtype: round(ratio, 4) for dtype, ratio in found.items()}
    print(json.dumps({"verified_to_raw": verified, "detection": rates, "memory": shares, "device": device}))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
