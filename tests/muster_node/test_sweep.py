"""The node's answer to the sweep: bounded in time, and complete whatever one sensor does."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.settings import Settings
from muster_criteria.health import readings
from muster_node import sweep
from muster_node.hardware.host import clocks, disks, kernel_log
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import Fact
from muster_simulator import create_machine, open_simulated

LOG = [
    "<6>[    1.000000] Linux version 6.1",
    "<3>[  100.500000] NVRM: Xid (PCI:0000:4e:00): 79, pid=1, GPU has fallen off the bus.",
    "<3>[  200.000000] EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
    "<4>[  300.000000] mlx5_core 0000:1a:00.0: Port: 1 Link DOWN",
    "<6>[  301.000000] docker0: port 1 entered blocking state",
]


class Machine(HostHardware):
    """This machine with a kernel log and GPU states of the test's own."""

    log: list[str] | None = LOG

    def kernel_log(self) -> list[str] | None:
        return self.log

    def boot_id(self) -> str:
        return "b1"

    def states(self) -> Iterator[Fact]:
        yield Fact("row_remap_pending", "gpu3", "bool", 1.0)
        yield Fact("application_clock", "gpu3", "MHz", 1980.0)
        yield Fact("fabric_state", "gpu3", "text", text="completed")

    def domain(self) -> Iterator[Fact]:
        yield Fact("nvlink_domain", "gpu3", "text", text="a.1")
        yield Fact("imex", "node", "text", text="READY")


def answer(machine: HostHardware, boot: str = "", since: float = 0.0) -> dict[str, object]:
    return sweep.sweep(lambda: machine, boot, since)


def kernel(found: dict[str, object]) -> tuple[list[int], list[str]]:
    log = found["kernel"]
    assert isinstance(log, dict)
    coded = [each["code"] for each in log["events"] if "code" in each]
    return coded, [each["text"].split()[0] for each in log["events"] if "code" not in each]


def test_the_log_since_the_cursor_and_from_the_boot_after_another() -> None:
    assert kernel(answer(Machine())) == ([79], ["EDAC", "mlx5_core"])
    assert kernel(answer(Machine(), "b1", 100.5)) == ([], ["EDAC", "mlx5_core"])
    assert kernel(answer(Machine(), "b1", 301.0)) == ([], [])
    assert kernel(answer(Machine(), "b0", 301.0)) == ([79], ["EDAC", "mlx5_core"]), "the cursor is of another boot"
    found = answer(Machine())["kernel"]
    assert isinstance(found, dict)
    assert (found["first"], found["last"]) == (1.0, 301.0)


def test_the_errors_of_a_whole_baseboard_are_no_answer_that_the_controller_refuses() -> None:
    codes = (13, 31, 43, 45, 48, 62, 63, 74, 94, 119)
    machine = Machine()
    machine.log = [
        f"<3>[{at:12.6f}] NVRM: Xid (PCI:0000:{pci:02x}:00): {code}, pid={at}, Ch {at:08x}"
        for pci in range(8)
        for code in codes
        for at in range(1, 31)
    ]
    log = readings.parse(json.dumps(answer(machine)).encode()).kernel
    assert log is not None
    assert {(each.code, each.pci[5:7]) for each in log.events} == {
        (code, f"{pci:02x}") for pci in range(8) for code in codes
    }
    assert sum(each.count for each in log.events) == len(machine.log)


def nvlink(number: int, unit: str = "NETIR_BER_EVENT Nonfatal", code: int = 149) -> str:
    words = f"(0x{0x00400000 + number:08x} 0x00000000 0x00000000)"
    return f"<3>[{number:12.6f}] NVRM: Xid (PCI:0000:4e:00): {code}, {unit} XC0 i0 Link {number % 18:02d} {words}"


def test_an_error_of_another_form_is_kept_however_many_there_are_of_one() -> None:
    machine = Machine()
    machine.log = [nvlink(number, code=144 + number % 60) for number in range(60 * 21)]
    machine.log.append(nvlink(9000, "NETIR_LINK_EVT Fatal"))
    log = readings.parse(json.dumps(answer(machine)).encode()).kernel
    assert log is not None
    assert [(each.text.split()[0], each.count) for each in log.events if each.code == 149] == [
        ("NETIR_BER_EVENT", 21), ("NETIR_LINK_EVT", 1)
    ]  # fmt: skip
    assert log.left_out == 0


def test_of_more_forms_than_an_answer_holds_each_code_keeps_its_first_and_the_rest_is_counted() -> None:
    words = ["".join(chr(ord("g") + int(digit)) for digit in str(number)) for number in range(100)]
    machine = Machine()
    machine.log = [nvlink(1, f"{word} Fatal", code) for code in range(13) for word in words]
    machine.log.append(LOG[1])
    log = readings.parse(json.dumps(answer(machine)).encode()).kernel
    assert log is not None
    assert {each.code for each in log.events} == {*range(13), 79}
    assert (len(log.events), log.left_out) == (sweep.CODED_MAX, len(machine.log) - sweep.CODED_MAX)


def test_facts_are_those_that_mean_something_at_rest() -> None:
    names = {each["name"] for each in answer(Machine())["facts"]}  # type: ignore[attr-defined]
    assert {"row_remap_pending", "disk_free", "gpus", "fabric_state", "imex"} <= names
    assert not {"application_clock", "nvlink_domain"} & names


@pytest.mark.parametrize(("held", "judged"), [
    ({"f_bavail": 0, "f_flag": os.ST_RDONLY}, False), ({"f_bavail": 0, "f_blocks": 0}, False), ({"f_bavail": 0}, True),
])  # fmt: skip
def test_a_root_of_an_image_is_not_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: dict[str, int], judged: bool
) -> None:
    real, root = os.statvfs, SimpleNamespace(**{"f_blocks": 5297, "f_frsize": 4096, "f_flag": 0} | held)
    monkeypatch.setattr(os, "statvfs", lambda path: root if path == "/" else real(path))
    monkeypatch.setenv("MUSTER_WORK", str(tmp_path))
    free = {each["device"] for each in answer(Machine())["facts"] if each["name"] == "disk_free"}  # type: ignore[attr-defined]
    assert free == {"disk:work"} | ({"disk:/"} if judged else set())


def test_the_wall_clock_is_read_after_the_gpus_have_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(sweep.time, "time", lambda: now[0])

    def wakes() -> HostHardware:
        now[0] += 55.0
        return Machine()

    assert sweep.sweep(wakes, "", 0.0)["wall"] == 1055.0


@pytest.mark.parametrize(("source", "own"), [("tsc", True), ("", True), ("hpet", False)])
def test_the_clock_of_the_kernel_log_is_the_processors_own(tmp_path: Path, source: str, own: bool) -> None:
    path = tmp_path / clocks.CLOCK_SOURCE.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_text(source + "\n")
    assert (clocks.log_clock(Files(tmp_path)) is not None) is own


def test_a_sensor_that_hangs_is_named_and_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "READING_S", 0.3)

    class Hangs(Machine):
        def counters(self) -> Iterator[Fact]:
            time.sleep(30)
            yield from ()

    found = answer(Hangs())
    assert found["hung"] == ["counters"]
    assert kernel(found)[0] == [79]


def test_a_reading_that_fails_and_a_log_that_cannot_be_read_are_no_zeros() -> None:
    class Broken(Machine):
        log = None

        def states(self) -> Iterator[Fact]:
            yield Fact("gpu_lost", "gpu0", "bool", 0.0)
            raise RuntimeError("NVML: driver/library mismatch")

    found = answer(Broken())
    assert found["kernel"] is None
    assert "mismatch" in found["failed"]["states"]  # type: ignore[index]


def test_without_hardware_the_host_still_answers() -> None:
    def refuses() -> HostHardware:
        raise OSError("no driver")

    found = sweep.sweep(refuses, "", 0.0)
    assert "no driver" in found["failed"]["hardware"]
    assert any(each["name"] == "disk_free" for each in found["facts"])


def test_gpus_that_do_not_wake_cost_no_boot_id_no_kernel_log_and_no_counter_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "OPEN_S", 0.2)
    monkeypatch.setattr(kernel_log, "read", lambda: LOG)
    for path, text in {
        "proc/sys/kernel/random/boot_id": "b2\n",
        "sys/devices/system/edac/mc/mc0/ue_count": "1",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)

    def wakes() -> HostHardware:
        time.sleep(30)
        return Machine()

    found = sweep.sweep(wakes, "b1", 400.0, Files(tmp_path))
    assert (found["hung"], found["boot_id"], found["simulated"]) == (["hardware"], "b2", False)
    assert kernel(found)[0] == [79]
    assert {"name": "edac_uncorrected", "device": "node", "value": 1.0} in found["facts"]
    answered, before = readings.parse(json.dumps(found).encode()), readings.Before("b1", 400.0, seconds=600.0)
    seen, _ = readings.read(answered, before, 0.0, policies=(), gpus=8)
    bad = {each.check for each in seen if each.bad is not False}
    assert {"hung/hardware", "rebooted"} <= bad
    assert not {"gpu_missing", "unread/kernel_log"} & bad, "of the GPUs nothing is known, and the log was read"


def test_gpus_have_time_to_wake_within_the_controllers_limit() -> None:
    limit = Settings.model_fields["sweep_seconds"].default
    assert 45.0 <= sweep.OPEN_S <= limit - 2 * sweep.READING_S, "after it come the readings, then the GPUs' addresses"


def test_a_simulated_machine_says_so_and_nothing_of_its_host(tmp_path: Path) -> None:
    directory = tmp_path / "machine"
    create_machine(directory, "h100-sxm-8", 1, ())
    found = sweep.sweep(lambda: open_simulated(directory), "", 0.0)
    assert found["simulated"] is True
    assert (found["failed"], found["hung"]) == ({}, [])
    names = {each["name"] for each in found["facts"]}
    assert {"gpus", "row_remap_pending"} <= names
    assert not names & {"disk_free", "clock_synchronised", "net_carrier", "service", "nvme_state"}


def test_ports_by_the_adapter_and_by_the_carrier(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("1: DOWN\n")
    net = tmp_path / "sys/class/net/eth0"
    (net / "device").mkdir(parents=True)
    (net / "carrier").write_text("1\n")
    found = sweep.sweep(Machine, "", 0.0, Files(tmp_path))["facts"]
    ports = {each["device"]: each.get("value") for each in found if each["name"] in ("ib_port_active", "net_carrier")}
    assert ports == {"nic:mlx5_0": 0.0, "nic:eth0": 1.0}


def test_ports_that_come_and_go_are_not_the_nodes_own(tmp_path: Path) -> None:
    """Virtual functions and subfunctions, which move into pods, and a BMC's network over USB."""
    pci, usb = tmp_path / "sys/devices/pci0000:00", tmp_path / "sys/devices/pci0000:00/usb1/1-1"
    for name, device, virtual in (("own", pci / "1", ""), ("vf", pci / "2", "physfn"), ("sf", pci / "3", "sfnum"),
                                  ("bmc", usb, "")):  # fmt: skip
        device.mkdir(parents=True)
        if virtual:
            (device / virtual).mkdir()
        for folder in ("net", "infiniband"):
            port = tmp_path / "sys/class" / folder / name
            (port / "ports/1").mkdir(parents=True)
            (port / "ports/1/state").write_text("4: ACTIVE\n")
            (port / "carrier").write_text("1\n")
            (port / "device").symlink_to(device)
    found = sweep.sweep(lambda: Machine(Files(tmp_path)), "", 0.0, Files(tmp_path))["facts"]
    ports = {(each["name"], each["device"]) for each in found if each["device"].startswith("nic:")}
    assert ports == {("ib_port_active", "nic:own"), ("net_carrier", "nic:own"), ("ib_errors", "nic:own")}


def test_what_stands_for_a_virtual_function_in_an_adapters_switch_is_not_the_nodes_own(tmp_path: Path) -> None:
    function = tmp_path / "sys/devices/pci0000:00/0000:41:00.0"
    function.mkdir(parents=True)
    for number, (name, port) in enumerate((("ens1f0np0", "p0"), ("ens1f0r3", "pf0vf3"), ("ens1f0r4", "c1pf0sf88")), 1):
        net, ib = tmp_path / "sys/class/net" / name, tmp_path / f"sys/class/infiniband/mlx5_0/ports/{number}"
        for path, text in {net / "carrier": "1", net / "phys_port_name": port, ib / "state": "4: ACTIVE",
                           ib / "gid_attrs/ndevs/0": name}.items():  # fmt: skip
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        (net / "device").symlink_to(function)
    (tmp_path / "sys/class/infiniband/mlx5_0/device").symlink_to(function)
    found = sweep.sweep(lambda: Machine(Files(tmp_path)), "", 0.0, Files(tmp_path))["facts"]
    ports = {(each["name"], each["device"]) for each in found if each["device"].startswith("nic:")}
    assert ports == {("ib_port_active", "nic:mlx5_0"), ("net_carrier", "nic:ens1f0np0"), ("ib_errors", "nic:mlx5_0")}


def test_adapters_in_the_network_of_a_container_are_named_by_the_address_that_their_ports_had(tmp_path: Path) -> None:
    adapters = tmp_path / "sys/bus/pci/devices"
    for path in ("1/net/eth0", "1/infiniband/mlx5_0", "2/net", "2/infiniband/mlx5_1", "3/net", "3/physfn", "4/drm"):
        (adapters / path).mkdir(parents=True)
    for path, adapter in (("net/eth0", "1"), ("infiniband/mlx5_0", "1"), ("infiniband/mlx5_1", "2")):
        port = tmp_path / "sys/class" / path
        (port / "ports/1").mkdir(parents=True)
        (port / "device").symlink_to(adapters / adapter)
    found = sweep.sweep(Machine, "", 0.0, Files(tmp_path))["facts"]
    lent = [(each["name"], each["device"]) for each in found if each["name"].endswith("_elsewhere")]
    assert lent == [("net_elsewhere", "2")], "of a virtual function nothing is missed"
    at = {each["device"]: each["labels"]["pci"] for each in found if each["name"] in readings.presence.LENT}
    assert at == {"nic:eth0": "1", "nic:mlx5_0": "1", "nic:mlx5_1": "2"}


def test_a_reading_whose_facts_are_cut_has_failed(tmp_path: Path) -> None:
    for number in range(sweep.FACTS_MAX + 1):
        os.makedirs(tmp_path / f"sys/bus/pci/devices/{number}/net")
    found = sweep.sweep(Machine, "", 0.0, Files(tmp_path))
    assert ("ports" in found["failed"], len(found["facts"])) == (True, sweep.FACTS_MAX)
    assert {"row_remap_pending", "imex", "disk_free"} <= {each["name"] for each in found["facts"]}
    assert not {"states", "imex", "space", "counters"} & found["failed"].keys()


@pytest.mark.parametrize(("script", "names"), [
    ("exit 1", None), ("exec sleep 60", None),
    (r"printf 'Id=slurmd.service\nLoadState=loaded\nActiveState=active\n\nId=kubelet.service\nLoadState=not-found\n'",
     ["slurmd"]),
])  # fmt: skip
def test_services_of_a_systemd_that_does_not_answer_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, names: list[str] | None
) -> None:
    """They are not gone then."""
    monkeypatch.setattr(sweep, "SYSTEMD_S", 0.5)
    (tmp_path / "systemctl").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = answer(Machine())
    services = [each["device"] for each in found["facts"] if each["name"] == "service"]  # type: ignore[attr-defined]
    unread = "services" in {*found["hung"], *found["failed"]}  # type: ignore[misc]
    assert (services, unread) == (names or [], names is None)


LOG_OF_NVME = {
    "critical_warning": 5, "temperature": 310, "avail_spare": 4, "spare_thresh": 10, "percent_used": 101,
    "media_errors": "1,204", "num_err_log_entries": 7,
}  # fmt: skip
"""The keys of nvme-cli 2, and one of its ways to write a count."""


def disk(root: Path, name: str, state: str = "live") -> None:
    (root / "sys/class/nvme" / name).mkdir(parents=True)
    (root / "sys/class/nvme" / name / "state").write_text(state + "\n")


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An ``nvme`` of our own; also as the command that sudo would run."""
    for name, text in (("nvme", script), ("sudo", 'shift; exec "$@"')):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def smart(found: dict[str, Any]) -> dict[tuple[str, str], float | None]:
    names = {name for _, name, _ in disks.NUMBERS}
    return {(each["device"], each["name"]): each.get("value") for each in found["facts"] if each["name"] in names}


@pytest.mark.parametrize("root", [True, False])
def test_the_smart_log_of_each_disk_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: bool) -> None:
    disk(tmp_path, "nvme0")
    disk(tmp_path, "nvme1", "dead")
    (tmp_path / "log").write_text(json.dumps(LOG_OF_NVME))
    tool(tmp_path, monkeypatch, f'[ "$*" = "smart-log /dev/nvme0 -o json" ] && cat {tmp_path}/log')
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    found = sweep.sweep(Machine, "", 0.0, Files(tmp_path))
    assert smart(found) == {
        ("disk:nvme0", "nvme_warning"): 5, ("disk:nvme0", "nvme_media_errors"): 1204, ("disk:nvme0", "nvme_used"): 101,
        ("disk:nvme0", "nvme_spare"): 4,
    }  # fmt: skip
    states = {each["device"]: each["text"] for each in found["facts"] if each["name"] == "nvme_state"}
    assert states == {"disk:nvme0": "live", "disk:nvme1": "dead"}


def test_a_disk_that_hangs_costs_its_own_log_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(tmp_path, "nvme0")
    disk(tmp_path, "nvme1")
    monkeypatch.setattr(disks, "SMART_S", 0.5)
    tool(tmp_path, monkeypatch, "case $2 in */nvme0) exec sleep 60;; esac; echo '{\"media_errors\": 0}'")
    found = sweep.sweep(Machine, "", 0.0, Files(tmp_path))
    assert found["hung"] == ["smart:nvme0"]
    assert smart(found)["disk:nvme1", "nvme_media_errors"] == 0
    assert smart(found)["disk:nvme1", "nvme_warning"] is None, "what the log lacks is no zero"


@pytest.mark.parametrize("script", ["exit 1", "echo 'Usage: nvme'", "echo '[]'"])
def test_a_log_that_no_disk_gives_is_one_reading_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    disk(tmp_path, "nvme0")
    disk(tmp_path, "nvme1")
    tool(tmp_path, monkeypatch, script)
    found = sweep.sweep(Machine, "", 0.0, Files(tmp_path))
    assert [name for name in found["failed"] if name.startswith("smart")] == ["smart"]
    assert smart(found) == {}


def test_without_nvme_cli_the_sweep_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk(tmp_path, "nvme0")
    monkeypatch.setattr(disks.shutil, "which", lambda name, path=None: None)
    found = sweep.sweep(Machine, "", 0.0, Files(tmp_path))
    assert "nvme-cli" in found["failed"]["smart"]


def test_when_the_gpus_driver_was_loaded_last() -> None:
    load = "<5>[  250.500000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 2025"
    assert sweep.kernel(LOG, 0.0)["loaded"] is None  # type: ignore[index]
    assert sweep.kernel([LOG[0], load.replace("250", "  2"), load, *LOG[3:]], 301.0)["loaded"] == 250.5  # type: ignore[index]
