"""Digests of a block, as those of a node, are compared only where nothing but the device can change them; times of more
devices."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster_node.cluster.training.acceptance import SHAPES, Acceptance
from muster_node.hardware.seam import Device, Fact
from muster_node.workloads.golden_key import facts_of
from muster_simulator import create_machine, open_simulated

GPU = Device("gpu0", "gpu", 0)
USUAL = {
    "nvidia-cublas-cu12": "12.8.4.1", "cudnn": "91002", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "layers": "4",
    "driver_version": "570.124.06", "cpu_model": "Xeon 8480C", "gpu_model": "H100", "cuda": "12.8", "torch": "2.9",
}  # fmt: skip
OF_PACE = {"gpu_model", "cuda", "torch", "layers"}


def keys_in_a_block(node: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    cublas = SimpleNamespace(metadata={"Name": "nvidia-cublas-cu12"}, version=node["nvidia-cublas-cu12"])
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [cublas])
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", node["CUBLAS_WORKSPACE_CONFIG"])
    of_node = {"driver_version": "node", "cpu_model": "node", "gpu_model": "gpu0"}
    facts = [Fact(name, device, "text", text=node[name]) for name, device in of_node.items()]
    made = Acceptance({}, 1, [GPU])
    made._group = SimpleNamespace(hardware=SimpleNamespace(inventory=lambda: facts))  # type: ignore[assignment]
    properties = SimpleNamespace(multi_processor_count=132, major=9, minor=0)
    made._torch = SimpleNamespace(
        __version__=node["torch"], version=SimpleNamespace(cuda=node["cuda"]),
        cuda=SimpleNamespace(get_device_properties=lambda device: properties),
        backends=SimpleNamespace(cudnn=SimpleNamespace(version=lambda: node["cudnn"])),
    )  # fmt: skip
    compute = SimpleNamespace(device=GPU, torch_device=SimpleNamespace(type="cuda"))
    shape = SimpleNamespace(layers=node["layers"])
    model: Any = SimpleNamespace(compute=compute, shape=shape, tokens=SHAPES["gpu"].seq, d=SHAPES["gpu"].d_model)
    return made._keys(model)


@pytest.mark.parametrize("what", USUAL)
def test_devices_are_compared_only_where_this_is_equal(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = keys_in_a_block(USUAL, monkeypatch)
    assert keys_in_a_block({**USUAL}, monkeypatch) == usual
    other = keys_in_a_block({**USUAL, what: "another"}, monkeypatch)
    assert other["digest_key"] != usual["digest_key"]
    assert (other["pace_key"] != usual["pace_key"]) == (what in OF_PACE)


def test_a_gpu_of_another_vbios_is_compared_with_its_siblings(tmp_path: Path) -> None:
    """Which changes no bit that a kernel computes: a GPU that was replaced often has another one."""
    create_machine(tmp_path / "node", seed=4)
    hardware = open_simulated(tmp_path / "node")
    facts = [dataclasses.replace(fact, text="other") if fact.name == "vbios" and fact.device == "gpu7" else fact
             for fact in hardware.inventory()]  # fmt: skip
    node: Any = SimpleNamespace(inventory=lambda: facts)
    found = facts_of(node)
    assert {text for (_, device), text in found.items() if device == "gpu7"} == {
        text for (_, device), text in found.items() if device == "gpu0"
    }
