"""Silent data corruption in operations on full-entropy operands, found by comparing bits with no known correct answer.

Matrix products in the shapes of real models, attention, normalisation, reductions, an Adam step and a small transformer
step: each is run again on the same operands and must give the same bits, and all devices of a node with the same golden
key must agree; where they do not, the majority counts as right, and what differed is repeated there and on two devices
that did not. Integer products (``exact_gemm``) know the answer but fill
only part of each significand; this fills all of it.

A fault that is the same on every device does not show here. The digests are reported with the key under which they may
be compared between nodes and over time.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from muster_node.cluster.digest import digest
from muster_node.hardware.pytorch import require_torch
from muster_node.hardware.seam import Device, Hardware, Worker
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.workloads.common import best_devices, precision_of, seed_of
from muster_node.workloads.each_device import error_of, on_each
from muster_node.workloads.model_operations import Operations, golden_key
from muster_node.workloads.rerun import DOC as RERUN_DOC
from muster_node.workloads.rerun import Rerun, peers_of, report_reruns
from muster_node.workloads.vote import dissenters

# The host's model too: operands are drawn there, and normal numbers differ between its vector units.
_FACTS = ("gpu_model", "cpu_model", "driver_version", "vbios", "mig_mode", "ecc_mode")
_SETTINGS = ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE")


class FullEntropy(Probe):
    """Bitwise digests between repeats and between devices."""

    name = "full_entropy"
    stage = "integrity"
    doc = "Operations of real models, compared bit by bit between repeats and between devices"
    params = {
        "dtypes": Param(
            ["bf16", "fp16", "tf32", "fp64", "int8"], "number formats of the matrix products; fp32 not with tf32"
        ),
        "repeats": Param(3, "runs of each operation on the same operands"),
        "reruns": Param(
            10, "how often a device runs an operation again of which it gave other bits; siblings run it once"
        ),
        "data_seed": Param(1, "of the operands; the same everywhere, or digests of nodes cannot be compared"),
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
        precisions = [dtype for dtype in ("fp32", "tf32") if dtype in context.params["dtypes"]]
        if len(precisions) > 1:
            raise ValueError("fp32 and tf32 are one setting of the whole process: test them in two calls")
        # Read when the first GPU product is made, so it has to stand before PyTorch is even imported.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch, devices = require_torch(), best_devices(context.hardware)
        torch.use_deterministic_algorithms(True, warn_only=True)
        context.progress("operations of full entropy on {}".format(", ".join(device.id for device in devices)))
        facts = _facts(context.hardware)
        with precision_of(torch, *(precisions or ["fp32"])):
            with context.hardware.loading(devices):
                results = on_each(context.hardware, devices, _Runner(torch, context, facts))
            errors = {device.id: error_of(result) for device, result in zip(devices, results) if error_of(result)}
            devices = [device for device in devices if device.id not in errors]
            found = [result for result in results if not error_of(result)]
            if not found:
                raise RuntimeError("every device failed: {}".format("; ".join(sorted(set(errors.values())))))
            names = [device.id for device in devices]
            for device, ran in zip(names, found):
                context.emit("golden_key", device, text=ran.key)
            wrong = {name: judge(name, found) for name in {name: None for ran in found for name in ran.digests}}
            for operation, problems in wrong.items():
                for index, device in enumerate(names):
                    self._report(context, device, operation, found[index], problems.get(index, []))
            for device_id, error in errors.items():
                for operation in wrong:
                    context.emit("full_entropy_mismatches", device_id, labels={"op": operation}, note=error)
            _run_again(torch, context, devices, found, wrong)

    def _report(self, context: Context, device: str, operation: str, ran: Ran, problems: list[str]) -> None:
        if operation not in ran.digests:
            return
        runs, labels = ran.digests[operation], {"op": operation}
        note = "; ".join(problems)
        context.emit(
            "full_entropy_mismatches", device, value=len(problems), labels=labels, samples=len(runs), note=note
        )
        context.emit("full_entropy_digest", device, text=runs[0], labels=labels, samples=len(runs))


@dataclasses.dataclass(frozen=True)
class Ran:
    """What one device gave: the key of its digests, and by operation the digest of every run."""

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


def _answer(runs: list[str]) -> str:
    """A device's vote: the digest of most of its runs, so that one transient fault does not change it."""
    return max(runs, key=runs.count)


def expected_digest(operation: str, index: int, found: list[Ran]) -> str:
    """The expected digest of device ``index``: that of most devices with its key, or else its own vote."""
    alike = [ran for ran in found if ran.key == found[index].key and operation in ran.digests]
    answers = [_answer(ran.digests[operation]) for ran in alike]
    most = _answer(answers)
    return most if 2 * answers.count(most) > len(answers) else _answer(found[index].digests[operation])


def _run_again(
    torch: Any, context: Context, devices: list[Device], found: list[Ran], wrong: dict[str, dict[int, list[str]]]
) -> None:
    """Repeats operations with differing bits on the device itself, and on two that are not suspect."""
    suspects = {devices[index].id for problems in wrong.values() for index in problems}
    for index, device in enumerate(devices):
        expected = {name: expected_digest(name, index, found) for name, problems in wrong.items() if index in problems}
        alike = [other for other, ran in zip(devices, found) if ran.key == found[index].key]
        for other in [device, *peers_of(device.id, suspects, alike)] if expected else ():
            times = context.params["reruns"] if other is device else 1
            (seen,) = on_each(context.hardware, [other], _Again(torch, context, expected, times))
            for name, rerun in () if error_of(seen) else seen.items():
                report_reruns(context, "full_entropy_rerun", device.id, {"op": name}, {other.id: rerun})


class _Again:
    """Repeats of some operations on one device, with known expected digests."""

    def __init__(self, torch: Any, context: Context, expected: dict[str, str], times: int) -> None:
        self._torch, self._hardware, self._params = torch, context.hardware, context.params
        self._expected, self._times = expected, times

    def __call__(self, worker: Worker) -> dict[str, Rerun]:
        compute, seed = self._hardware.compute(worker.device), seed_of(self._params["data_seed"])
        worker.ready()
        seen = {}
        for name, operation in Operations(self._torch, compute, seed).named(self._params["dtypes"]):
            if name in self._expected:
                seen[name] = Rerun()
                for _ in range(self._times):
                    seen[name].add(digest(self._torch, operation()) != self._expected[name])
        return seen


class _Runner:
    """The work of one device."""

    def __init__(self, torch: Any, context: Context, facts: dict[tuple[str, str], str]) -> None:
        self._torch, self._hardware, self._facts = torch, context.hardware, facts
        self._params = context.params

    def __call__(self, worker: Worker) -> Ran:
        compute, seed = self._hardware.compute(worker.device), seed_of(self._params["data_seed"])
        facts = {name: text for (name, device), text in self._facts.items() if device in ("node", worker.device.id)}
        worker.ready()
        digests = {}
        for name, operation in Operations(self._torch, compute, seed).named(self._params["dtypes"]):
            digests[name] = [digest(self._torch, operation()) for _ in range(self._params["repeats"])]
        return Ran(golden_key(self._torch, compute, facts, self._params["data_seed"]), digests)


def _facts(hardware: Hardware) -> dict[tuple[str, str], str]:
    """Facts and settings that may change the bits: (name, device) → text."""
    facts = {}
    for fact in hardware.inventory():
        if fact.name in _FACTS and (fact.text is not None or fact.value is not None):
            facts[fact.name, fact.device] = fact.text or f"{fact.value or 0:g}"
    facts.update({(name, "node"): os.environ.get(name, "unset") for name in _SETTINGS})
    return facts
