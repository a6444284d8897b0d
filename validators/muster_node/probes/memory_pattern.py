"""Memory faults: known patterns over as much free memory as allowed, compared exactly.

Physical addresses are unknown without root; a mismatch is reported by its place in the buffer, the words written and
read, and the direction in which bits went. A run that found some is run again in the same memory and on two siblings.

How much of the free memory was covered is measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Device, Worker
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.workloads.common import (
    GIB,
    LEAST_SHARE,
    MIB,
    best_devices,
    beyond_caches,
    memory_gib,
    reason_of,
    seed_of,
)
from muster_node.workloads.each_device import error_of, on_each
from muster_node.workloads.patterns import BLOCK_BYTES, EXAMPLES, PATTERNS, Region, sequences
from muster_node.workloads.rerun import DOC as RERUN_DOC
from muster_node.workloads.rerun import Rerun, peers_of, report_reruns

_MIN_BYTES = 16 * MIB
# Beyond it the host's kernel starts to reclaim, and kills processes that allocate more; a GPU needs room to compare in.
_FRACTION_MAX = {"cpu": 0.9, "gpu": 0.99}


class MemoryPattern(Probe):
    """Walking bits, own address, moving inversions, random words, and blocks that the device itself moves."""

    name = "memory_pattern"
    stage = "integrity"
    doc = "Patterns written to free memory and compared, on all cores or GPUs at once"
    params = {
        "fraction": Param(0.5, "share of the free memory to test, at most 0.9 of a host's and 0.99 of a GPU's"),
        "max_gib": Param(
            None, "cap in GiB on the memory tested of each GPU, or of a host beyond its caches' size; None: no cap"
        ),
        "rounds": Param(1, "how often all patterns are run"),
        "seconds": Param(0.0, "go on for at least so many seconds"),
        "walk": Param(2, "positions that each walking bit takes in each word; 64 is complete and slow"),
        "patterns": Param(list(PATTERNS), "patterns to run"),
        "reruns": Param(3, "how often a run of a pattern that found something is run again in the same memory"),
    }
    metrics = {
        "memory_mismatches": Metric("count", "words that differ, by pattern"),
        "memory_rerun": Metric("count", RERUN_DOC),
        "memory_tested": Metric("GiB", "memory that all patterns went over"),
        "memory_coverage": Metric("%", "share of the memory that was free when the test began"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Test the memory of the best devices. Raises Skip where too little is free, ValueError on bad parameters."""
        torch, devices = require_torch(), best_devices(context.hardware)
        _check(context.params, devices[0].kind)
        context.progress("memory patterns by {}".format(", ".join(device.id for device in devices)))
        least = beyond_caches(context.hardware) if devices[0].kind == "cpu" else 0.0
        tester = _Tester(torch, context, least)
        with context.hardware.loading(devices):
            found = context.hardware.at_once(devices, tester, late=lambda device, why: _Tested(0, 0, error=why))
        if devices[0].kind == "cpu":
            _report(context, "memory", found, max(tested.free_bytes for tested in found), None)
            return
        totals = memory_gib(context.hardware)
        by_device = {device.id: one for device, one in zip(devices, found)}
        suspects = {name for name, one in by_device.items() if one.wrong or one.error}
        for device, one in zip(devices, found):
            for peer in peers_of(device.id, suspects, devices) if one.wrong else ():
                tester.again_on(peer, by_device[peer.id].nominal_bytes, one)
            _report(context, device.id, [one], one.free_bytes, totals.get(device.id))


def _check(params: Mapping[str, Any], kind: str) -> None:
    most = _FRACTION_MAX[kind]
    if not 0 < params["fraction"] <= most:
        raise ValueError(
            "fraction must lie above 0 and not above {} on a {}, it is {}".format(most, kind, params["fraction"])
        )
    unknown = sorted(set(params["patterns"]) - set(PATTERNS))
    if unknown:
        raise ValueError("there is no pattern {} (there are {})".format(unknown[0], ", ".join(PATTERNS)))


@dataclasses.dataclass
class _Tested:
    """What one worker found; ``reruns``: by pattern and device.

    ``error``: what PyTorch raised on the device, which ended its test.
    """

    nominal_bytes: int
    free_bytes: int
    rounds: int = 0
    mismatches: dict[str, int] = dataclasses.field(default_factory=dict)
    examples: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    keys: dict[str, int] = dataclasses.field(default_factory=dict)
    reruns: dict[str, dict[str, Rerun]] = dataclasses.field(default_factory=dict)
    error: str = ""

    @property
    def wrong(self) -> bool:
        """Whether any pattern found anything."""
        return any(self.mismatches.values())


class _Tester:
    """The work of one device: its share of the memory, all patterns, until rounds and seconds are reached."""

    def __init__(self, torch: Any, context: Context, least_bytes: float) -> None:
        self._torch, self._hardware, self._emit = torch, context.hardware, context.emit
        self._params, self._seed = context.params, context.seed
        self._least = least_bytes

    def __call__(self, worker: Worker) -> _Tested:
        compute = self._hardware.compute(worker.device)
        free = compute.free_memory()
        nominal_bytes = _share(free, self._params, worker, self._least)
        worker.ready()  # all have read how much is free before one allocates
        tested = _Tested(0, free)
        try:
            self._run(compute, nominal_bytes, tested)
        except RuntimeError as error:
            if worker.device.kind != "gpu":
                raise
            tested.error = reason_of(error)
        return tested

    def _run(self, compute: Compute, nominal_bytes: int, tested: _Tested) -> None:
        region, clock = self._region(compute, nominal_bytes), self._hardware.clock
        tested.nominal_bytes = region.nominal_bytes
        end = clock.now() + self._params["seconds"]
        while tested.rounds < self._params["rounds"] or clock.now() < end:
            for pattern in self._params["patterns"]:
                self._one(pattern, region, compute, tested)
            tested.rounds += 1

    def again_on(self, peer: Device, nominal_bytes: int, tested: _Tested) -> None:
        """Repeats the failed patterns of ``tested`` on a sibling: the same keys, on ``nominal_bytes`` of memory."""

        def work(worker: Worker) -> dict[str, bool]:
            compute = self._hardware.compute(worker.device)
            worker.ready()
            region = self._region(compute, nominal_bytes)
            return {name: self._wrong(name, key, region) for name, key in tested.keys.items()}

        (seen,) = on_each(self._hardware, [peer], work)
        for pattern, wrong in () if error_of(seen) else seen.items():
            tested.reruns[pattern].setdefault(peer.id, Rerun()).add(wrong)

    def _region(self, compute: Compute, nominal_bytes: int) -> Region:
        return Region(self._torch, compute, nominal_bytes, BLOCK_BYTES[compute.device.kind])

    def _one(self, pattern: str, region: Region, compute: Compute, tested: _Tested) -> None:
        key = seed_of(self._seed, compute.device.id, pattern, tested.rounds)
        with compute.timer():
            wrong = 0
            for fills in sequences(self._torch, pattern, key, self._params["walk"]):
                count, examples = region.run(pattern, fills)
                if count and not wrong and not tested.mismatches.get(pattern):
                    device = compute.device.id if compute.device.kind == "gpu" else "memory"
                    labels, note = {"pattern": pattern}, "; ".join(examples[:1])
                    self._emit("memory_mismatches", device, value=count, labels=labels, note=note, so_far=True)
                wrong += count
                tested.examples.setdefault(pattern, []).extend(examples)
        tested.mismatches[pattern] = tested.mismatches.get(pattern, 0) + wrong
        if wrong and pattern not in tested.keys:
            tested.keys[pattern] = key
            own = tested.reruns.setdefault(pattern, {}).setdefault(compute.device.id, Rerun())
            for _ in range(self._params["reruns"]):
                own.add(self._wrong(pattern, key, region))

    def _wrong(self, pattern: str, key: int, region: Region) -> bool:
        runs = sequences(self._torch, pattern, key, self._params["walk"])
        return any(region.run(pattern, fills)[0] for fills in runs)


def _share(free: int, params: Any, worker: Worker, least: float) -> int:
    workers = worker.count if worker.device.kind == "cpu" else 1
    wanted = free * params["fraction"]
    if params["max_gib"] is not None:
        wanted = min(wanted, params["max_gib"] * GIB)
    wanted = max(wanted, min(least, free * LEAST_SHARE))
    if wanted < _MIN_BYTES:
        raise Skip(f"only {wanted / MIB:.1f} MiB of memory may be tested")
    return int(wanted / workers)


def _report(context: Context, device: str, found: list[_Tested], free: int, total_gib: float | None) -> None:
    rounds = min(tested.rounds for tested in found)
    error = next((tested.error for tested in found if tested.error), "")
    for pattern in context.params["patterns"]:
        examples = [example for tested in found for example in tested.examples.get(pattern, [])]
        wrong = sum(tested.mismatches.get(pattern, 0) for tested in found)
        context.emit(
            "memory_mismatches",
            device,
            value=None if error and not wrong else wrong,  # correct words before an error do not clear the device
            labels={"pattern": pattern},
            samples=rounds,
            note="; ".join([*examples[:EXAMPLES], error] if error else examples[:EXAMPLES]),
        )
        for tested in found:
            report_reruns(context, "memory_rerun", device, {"pattern": pattern}, tested.reruns.get(pattern, {}))
    if error:
        context.emit("memory_tested", device, note=error)
        context.emit("memory_coverage", device, note=error)
        return
    tested_bytes = sum(tested.nominal_bytes for tested in found)
    note = f"{tested_bytes / GIB:.4g} of {free / GIB:.4g} GiB that were free"
    if total_gib:
        note += f"; {max(0.0, total_gib - free / GIB):.3g} of {total_gib:.4g} GiB in all were taken before"
    context.emit("memory_tested", device, value=tested_bytes / GIB, samples=rounds)
    context.emit("memory_coverage", device, value=100.0 * tested_bytes / free, samples=rounds, note=note)
