"""Is every fault of a simulated node found, by name and on its device, and does no healthy node fail?

Run as ``python -m tests.bench.faults --seed S [--model M] [--pairs N] [--healthy N]``. Every kind of defect that a
model can have is planted alone, then random pairs of them on one node (same and different GPUs), each as bad as it is
drawn; beside them healthy nodes with ordinary spread. Every node goes through all stages at level demo with the
unchanged probes, SKU files and judge, without peers or history: in one process, so without agent, SSH or Airflow.

A fault is found if a finding, critical or warning, names its device by a measurement that this kind is known by; the
device is right if no such finding names another device of the node. A hot inlet is found if the thermal stage says
that it cannot judge. How many of the found were failed, by a critical finding, and how many only warned of is counted
apart. Healthy nodes that are only warned of are counted and have no bar: a few outliers in 1,000 are a person's.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from muster_criteria.model import DEVICE_EVENT, Finding, Severity, Verdict, subject
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.verdict import overall
from muster_criteria.stages import STAGES
from muster_demo import watchdog
from muster_node import processes
from muster_simulator import create_machine
from muster_simulator.defects import DEFECTS
from muster_simulator.models import MODELS
from tests.support.in_process import machine_room, qualify

LEVEL = "demo"
SPEED = 200.0
"""A burn of 300 s is over in 1.5 s: were it much less, a busy host could leave a healthy node's too few readings."""
KERNEL_EDGE = 32
HEALTHY = frozenset({Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL})


@dataclasses.dataclass(frozen=True)
class Known:
    """By what a kind of fault is known: metrics or rules of findings on its part.

    ``severity``: how bad it is drawn, as (key, least, most). ``hides``: nothing else can be seen of a GPU that has it.
    """

    by: tuple[str, ...]
    severity: tuple[str, float, float] | None = None
    hides: bool = False


CLOCK = ("gemm_rate", "burn_rate", "soak_rate")
FAULTS = {
    "missing_gpu": Known(("expected_devices",), hides=True),
    "gpu_lost": Known(("gpu_lost", "xid 79", "expected_devices"), hides=True),
    "sdc": Known(("gemm_mismatches",), ("rate", 0.3, 1.0)),
    "wrong_unit": Known(("gemm_mismatches",)),
    "stuck_bit": Known(("memory_mismatches",)),
    "throttle": Known(("throttle_time", "thermal_resistance"), ("factor", 2.2, 3.0)),
    "slow_gemm": Known(("burn_rate_per_clock", "gemm_rate_per_clock"), ("share", 0.70, 0.85)),
    "hbm_slow": Known(("memory_bandwidth",), ("share", 0.70, 0.88)),
    "leaky": Known(CLOCK, ("share", 0.45, 0.6)),
    "power_limit": Known(("power_limit",), ("share", 0.5, 0.9)),
    "clock_lock": Known(("clock_share",), ("share", 0.5, 0.72)),
    "mig_mode": Known(("mig_mode",)),
    "ecc_mode": Known(("ecc_mode",)),
    "ecc": Known(("ecc_uncorrected_delta",), ("per_hour", 60.0, 600.0)),
    "ecc_storm": Known(("ecc_corrected_delta",), ("per_hour", 2e4, 2e6)),
    "row_remap_pending": Known(("row_remap_pending",)),
    "row_remap_failed": Known(("row_remap_failed",)),
    "processor_hang": Known(("xid 119",), ("per_hour", 60.0, 600.0)),
    "pcie_width": Known(("pcie_width",)),
    "pcie_generation": Known(("pcie_generation",)),
    "pcie_errors": Known(("pcie_replay_rate",), ("per_hour", 1e3, 1e5)),
    "nvlink_down": Known(("nvlink_active",)),
    "nvlink_errors": Known(("nvlink_errors_delta",), ("per_hour", 60.0, 1e4)),
    "nic_down": Known(("ib_port_active",)),
    "nic_slow": Known(("ib_port_rate",), ("share", 0.25, 0.5)),
    "nic_errors": Known(("ib_error_rate",), ("per_hour", 600.0, 1e4)),
    "fan_fail": Known(("fan_speed",)),
    "hot_inlet": Known(("inlet_temperature",), ("celsius", 34.0, 40.0)),
}
"""Every kind, by what it must be found."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One planted fault: the arguments of ``create_machine``."""

    kind: str
    spec: tuple[tuple[str, Any], ...]

    @property
    def device(self) -> str:
        """Its device, as findings name it."""
        values, part = dict(self.spec), DEFECTS[self.kind].part
        return f"nic:ib{values['nic']}" if part == "nic" else f"{part}{values.get(part, '')}"

    def names(self, finding: Finding) -> bool:
        """Whether a finding is of this fault."""
        code = subject(finding) if finding.rule == DEVICE_EVENT else ""
        by = FAULTS[self.kind].by
        return finding.device == self.device and (finding.metric in by or finding.rule in by or code in by)


@dataclasses.dataclass(frozen=True)
class Case:
    """One node: its model, its seed and what is wrong with it."""

    model: str
    seed: int
    faults: tuple[Fault, ...] = ()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The verdict on one node. ``found``: for each fault the finding that names it, "" if none does.

    ``failed``: whether one of these is critical; ``wrongly_named``: devices without a fault that a finding names,
    critical or warning; ``headline``: the verdict's own headline.
    """

    case: Case
    verdict: Verdict
    found: tuple[str, ...]
    failed: tuple[bool, ...]
    wrongly_named: tuple[str, ...]
    headline: str


def draw_fault(kind: str, model: str, dice: random.Random) -> Fault:
    """One fault of a kind, on a part of this model, as bad as it is drawn."""
    part, severity = DEFECTS[kind].part, FAULTS[kind].severity
    counts = {"gpu": MODELS[model].gpu_count, "nic": len(MODELS[model].nics), "fan": MODELS[model].fans}
    spec: dict[str, Any] = {part: dice.randrange(counts[part])} if part in counts else {}
    if severity is not None:
        key, least, most = severity
        spec[key] = round(dice.uniform(least, most), 3)
    return Fault(kind, tuple(spec.items()))


def draw_pair(model: str, dice: random.Random) -> tuple[Fault, Fault]:
    """Two faults of one node, half of them of the same GPU; never one that cannot be seen beside the other."""
    kinds = [kind for kind in FAULTS if DEFECTS[kind].possible(MODELS[model])]
    while True:
        one, other = (draw_fault(kind, model, dice) for kind in dice.sample(kinds, 2))
        if {DEFECTS[one.kind].part, DEFECTS[other.kind].part} == {"gpu"} and dice.random() < 0.5:
            other = Fault(other.kind, (("gpu", dict(one.spec)["gpu"]), *other.spec[1:]))
        if one.device != other.device or not (FAULTS[one.kind].hides or FAULTS[other.kind].hides):
            return one, other


def draw(models: Sequence[str], pairs: int, healthy: int, seed: int) -> list[Case]:
    """Every kind alone on each model, ``pairs`` pairs and ``healthy`` healthy nodes over all models."""
    dice = random.Random(f"faults {seed}")
    kinds = [(model, kind) for model in models for kind in FAULTS if DEFECTS[kind].possible(MODELS[model])]
    alone = [(model, (draw_fault(kind, model, dice),)) for model, kind in kinds]
    paired = [(model, draw_pair(model, dice)) for model in _in_turn(models, pairs)]
    well: list[tuple[str, tuple[Fault, ...]]] = [(model, ()) for model in _in_turn(models, healthy)]
    return [Case(model, dice.randrange(10**6), tuple(faults)) for model, faults in [*alone, *paired, *well]]


def _in_turn(models: Sequence[str], count: int) -> list[str]:
    return [models[number % len(models)] for number in range(count)]


def examine(case: Case) -> Outcome:
    """Build the node, take it through every stage and look for what was planted."""
    with machine_room() as room:
        machine = room / "node"
        planted = [{"kind": fault.kind, **dict(fault.spec)} for fault in case.faults]
        create_machine(machine, case.model, case.seed, planted, speed=SPEED, kernel_edge=KERNEL_EDGE)
        judgements = qualify(machine, load_sku(case.model), LEVEL, case.seed)
    verdict, headline = overall(judgements, STAGES)
    findings = [finding for judgement in judgements for finding in judgement.findings]
    return Outcome(
        case=case,
        verdict=verdict,
        found=tuple(_found(fault, findings) for fault in case.faults),
        failed=tuple(_has_failed(fault, findings) for fault in case.faults),
        wrongly_named=tuple(sorted(_wrongly_named(case.faults, findings))),
        headline=headline,
    )


def _found(fault: Fault, findings: Iterable[Finding]) -> str:
    naming = [finding for finding in findings if finding.severity is not Severity.INFO and fault.names(finding)]
    return ", ".join(dict.fromkeys(f"{finding.metric} ({finding.rule})" for finding in naming))


def _has_failed(fault: Fault, findings: Iterable[Finding]) -> bool:
    return any(finding.severity is Severity.CRITICAL and fault.names(finding) for finding in findings)


def _wrongly_named(faults: Iterable[Fault], findings: Iterable[Finding]) -> set[str]:
    """Devices without a fault that a finding names, a warning too, as it counts as found where there is a fault; a
    node's own findings tell of all its devices.
    """
    faulty = {fault.device for fault in faults} | {"node"}
    return {finding.device for finding in findings if finding.severity is not Severity.INFO} - faulty


def rows(outcome: Outcome) -> list[str]:
    """The outcome's lines of the table, one for each fault."""
    model = outcome.case.model
    if not outcome.case.faults:
        return [
            f"{'(healthy)':<18}{model:<13}{outcome.verdict:<14}{outcome.headline if _wrongly_failed(outcome) else ''}"
        ]
    lines = []
    for fault, by, failed in zip(outcome.case.faults, outcome.found, outcome.failed, strict=True):
        beside = " + ".join(f"{each.kind} on {each.device}" for each in outcome.case.faults if each is not fault)
        right = "wrong: " + ", ".join(outcome.wrongly_named) if outcome.wrongly_named else fault.device
        why = f"   ({outcome.headline})" if outcome.verdict is Verdict.INCONCLUSIVE else ""
        finding = f"{by or 'NOT FOUND'}{f'   beside {beside}' if beside else ''}{why}"
        how = "failed" if failed else "warned" if by else "NO"
        lines.append(f"{fault.kind:<18}{model:<13}{outcome.verdict:<14}{how:<11}{right:<12}{finding}")
    return lines


def _wrongly_failed(outcome: Outcome) -> bool:
    return not outcome.case.faults and outcome.verdict not in HEALTHY


def answer(outcomes: Sequence[Outcome], seconds: float) -> dict[str, Any]:
    """The counts."""
    planted = [
        (outcome, fault, by)
        for outcome in outcomes
        for fault, by in zip(outcome.case.faults, outcome.found, strict=True)
    ]
    well = [outcome for outcome in outcomes if not outcome.case.faults]
    found = sum(bool(by) for _, _, by in planted)
    failed = sum(sum(outcome.failed) for outcome in outcomes)
    return {
        "found": found,
        "planted": len(planted),
        "convicted": failed,
        "only_warned": found - failed,
        "right_device": sum(bool(by) and not outcome.wrongly_named for outcome, _, by in planted),
        "healthy_failed": sum(_wrongly_failed(outcome) for outcome in well),
        "healthy_warned": sum(bool(outcome.wrongly_named) and not _wrongly_failed(outcome) for outcome in well),
        "healthy": len(well),
        "missed": [f"{fault.kind} on {outcome.case.model} {fault.device}" for outcome, fault, by in planted if not by],
        "seconds": round(seconds, 1),
    }


def perfect(figures: dict[str, Any]) -> bool:
    """Whether nothing is left to wish for."""
    return figures["found"] == figures["right_device"] == figures["planted"] and not figures["healthy_failed"]


def bench(cases: Sequence[Case], jobs: int) -> int:
    """Print the table and, last, one JSON line; 1 if a fault was missed or misplaced, or a healthy node failed."""
    began, outcomes = time.monotonic(), []
    spawn = multiprocessing.get_context("spawn")
    print(f"{'fault':<18}{'model':<13}{'verdict':<14}{'found':<11}{'device':<12}by")
    with concurrent.futures.ProcessPoolExecutor(jobs, spawn, processes.die_with_parent, (os.getpid(),)) as pool:
        for outcome in pool.map(examine, cases):
            outcomes.append(outcome)
            print("\n".join(rows(outcome)), flush=True)
    verdicts = collections.Counter(outcome.verdict for outcome in outcomes if not outcome.case.faults)
    print("healthy nodes: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))
    figures = answer(outcomes, time.monotonic() - began)
    print("{found} of {planted} found: {convicted} failed, {only_warned} only warned of".format_map(figures))
    print(json.dumps(figures))
    return 0 if perfect(figures) else 1


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="what is drawn")
    parser.add_argument("--model", choices=sorted(MODELS), help="only this one")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of faults")
    parser.add_argument("--healthy", type=int, default=20, help="healthy nodes")
    parser.add_argument("--jobs", type=int, default=2, help="nodes at once")
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}")
    models = [chosen.model] if chosen.model else list(MODELS)
    return bench(draw(models, chosen.pairs, chosen.healthy, chosen.seed), chosen.jobs)


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
