"""Operations of full entropy: the same bits every time on every device; a device that differs is named."""

import pytest

from muster_node.hardware import open_hardware
from muster_node.hardware.seam import Device
from muster_node.probes.full_entropy import FullEntropy, Ran, expected_digest, judge
from muster_node.workloads.common import FORMATS
from muster_node.workloads.digest import digest
from muster_node.workloads.models.model_operations import Operations
from muster_node.workloads.vote import dissenters
from muster_simulator import create_machine, open_simulated
from muster_simulator.compute import SimulatedCompute
from tests.support.injector import KINDS, Injector, OneDevice

NEEDS_TORCH = pytest.mark.needs_torch
OPERATIONS = {"attention", "layer norm", "softmax", "reduction", "adam step", "transformer step"}


def agreeing(count, runs=("a", "a")):
    return [Ran("key", {"op": list(runs)}) for _ in range(count)]


def test_devices_that_agree_are_cleared():
    assert judge("op", agreeing(8)) == {}


def test_a_device_that_differs_from_the_majority_is_named():
    found = [*agreeing(3), Ran("key", {"op": ["b", "b"]})]
    assert set(judge("op", found)) == {3}


def test_a_device_that_differs_from_itself_once_is_named_and_spoils_no_vote():
    found = [Ran("key", {"op": ["a", "b", "a"]}), *agreeing(2, ["a", "a", "a"])]
    assert set(judge("op", found)) == {0}


def test_without_a_majority_no_device_is_cleared():
    found = [*agreeing(1), Ran("key", {"op": ["b", "b"]})]
    assert set(judge("op", found)) == {0, 1}


def test_digests_of_different_keys_are_not_compared():
    assert judge("op", [*agreeing(3), Ran("another model", {"op": ["b", "b"]})]) == {}


def test_a_device_that_lacks_an_operation_has_no_vote():
    assert judge("op", [*agreeing(2), Ran("key", {})]) == {}


def test_the_expected_digest_is_the_majoritys_or_else_the_devices_own():
    found = [*agreeing(2), Ran("key", {"op": ["b", "b"]}), Ran("another model", {"op": ["c", "c"]})]
    assert [expected_digest("op", index, found) for index in range(4)] == ["a", "a", "a", "c"]
    found = [*agreeing(1), Ran("key", {"op": ["b", "c", "b"]})]
    assert [expected_digest("op", index, found) for index in range(2)] == ["a", "b"]


def test_one_answer_needs_no_vote():
    assert dissenters(["a"], "cores") == {}
    assert set(dissenters(["a", "b", "a"], "cores")) == {1}


def test_parameters_that_compare_nothing_are_refused(run_probe):
    with pytest.raises(ValueError):
        run_probe(FullEntropy, repeats=1)


@NEEDS_TORCH
def test_the_cores_of_this_machine_give_the_same_bits(run_probe, cpus):
    run = run_probe(FullEntropy, dtypes=["fp32"], repeats=2)
    operations = {found.labels["op"] for found in run.all("full_entropy_mismatches")}
    assert operations == OPERATIONS | {"gemm fp32 64x64x64", "gemm fp32 64x224x64", "gemm fp32 64x64x224"}
    for operation in operations:
        assert {run.one("full_entropy_mismatches", cpu, op=operation).value for cpu in cpus} == {0}
        assert len({run.one("full_entropy_digest", cpu, op=operation).text for cpu in cpus}) == 1
    assert len({found.text for found in run.all("full_entropy_digest")}) == len(operations)
    key = run.one("golden_key", cpus[0]).text
    assert all(part in key for part in ("torch=", "cpu_kernels=", "cpu_model=", "operations=", "seed=1", "shapes="))
    assert key.startswith("key="), "so that keys which differ beyond what a note may hold still differ"


@NEEDS_TORCH
@pytest.mark.parametrize("kind", [kind for kind, how in KINDS.items() if not how.steady])
@pytest.mark.parametrize("operation", ["matmul", "touch"])
def test_a_passing_fault_shows_between_repeats(run_probe, kind, operation):
    injector = Injector(kind, operation, among=5, seed=2)
    run = run_probe(FullEntropy, OneDevice(open_hardware(), injector), dtypes=["fp32"], repeats=2)
    assert injector.changed
    wrong = [found for found in run.all("full_entropy_mismatches") if found.value]
    assert len(wrong) == 1
    assert "run 2" in wrong[0].note


@NEEDS_TORCH
def test_the_simulated_gpu_that_corrupts_is_named(run_probe, tmp_path):
    create_machine(tmp_path / "node", seed=4, faults=[{"kind": "sdc", "gpu": 1, "rate": 1.0}])
    run = run_probe(FullEntropy, open_simulated(tmp_path / "node"), dtypes=["bf16"], repeats=2)
    wrong = {found.device for found in run.all("full_entropy_mismatches") if found.value}
    assert wrong == {"gpu1"}
    assert "7 of 8" in run.one("full_entropy_mismatches", "gpu1", op="transformer step").note
    again = {m.labels["on"]: (m.value, m.samples) for m in run.all("full_entropy_rerun", op="transformer step")}
    assert again == {"gpu1": (20, 20), "gpu2": (0, 2), "gpu3": (0, 2)}  # of both sets of operands
    assert {m.device for m in run.all("full_entropy_rerun")} == {"gpu1"}


@NEEDS_TORCH
def test_operands_of_the_tests_own_seed_find_what_no_fixed_set_has(run_probe, tmp_path, monkeypatch):
    create_machine(tmp_path / "node", seed=4)
    hardware = open_simulated(tmp_path / "node")
    drawn, real = set(), Operations._draw

    def noted(self, name, size):
        drawn.add(self._seed)
        return real(self, name, size)

    monkeypatch.setattr(Operations, "_draw", noted)
    run_probe(FullEntropy, hardware, seed=5, dtypes=["fp8"], repeats=2)
    seeds_of_one = set(drawn)
    drawn.clear()
    digests = {(m.device, m.labels["op"]): m.text for m in run_probe(
        FullEntropy, hardware, seed=6, dtypes=["fp8"], repeats=2
    ).all("full_entropy_digest")}  # fmt: skip
    (fixed,) = seeds_of_one & drawn
    assert len(seeds_of_one | drawn) == 3
    (rare,) = drawn - {fixed}

    def needs_these_operands(self, name, size):
        wrong = self._seed == rare and self._compute.device.id == "gpu6" and name == "q"
        return real(self, name, size) * (1 + wrong)

    monkeypatch.setattr(Operations, "_draw", needs_these_operands)
    run = run_probe(FullEntropy, hardware, seed=6, dtypes=["fp8"], repeats=2, reruns=2)
    assert [(m.device, m.labels["op"], m.value) for m in run.all("full_entropy_mismatches") if m.value] == [
        ("gpu6", "attention", 1)
    ]
    assert {m.labels["on"]: m.value for m in run.all("full_entropy_rerun")} == {"gpu6": 2, "gpu7": 0, "gpu0": 0}
    assert {(m.device, m.labels["op"]): m.text for m in run.all("full_entropy_digest")} == digests


class Accumulating:
    """A GPU whose products are summed in fp32 and come in the format that is asked for, as cuBLAS gives them; with
    ``flip``, the lowest bit of one sum is wrong.
    """

    def __init__(self, flip=False):
        import torch

        self.device, self.torch_device, self.flip = Device("gpu0", "cpu", 0), torch.device("cpu"), flip

    def supports(self, dtype):
        return True

    def physical(self, *shape):
        return shape

    def matmul(self, a, b, *, nominal, out_dtype=None):
        import torch

        product = (a.double() @ b.double()).float()
        product.view(torch.int32)[3, 5] ^= int(self.flip)
        return product.to(out_dtype or a.dtype)


@NEEDS_TORCH
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "tf32"])
def test_products_are_compared_before_they_are_rounded(dtype):
    import torch

    sums = [next(Operations(torch, Accumulating(flip), 7).products([dtype]))[1]() for flip in (False, True)]
    assert digest(torch, sums[0]) != digest(torch, sums[1])


@NEEDS_TORCH
def test_all_formats_are_tested_and_fp32_without_tf32(run_probe, tmp_path, monkeypatch):
    create_machine(tmp_path / "node", seed=4)
    seen, real = set(), SimulatedCompute._name

    def named(self, dtype):
        seen.add(real(self, dtype))
        return real(self, dtype)

    monkeypatch.setattr(SimulatedCompute, "_name", named)
    run = run_probe(FullEntropy, open_simulated(tmp_path / "node"), repeats=2)
    assert seen == set(FORMATS)
    formats = [
        m.labels["op"].split()[1]
        for m in run.all(
            "full_entropy_digest",
        )
        if "gemm" in m.labels["op"]
    ]
    assert set(formats) == set(FORMATS)
    assert len(run.all("golden_key")) == 8


@NEEDS_TORCH
def test_a_fault_that_does_not_recur_is_reported_as_such(run_probe, tmp_path):
    create_machine(tmp_path / "node", seed=4)
    injector = Injector("one_bit", "touch", among=2, seed=2)
    run = run_probe(FullEntropy, OneDevice(open_simulated(tmp_path / "node"), injector), dtypes=["bf16"], reruns=2)
    assert injector.changed
    (again,) = run.all("full_entropy_rerun")
    assert (again.labels["on"], again.value, again.samples) == ("gpu0", 0, 2)
