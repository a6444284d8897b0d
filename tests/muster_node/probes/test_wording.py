"""The wording of what parsers and proofs report; everything else asserts identities. ``make wording`` renews it."""

from pathlib import Path

import pytest
import yaml

from muster_node.hardware.host.cpu_compute import CpuCompute
from muster_node.probe import Skip
from muster_node.probes.disk import Disk
from muster_node.probes.fio import Fio
from muster_node.probes.full_entropy import FullEntropy, judge
from muster_node.probes.memory_bandwidth import MemoryBandwidth
from muster_node.probes.memory_pattern import MemoryPattern
from muster_node.tools.nccl_log import Logged, carrier, prove
from muster_node.tools.output import BadOutput, failed_exit
from tests.muster_node.probes.test_full_entropy import Ran, agreeing
from tests.muster_node.probes.test_recordings import READERS, RECORDINGS

NOTHING = Logged(frozenset(), (), {}, frozenset(), False)


def error_of(path: Path) -> str:
    recording = yaml.safe_load(path.read_text(encoding="utf-8"))
    more = {"pattern": recording["pattern"]} if "pattern" in recording else {}
    with pytest.raises(BadOutput) as caught:
        READERS[path.parent.name](recording["output"], **more)
    return f"{path.parent.name} {caught.value}"


def test_wording(snapshot):
    refused = [path for path in RECORDINGS if "error: " in path.read_text(encoding="utf-8").rpartition("reading:")[2]]
    joined = Logged(frozenset({(0, 2), (1, 2)}), (), {}, frozenset(), False)
    called = Logged(
        frozenset({(0, 2), (1, 2)}), (), {("AllReduce", 8): ("RING/LL",)}, frozenset({("AllReduce", 2)}), False
    )
    assert {
        "refused output": [error_of(path) for path in refused],
        "exit status": str(failed_exit(7)),
        "not proven": [
            prove("all_reduce", 8, 2, NOTHING, [NOTHING, NOTHING]).why_not,
            prove("all_reduce", 8, 2, NOTHING, [joined, joined]).why_not,
            carrier("all_reduce", 16, 2, called, [called]).why_not,
            carrier("all_reduce", 8, 2, called, [called]).why_not,
            carrier("all_reduce", 8, 2, called, [called, called]).why_not,
        ],
    } == snapshot


def test_wording_of_refusals(run_probe, monkeypatch, snapshot):
    monkeypatch.setattr(CpuCompute, "free_memory", lambda self: 2**20)
    refused = [
        (Disk, {"directory": "/nowhere"}), (Fio, {"tests": ["trim"]}), (FullEntropy, {"repeats": 1}),
        (MemoryPattern, {"fraction": 1.5}), (MemoryPattern, {"patterns": ["rowhammer"]}), (MemoryPattern, {}),
        (MemoryBandwidth, {"array_mib": 128}),
    ]  # fmt: skip
    sentences = []
    for probe, params in refused:
        with pytest.raises((Skip, ValueError)) as end:
            run_probe(probe, **params)
        sentences.append(f"{probe.name}: {type(end.value).__name__}: {end.value}")
    assert sentences == snapshot


def test_wording_of_notes(snapshot):
    assert {
        "a device": judge("op", [*agreeing(4), Ran("key", {"op": ["b", "b"]})]),
        "a repeat": judge("op", [Ran("key", {"op": ["a", "b"]}), *agreeing(3)]),
        "no majority": judge("op", [*agreeing(1), Ran("key", {"op": ["b", "b"]})]),
    } == snapshot
