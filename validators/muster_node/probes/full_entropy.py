"""Silent data corruption in operations on full-entropy operands, found by comparing bits with no known correct answer.

Matrix products in the shapes of real models, attention, normalisation, reductions, an Adam step and a small transformer
step: each is run again on the same operands and must give the same bits, and all devices of a node with the same golden
key must agree; where they do not, the majority counts as right, and what differed is repeated there and on two devices
that did not. Integer products (``exact_gemm``) know the answer but fill
only part of each significand; this fills all of it.

Each operation has two sets of operands. The first is the same in every test: its digests are reported with the key
under which they may be compared between nodes and over time, since a fault that is the same on every device of a node
shows in no other way. The second is of the test's own seed, since some faults need operands that no fixed set has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Callable

from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Compute, Device, Worker
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.common import best_devices, precision_of, seed_of
from muster_node.workloads.digest import digest
from muster_node.workloads.each_device import error_of, on_each
from muster_node.workloads.golden_key import facts_of, golden_key, keep_workspace
from muster_node.workloads.models.model_operations import GEMM_SHAPES, VERSION, Operation, Operations
from muster_node.workloads.rerun import DOC as RERUN_DOC
from muster_node.workloads.rerun import Rerun, peers_of, report_reruns
from muster_node.workloads.vote import dissenters

Named = Callable[[Operations], Iterator[tuple[str, Operation]]]
"""Which of a device's operations to run."""


class FullEntropy(Probe):
    """Bitwise digests between repeats and between devices."""

    name = "full_entropy"
    stage = "integrity"
    doc = "Operations of real models, compared bit by bit between repeats and between devices"
    params = {
        "dtypes": Param(
            ["bf16", "fp16", "tf32", "fp8", "fp64", "int8", "fp32"],
            "number formats of the matrix products; those that a device does not have are left out",
        ),
        "repeats": Param(3, "runs of each operation on the same operands"),
        "reruns": Param(
            10, "how often a device runs an operation again of which it gave other bits; siblings run it once"
        ),
        "data_seed": Param(
            1, "of the operands whose digests are reported; the same everywhere, or those of nodes cannot be compared"
        ),
    }
    metrics = {
        "full_entropy_mismatches": Metric("count", "runs that gave other bits than the first, or than the majority"),
        "full_entropy_rerun": Metric("count", RERUN_DOC),
        "full_entropy_digest": Metric("text", "digest of all bits that an operation gave in its first run"),
        "golden_key": Metric("text", "what must be equal for digests to be comparable"),
    }
    needs = ("torch",)

    def run(self, context: Context) -> None:
        """Run all operations on all devices at once. Raises ValueError for parameters that make no sense."""
        if context.params["repeats"] < 2:
            raise ValueError(
                "repeats must be 2 or more to compare anything, it is {}".format(context.params["repeats"])
            )
        keep_workspace()
        torch, devices = require_torch(), best_devices(context.hardware)
        torch.use_deterministic_algorithms(True, warn_only=True)
        context.progress("operations of full entropy on {}".format(", ".join(device.id for device in devices)))
        keys: dict[str, str] = {}
        for setting, named in _turns(context.params["dtypes"]):
            with precision_of(torch, setting):
                keys.update(_turn(torch, context, devices, named))
        for device_id, key in keys.items():
            context.emit("golden_key", device_id, text=key)


def _turns(dtypes: list[str]) -> list[tuple[str, Named]]:
    """Operations by the setting that they need: whether fp32 products use TF32 is one setting of the whole process."""
    if {"fp32", "tf32"} <= set(dtypes):
        rest = [dtype for dtype in dtypes if dtype != "fp32"]
        return [("tf32", lambda own: own.named(rest)), ("fp32", lambda own: own.products(["fp32"]))]
    return [("tf32" if "tf32" in dtypes else "fp32", lambda own: own.named(dtypes))]


def _turn(torch: Any, context: Context, devices: list[Device], named: Named) -> dict[str, str]:
    """Runs these operations on all devices, reports what differed, and returns the devices' golden keys."""
    seeds = [seed_of(context.params["data_seed"]), seed_of(context.seed, "fresh operands")]
    with context.hardware.loading(devices):
        results = on_each(context.hardware, devices, _Runner(torch, context, named, seeds))
    errors = {device.id: error_of(result) for device, result in zip(devices, results) if error_of(result)}
    devices = [device for device in devices if device.id not in errors]
    found = [result for result in results if not error_of(result)]
    if not found:
        raise RuntimeError("every device failed: {}".format("; ".join(sorted(set(errors.values())))))
    golden, fresh = (list(rans) for rans in zip(*found))
    operations = {name: None for ran in golden for name in ran.digests}
    wrong = [{name: judge(name, rans) for name in operations} for rans in (golden, fresh)]
    for operation in operations:
        for index, device in enumerate(devices):
            fixed, own = (each[operation].get(index, []) for each in wrong)
            problems = [*fixed, *(f"by fresh operands: {problem}" for problem in own)]
            _report(context, device.id, operation, index, golden, problems)
        for device_id, error in errors.items():
            context.emit("full_entropy_mismatches", device_id, labels={"op": operation}, note=error)
    again: dict[tuple[str, str], dict[str, Rerun]] = {}
    for seed, rans, problems_of in zip(seeds, (golden, fresh), wrong):
        _run_again(context, devices, rans, problems_of, _Again(torch, context, named, seed), again)
    for (device_id, operation), on in again.items():
        report_reruns(context, "full_entropy_rerun", device_id, {"op": operation}, on)
    return {device.id: ran.key for device, ran in zip(devices, golden)}


def _report(context: Context, device: str, operation: str, index: int, golden: list[Ran], problems: list[str]) -> None:
    ran = golden[index]
    if operation not in ran.digests:
        return
    runs, labels = ran.digests[operation], {"op": operation}
    alone = len(_alike(operation, ran, golden)) < 2
    note = "; ".join(problems) or ("compared with its own runs alone: there is no sibling of its key" if alone else "")
    samples = 2 * len(runs)
    context.emit("full_entropy_mismatches", device, value=len(problems), labels=labels, samples=samples, note=note)
    context.emit("full_entropy_digest", device, text=runs[0], labels=labels, samples=len(runs))


@dataclasses.dataclass(frozen=True)
class Ran:
    """What one device gave for one set of operands: the key of its digests, and by operation that of every run."""

    key: str
    digests: dict[str, list[str]]


def judge(operation: str, found: list[Ran]) -> dict[int, list[str]]:
    """Faults in each device's runs of an operation: index → sentences, from repeats and from the vote."""
    problems: dict[int, list[str]] = {}
    for index, ran in enumerate(found):
        runs = ran.digests.get(operation, [])
        for number, text in enumerate(runs[1:], start=2):
            if text != runs[0]:
                problems.setdefault(index, []).append(f"run {number} gave other bits than run 1")
    for key in {ran.key for ran in found}:
        voters = [index for index, ran in enumerate(found) if ran.key == key and operation in ran.digests]
        answers = [_answer(found[index].digests[operation]) for index in voters]
        for place, reason in dissenters(answers, "devices").items():
            problems.setdefault(voters[place], []).append(reason)
    return problems


def _alike(operation: str, own: Ran, found: list[Ran]) -> list[Ran]:
    """Those whose digests of an operation may be compared with a device's own, which is one of them."""
    return [ran for ran in found if ran.key == own.key and operation in ran.digests]


def _answer(runs: list[str]) -> str:
    """A device's vote: the digest of most of its runs, so that one transient fault does not change it."""
    return max(runs, key=runs.count)


def expected_digest(operation: str, index: int, found: list[Ran]) -> str:
    """The expected digest of device ``index``: that of most devices with its key, or else its own vote."""
    answers = [_answer(ran.digests[operation]) for ran in _alike(operation, found[index], found)]
    most = _answer(answers)
    return most if 2 * answers.count(most) > len(answers) else _answer(found[index].digests[operation])


class _Again:
    """Repeats of some operations on one device."""

    def __init__(self, torch: Any, context: Context, named: Named, seed: int) -> None:
        self._torch, self._hardware, self._named, self._seed = torch, context.hardware, named, seed

    def on(self, device: Device, expected: dict[str, str], times: int) -> dict[str, Rerun]:
        """By operation; ``expected``: the digests that they must have. None where the device fails."""

        def work(worker: Worker) -> dict[str, Rerun]:
            compute = self._hardware.compute(worker.device)
            worker.ready()
            seen = {}
            for name, operation in self._named(Operations(self._torch, compute, self._seed)):
                if name in expected:
                    seen[name] = Rerun()
                    for _ in range(times):
                        seen[name].add(digest(self._torch, operation()) != expected[name])
            return seen

        (seen,) = on_each(self._hardware, [device], work)
        return {} if error_of(seen) else seen


def _run_again(
    context: Context,
    devices: list[Device],
    found: list[Ran],
    wrong: dict[str, dict[int, list[str]]],
    again: _Again,
    reruns: dict[tuple[str, str], dict[str, Rerun]],
) -> None:
    """Repeats operations with differing bits on the device itself, and on two that are not suspect.

    Adds to ``reruns``: {(device, operation): {device that repeated it: its repeats}}.
    """
    suspects = {devices[index].id for problems in wrong.values() for index in problems}
    for index, device in enumerate(devices):
        expected = {name: expected_digest(name, index, found) for name, problems in wrong.items() if index in problems}
        alike = [other for other, ran in zip(devices, found) if ran.key == found[index].key]
        for other in [device, *peers_of(device.id, suspects, alike)] if expected else ():
            seen = again.on(other, expected, context.params["reruns"] if other is device else 1)
            for name, rerun in seen.items():
                reruns.setdefault((device.id, name), {}).setdefault(other.id, Rerun()).join(rerun)


class _Runner:
    """The work of one device: all operations on each set of operands."""

    def __init__(self, torch: Any, context: Context, named: Named, seeds: list[int]) -> None:
        self._torch, self._hardware, self._named, self._seeds = torch, context.hardware, named, seeds
        self._params, self._facts, self._emit = context.params, facts_of(context.hardware), context.emit

    def __call__(self, worker: Worker) -> tuple[Ran, ...]:
        compute = self._hardware.compute(worker.device)
        worker.ready()
        key = golden_key(
            self._torch, compute, self._facts,
            operations=VERSION, seed=self._params["data_seed"], shapes=GEMM_SHAPES[worker.device.kind],
        )  # fmt: skip
        return tuple(Ran(key, self._digests(compute, seed)) for seed in self._seeds)

    def _digests(self, compute: Compute, seed: int) -> dict[str, list[str]]:
        digests, device = {}, compute.device.id
        for name, operation in self._named(Operations(self._torch, compute, seed)):
            runs = digests[name] = [digest(self._torch, operation()) for _ in range(self._params["repeats"])]
            if wrong := sum(run != runs[0] for run in runs):
                self._emit("full_entropy_mismatches", device, value=wrong, labels={"op": name}, so_far=True)
        return digests
