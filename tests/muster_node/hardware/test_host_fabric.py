"""Fabric ports, fabric manager and NUMA nodes out of a recorded /sys; what is missing is noted, never zero."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from muster_node.hardware.host import fabric, firmware
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.nvidia import fabric_manager
from muster_node.hardware.seam import NOT_SUPPORTED

SWITCH = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> Files:
    """Two GPUs and three adapters: one beside gpu0 on its switch, one under its root complex, one elsewhere."""
    places = {
        "0000:1b:00.0": SWITCH + "/0000:1b:00.0",
        "0000:1c:00.0": SWITCH + "/0000:1c:00.0",
        "0000:20:00.0": "sys/devices/pci0000:15/0000:15:05.0/0000:20:00.0",
        "0000:c1:00.0": "sys/devices/pci0000:c0/0000:c0:01.0/0000:c1:00.0",
        "0000:9a:00.0": "sys/devices/pci0000:98/0000:98:01.0/0000:9a:00.0",
    }
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    for address, place in places.items():
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / "sys/bus/pci/devices" / address).symlink_to(tmp_path / place)
    (tmp_path / places["0000:1b:00.0"] / "numa_node").write_text("0\n")
    (tmp_path / places["0000:9a:00.0"] / "numa_node").write_text("-1\n")
    for adapter, address in (("mlx5_0", "0000:1c:00.0"), ("mlx5_1", "0000:20:00.0"), ("mlx5_2", "0000:c1:00.0")):
        port = tmp_path / "sys/class/infiniband" / adapter / "ports/1"
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n" if adapter != "mlx5_2" else "1: DOWN\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (port / "link_layer").write_text("InfiniBand\n")
        (port / "counters/symbol_error").write_text("3\n")
        (port / "hw_counters").mkdir()
        (port / "hw_counters/req_transport_retries_exceeded").write_text("2\n")
        (port.parent.parent / "fw_ver").write_text("28.41.1000\n")
        (port.parent.parent / "hca_type").write_text("MT4129\n")
        (port.parent.parent / "device").symlink_to(tmp_path / places[address])
    return Files(tmp_path)


def test_ports_are_reported_with_state_firmware_and_errors(machine: Files) -> None:
    facts = list(fabric.port_facts(machine))
    values = {(fact.name, fact.device): fact.text if fact.value is None else fact.value for fact in facts}
    assert values["ib_port_active", "nic:mlx5_0"] == 1.0
    assert values["ib_port_active", "nic:mlx5_2"] == 0.0
    assert values["ib_port_state", "nic:mlx5_2"] == "DOWN"
    assert values["ib_link_layer", "nic:mlx5_1"] == "InfiniBand"
    assert values["ib_firmware", "nic:mlx5_0"] == "28.41.1000"
    errors = {fact.labels["counter"]: fact for fact in facts if (fact.name, fact.device) == ("ib_errors", "nic:mlx5_0")}
    assert errors["symbol_error"].value == 3
    assert errors["req_transport_retries_exceeded"].value == 2
    assert (errors["out_of_sequence"].value, errors["out_of_sequence"].note) == (None, NOT_SUPPORTED)


def test_firmware_is_read_without_privilege(
    tree: Callable[[dict[str, str]], Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVSwitch lines are those of NVIDIA's procfs_nvswitch.c, "N/A" where the driver does not know the version."""
    monkeypatch.setattr(fabric_manager, "output_of", lambda command, **more: "Fabric Manager version is : 580.126.09\n")
    files = tree(
        {
            "/sys/class/dmi/id/sys_vendor": "Acme",
            "/sys/class/dmi/id/bios_version": "2.21.1",
            "/sys/devices/platform/ipmi_bmc.0/firmware_revision": "24.9",
            "/proc/driver/nvidia-nvswitch/devices/0000:05:00.0/information": "BIOS Version: 96.10.6d.00.01",
            "/proc/driver/nvidia-nvswitch/devices/0000:06:00.0/information": "BIOS Version: N/A",
        }
    )
    facts = {(fact.name, fact.device): fact.text for fact in (*firmware.firmware(files), *fabric_manager.facts(files))}
    assert facts == {
        ("system_vendor", "node"): "Acme",
        ("bios_version", "node"): "2.21.1",
        ("bmc_firmware", "node"): "24.9",
        ("nvswitch_firmware", "nvswitch0"): "96.10.6d.00.01",
        ("nvswitch_firmware", "nvswitch1"): None,
        ("fabric_manager_version", "node"): "580.126.09",
        ("fabric_manager", "node"): None,
    }
    without = {fact.name: fact for fact in firmware.firmware(tree({"/sys/class/net/x/device/a": ""}))}
    assert (without["nic_firmware"].text, bool(without["nic_firmware"].note)) == (None, True)
    assert "fabric_manager_version" not in without


def test_the_rate_of_a_port_that_is_up_carries_its_adapter(machine: Files) -> None:
    rates = {fact.device: fact for fact in fabric.port_facts(machine) if fact.name == "ib_port_rate"}
    assert {tuple(fact.labels.items()) for fact in rates.values()} == {
        (("adapter", "MT4129"), ("board", "unknown"), ("link_layer", "InfiniBand"))
    }
    assert rates["nic:mlx5_0"].value == 400.0
    assert rates["nic:mlx5_2"].value is None
    assert rates["nic:mlx5_2"].note


def test_an_adapter_carries_its_own_interfaces_and_those_above_them(machine: Files, tmp_path: Path) -> None:
    assert fabric.interfaces(machine, "mlx5_0") == set()
    (tmp_path / "sys/class/infiniband/mlx5_0/device/net/ens1").mkdir(parents=True)
    table = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs"
    table.mkdir(parents=True)
    for entry, name in enumerate(("ens1\n", "bond0\n", "")):
        (table / str(entry)).write_text(name)
    assert fabric.interfaces(machine, "mlx5_0") == {"ens1", "bond0"}


def test_boards_of_one_model_are_no_siblings(machine: Files, tmp_path: Path) -> None:
    """A ConnectX-7 is also sold with 200 Gb/s, for storage."""
    for adapter, board in (("mlx5_0", "MT_0000000838"), ("mlx5_1", "MT_0000000834")):
        (tmp_path / "sys/class/infiniband" / adapter / "board_id").write_text(board + "\n")
    facts = {(fact.name, fact.device): fact.labels for fact in fabric.port_facts(machine)}
    assert facts["ib_port_rate", "nic:mlx5_0"] != facts["ib_port_rate", "nic:mlx5_1"]
    assert facts["ib_firmware", "nic:mlx5_0"] == facts["ib_firmware", "nic:mlx5_1"]


def test_a_machine_without_ports_has_none(tmp_path: Path) -> None:
    assert list(fabric.port_facts(Files(tmp_path))) == []


def test_a_gpu_has_the_numa_node_that_the_kernel_states(machine: Files) -> None:
    (numa_node,) = fabric.topology(machine, {"gpu0": "00000000:1B:00.0"})
    assert (numa_node.name, numa_node.device, numa_node.value) == ("gpu_numa_node", "gpu0", 0)


def test_numa_nodes_unknown_to_the_kernel_are_noted(machine: Files) -> None:
    facts = {fact.name: fact for fact in fabric.topology(machine, {"gpu0": "0000:9a:00"})}
    assert (facts["gpu_numa_node"].value, facts["gpu_numa_node"].note) == (None, NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("output", "text"), [("active\n", "active"), ("inactive\n", "inactive"), ("unknown\n", None), (None, None)]
)
def test_the_fabric_managers_state_comes_from_systemd(
    monkeypatch: pytest.MonkeyPatch, output: str | None, text: str | None
) -> None:
    monkeypatch.setattr(fabric_manager, "output_of", lambda command, ok_statuses=(): output if ok_statuses else None)
    *_, manager = fabric_manager.facts(Files())
    assert (manager.text, manager.note) == (text, "" if text else NOT_SUPPORTED)
