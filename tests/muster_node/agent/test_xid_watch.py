"""XIDs where the kernel log cannot be read: by NVML's event set, of the right GPU, once for each."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from muster_criteria.device_events.judge import events_of
from muster_criteria.measured import Measured
from muster_node.agent import xid_watch
from muster_node.agent.xid_watch import XidWatch
from muster_node.contract import Measurement
from muster_node.hardware.events import by_pci
from muster_node.hardware.host import kernel_log
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.nvidia.gpus import open_nvidia
from tests.muster_node.agent.harness import Node, call, plan
from tests.muster_node.hardware.nvml_standin import FakeNvml

PCI = {index: f"00000000:{0x10 + index:02X}:00.0" for index in range(8)}


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Eight GPUs on a machine that hides its kernel log, and a watch that looks often."""
    monkeypatch.setattr(kernel_log, "read", lambda: None)
    monkeypatch.setattr(xid_watch, "INTERVAL_S", 0.001)
    standin = FakeNvml()
    standin.answers["nvmlDeviceGetPciInfo"] = lambda gpu: pynvml.nvmlPciInfo_t(busId=PCI[gpu].encode())
    return standin


def watched(nvml: FakeNvml) -> tuple[HostHardware, XidWatch]:
    hardware = HostHardware(accelerators=open_nvidia(nvml, limit_s=0.5))
    return hardware, XidWatch(hardware)


def stopped(watch: XidWatch, devices: dict[str, str]) -> tuple[list[Measurement], dict[str, Measurement]]:
    """XIDs, and whether those of each GPU were seen."""
    entries = watch.stop(devices)
    xids = [each for each in entries if each.metric == "xid"]
    return xids, {each.device: each for each in entries if each.metric == "xids_seen"}


def test_each_xid_is_an_entry_of_its_gpu_and_the_judge_reads_it(nvml: FakeNvml) -> None:
    hardware, watch = watched(nvml)
    nvml.happens(2, 79)
    nvml.happens(2, 79)
    nvml.happens(0, 94, instance=1)
    entries, seen = stopped(watch, by_pci(hardware.inventory()))
    assert {device: each.value for device, each in seen.items()} == {f"gpu{slot}": 1.0 for slot in range(8)}

    # By slot, which is the module id less one: NVML's third GPU sits in slot 4.
    assert [(each.device, each.labels["code"], each.samples) for each in entries] == [
        ("gpu4", "79", 2),
        ("gpu7", "94", 1),
    ]
    assert "GPU-I:01 GPU-CI:01" in str(entries[1].text)
    rows = [Measured(probe=e.probe, metric=e.metric, device=e.device, unit=e.unit, text=e.text, labels=e.labels,
                     samples=e.samples) for e in entries]  # fmt: skip
    assert [(event.code, event.device, event.count) for event in events_of(rows)] == [(79, "gpu4", 2), (94, "gpu7", 1)]
    assert nvml.event_sets == {}


def test_where_the_log_can_be_read_nothing_is_seen_twice(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "read", lambda: ["[1.0] a line"])
    _, watch = watched(nvml)
    nvml.happens(2, 79)
    entries, seen = stopped(watch, {})
    assert (entries, nvml.event_sets) == ([], {})
    assert {each.value for each in seen.values()} == {1.0}


@pytest.mark.parametrize("how", ["gone", "raises"])
def test_a_log_that_can_be_read_no_more_has_shown_no_xid_to_the_end(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(kernel_log, "read", lambda: ["[1.0] a line"])
    _, watch = watched(nvml)

    def read() -> None:
        if how == "raises":
            raise OSError

    monkeypatch.setattr(kernel_log, "read", read)
    _, seen = stopped(watch, {})
    assert len(seen) == 8
    assert {each.value for each in seen.values()} == {None}
    assert all(each.note for each in seen.values())


@pytest.mark.parametrize("trouble", ["create", "register", "wait", "hangs", "raises"])
def test_what_is_not_seen_is_noted(nvml: FakeNvml, trouble: str) -> None:
    if trouble == "create":
        nvml.refuse["nvmlEventSetCreate"] = pynvml.NVML_ERROR_NO_PERMISSION
    elif trouble == "register":
        nvml.refuse["nvmlDeviceRegisterEvents"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    elif trouble == "wait":
        nvml.refuse["nvmlEventSetWait_v2"] = pynvml.NVML_ERROR_GPU_IS_LOST
    elif trouble == "hangs":
        nvml.hang["nvmlEventSetWait_v2"] = None
    else:
        nvml.answers["nvmlDeviceGetPciInfo"] = None
    _, watch = watched(nvml)
    nvml.happens(2, 79)
    entries, seen = stopped(watch, {})
    complete = trouble == "raises"
    assert [each.labels["code"] for each in entries] == ["79"] * complete
    assert len(seen) == 8
    assert {each.value for each in seen.values()} == ({1.0} if complete else {None})
    assert all(each.note for each in seen.values())


def test_without_a_log_and_without_events_no_gpu_is_watched(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostHardware, "event_source", lambda self: None)
    _, watch = watched(nvml)
    _, seen = stopped(watch, {})
    assert len(seen) == 8
    assert {each.value for each in seen.values()} == {None}


def test_a_refusal_of_one_gpu_is_that_gpus(nvml: FakeNvml) -> None:
    def refuse(name: str, arguments: tuple[object, ...]) -> None:
        if name == "nvmlDeviceRegisterEvents" and arguments[0] == 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    nvml.before = refuse
    _, watch = watched(nvml)
    _, seen = stopped(watch, {})
    assert {device for device, each in seen.items() if each.value is None} == {"gpu4"}


@pytest.mark.parametrize("how", ["good", "hangs"])
def test_a_jobs_xids_are_in_its_result_however_its_probe_ends(how: str, tmp_path: Path) -> None:
    node = Node(tmp_path)
    try:
        done = node.run(plan(call(how, 1.0)), env={"FAKE_XIDS": "1"})
    finally:
        node.close()
    (entry,) = (each for each in done.measured("device_events") if each.metric == "xid")
    assert (entry.metric, entry.device, entry.labels["code"], entry.labels["at"]) == ("xid", "node", "79", "12.500000")
