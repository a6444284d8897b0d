"""The benchmark of the integrity battery: faults really reach the buffers, and a blind detector is reported."""

import json
import sys

import pytest

from muster_node.hardware import open_hardware
from muster_node.workloads.products.check import ProductCheck
from muster_simulator import create_machine, open_simulated
from tests.bench import integrity
from tests.bench.integrity import NO_FAULT, Score
from tests.support.injector import KINDS, Injector

pytestmark = pytest.mark.needs_torch


@pytest.fixture
def gpus(tmp_path):
    create_machine(tmp_path / "node", seed=4)
    return open_simulated(tmp_path / "node")


def test_faults_in_formats_that_cpus_lack_are_found_on_simulated_gpus(gpus):
    for kind, row in integrity.detection(
        gpus, ["tf32", "fp8", "memory", "block_move", "host_copy", "peer_copy"], trials=2, seed=3
    ).items():
        assert row == dict.fromkeys(row, Score(trials=2, found=0 if kind == NO_FAULT else 2)), kind


@pytest.mark.parametrize("kind", KINDS)
def test_a_steady_fault_hits_every_buffer_alike_and_a_passing_one_a_single_buffer(kind):
    import torch

    injector = Injector(kind, "matmul", 3, seed=8)
    clean = torch.randn((64, 128), generator=torch.Generator().manual_seed(1))
    spoilt = [injector.pass_through("matmul", clean.clone()) for _ in range(6)]
    changed = [one for one in spoilt if not torch.equal(one.view(torch.int32), clean.view(torch.int32))]
    assert len(changed) == (6 if KINDS[kind].steady else 1)
    assert all(torch.equal(one.view(torch.int32), changed[0].view(torch.int32)) for one in changed)
    assert injector.changed


def test_a_fault_that_changes_nothing_is_reported():
    import torch

    injector = Injector("zero_fill", "matmul", 1, seed=8)
    injector.pass_through("matmul", torch.zeros((64, 64)))
    assert not injector.changed


def test_a_blind_detector_fails_the_benchmark_with_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(ProductCheck, "differs", lambda self, product: (product != product).any())
    monkeypatch.setattr(integrity, "supported", lambda machine, seed: ["fp32"])
    monkeypatch.setattr(integrity, "KINDS", {"one_bit": KINDS["one_bit"]})
    monkeypatch.setattr(integrity, "RATE_SHAPES", {"cpu": (16, 16, 32)})
    monkeypatch.setattr(integrity, "DWELL_S", {"cpu": 0.001})
    monkeypatch.setattr(integrity, "RATE_MEMORY", {"cpu": {"max_gib": 1 / 64}})
    monkeypatch.setattr(sys, "argv", ["integrity", "--trials", "1"])
    assert integrity.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert "The fp32 test missed 1 of 1 one_bit faults." in lines
    answer = json.loads(lines[-1])
    assert answer["detection"] == {"one_bit": pytest.approx(6 / 8)}
    assert answer["detection_simulated"] == {"one_bit": 1.0}
    assert any(line.startswith("simulated gpu: NVIDIA H100") for line in lines)
    assert answer["memory"]["memory_pattern_to_copy"] > 0
    assert 0 < answer["memory"]["memory_coverage"] < 1
    assert set(answer["verified_to_raw"]) == {"fp32"}
    assert answer["device"] == integrity.device_name(open_hardware())


def test_every_shortfall_is_named():
    scores = {"row": {"bf16": Score(8, 7), "fp8": Score(0, 0)}, NO_FAULT: {"bf16": Score(8, 1), "fp8": Score(8, 0)}}
    assert integrity.complaints(scores, {"bf16": 0.94, "int8": 0.91}, {"memory_coverage": 0.97}, barred=True) == [
        "The bf16 test missed 1 of 8 row faults.",
        "No row fault could be put before the fp8 test: it is untested.",
        "The bf16 test raised 1 alarms in 8 runs without a fault.",
        "Checked bf16 products reach 0.940 of the raw rate, below the bar of 0.95.",
        "memory_pattern_to_copy is 0.000, below the bar of 0.8.",
    ]


def test_the_bars_are_for_real_gpus_only():
    assert integrity.complaints({}, {"bf16": 0.1}, {}, barred=False) == []
