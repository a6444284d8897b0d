"""The real machine through the seam, and machines on paper for what this one does not have."""

import os

import pytest

import muster_node.hardware
from muster_node import check
from muster_node.hardware import open_hardware
from muster_node.hardware.events import last_time
from muster_node.hardware.host import inventory, kernel_log
from muster_node.hardware.host.kernel_events import device_events
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.host.sensors import HostSensors
from muster_node.hardware.seam import Device, Fact
from muster_node.probes.inventory import Inventory
from muster_simulator import environment


def by_name(facts):
    return {(fact.name, fact.device): fact for fact in facts}


def test_this_machine_is_real_and_knows_itself():
    hardware = open_hardware()
    assert isinstance(hardware, HostHardware)
    assert hardware.simulated is False
    facts = by_name(hardware.inventory())
    assert facts["cpu_threads", "node"].value >= len(os.sched_getaffinity(0))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    assert facts["memory_total", "node"].value == pytest.approx(pages, rel=0.02)
    assert facts["kernel", "node"].text == os.uname().release
    assert facts["boot_id", "node"].text == hardware.boot_id() != ""


def test_every_fact_of_this_machine_has_a_metric_in_the_same_unit_on_the_same_kind_of_device():
    for fact in open_hardware().inventory():
        metric = Inventory.metrics[fact.name]
        assert metric.unit_on(fact.device) == fact.unit, fact
        assert metric.on == fact.device.partition(":")[0].rstrip("0123456789"), fact


def test_unreadable_values_are_a_note_and_never_a_zero(tree):
    for fact in inventory.inventory(tree({"/proc/cpuinfo": ""})):
        if fact.name in ("cpu_threads", "clock_synchronised"):
            continue  # these come from system calls, not from files
        assert fact.value is None, fact
        assert fact.text is None, fact
        assert fact.note, fact


def test_simulated_only_by_the_environment(monkeypatch, tmp_path):
    for name, value in environment(tmp_path / "nowhere").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="nowhere"):
        open_hardware()


@pytest.mark.parametrize("opener", ["", "not_there:open", "muster_node:not_there"])
def test_a_missing_opener_is_never_replaced_by_this_host(monkeypatch, opener):
    monkeypatch.setenv(muster_node.hardware.HARDWARE_ENV, opener)
    with pytest.raises(RuntimeError):
        open_hardware()


def test_cpus_are_those_this_process_may_use():
    hardware = HostHardware()
    assert [device.index for device in hardware.devices("cpu")] == sorted(os.sched_getaffinity(0))
    assert set(hardware.devices("core")) <= set(hardware.devices("cpu"))
    assert hardware.devices("fpga") == []


def test_threads_of_one_core_count_once(tree, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    topology = {"/sys/devices/system/cpu/online": "0-3"}
    for cpu, core in ((0, 0), (1, 1), (2, 0), (3, 1)):
        base = f"/sys/devices/system/cpu/cpu{cpu}/topology/"
        topology |= {base + "physical_package_id": "0", base + "core_id": core}
    hardware = HostHardware(tree(topology))
    assert [device.id for device in hardware.devices("core")] == ["cpu0", "cpu1"]


@pytest.mark.parametrize(
    ("smt", "present", "offline", "count"),
    [
        ("on", "0-7", "", 0.0),
        ("on", "0-7", "2,5-6", 3.0),
        ("notsupported", "0-7", "7-127", 1.0),  # beyond 7 there is none
        ("off", "0-7", "4-7", None),
        ("on", "0-7", None, None),
    ],
)
def test_cpus_that_are_switched_off_are_counted(tree, smt, present, offline, count):
    base = "/sys/devices/system/cpu/"
    files = {base + "smt/control": smt, base + "present": present, base + "online": "0-3"}
    if offline is not None:
        files[base + "offline"] = offline
    fact = by_name(inventory.inventory(tree(files)))["cpu_offline", "node"]
    assert (fact.value, bool(fact.note)) == (count, count is None)


def test_disks_and_ports(tree):
    files = tree(
        {
            "/sys/block/nvme0n1/size": 7501476528,
            "/sys/block/loop0/size": 100,
            "/sys/class/net/eth0/speed": 200000,
            "/sys/class/net/eth0/device/vendor": "0x15b3",
            "/sys/class/net/eth1/speed": -1,
            "/sys/class/net/eth1/device/vendor": "0x15b3",
            "/sys/class/net/lo/speed": "",
            "/sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        }
    )
    facts = by_name(inventory.inventory(files))
    assert facts["disk_size", "disk:nvme0n1"].value == pytest.approx(3840.755982336)
    assert facts["nic_speed", "nic:eth0"].value == 200.0
    assert facts["nic_speed", "nic:eth1"] == Fact("nic_speed", "nic:eth1", "Gb/s", note="not supported")
    assert facts["nic_speed", "nic:mlx5_0"].value == 400.0
    assert ("disk_size", "disk:loop0") not in facts
    assert ("nic_speed", "nic:lo") not in facts


def test_a_placeholder_is_no_serial(tree):
    files = tree({"/sys/class/dmi/id/product_serial": "S4112", "/sys/class/dmi/id/board_serial": "Default string"})
    system, board = inventory.serials(files)
    assert system.text == "S4112"
    assert board.text is None
    assert board.note


def test_counters(tree):
    files = tree(
        {
            "/proc/interrupts": " MCE: 1 2  Machine check exceptions",
            "/sys/devices/system/edac/mc/mc0/ce_count": 3,
            "/sys/devices/system/edac/mc/mc1/ce_count": 4,
            "/sys/devices/system/edac/mc/mc0/ue_count": 0,
            "/sys/devices/system/edac/mc/mc1/ue_count": 0,
        }
    )
    facts = by_name(HostHardware(files).counters())
    assert facts["machine_checks", "node"].value == 3
    assert facts["machine_checks_corrected", "node"].value is None
    assert facts["edac_corrected", "node"].value == 7
    assert facts["edac_uncorrected", "node"].value == 0
    absent = by_name(HostHardware(tree({"/proc/interrupts": ""})).counters())
    assert absent["machine_checks", "node"].value is None


@pytest.mark.parametrize("gone", [0, 255000, -273000])
def test_a_temperature_that_cannot_be_is_no_reading(tree, clock, gone):
    chip = "/sys/class/hwmon/hwmon0/"
    contents = {chip + "name": "coretemp", chip + "temp1_input": gone, chip + "temp2_label": "Inlet"}
    contents[chip + "temp2_input"] = gone
    assert {s.series for s in HostSensors(tree(contents), clock).read()} == {"load"}
    contents[chip + "temp3_input"] = 50000
    assert [s.value for s in HostSensors(tree(contents), clock).read() if s.series == "temperature"] == [50.0]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("Inlet Temp", 24.5), ("System Ambient", 24.5), ("front panel", 24.5), ("Air Intake", 24.5),
        ("Exhaust Temp", None), ("Confrontation", None), ("Package id 0", None),
    ],
)  # fmt: skip
def test_the_inlet_is_known_by_its_label(tree, clock, label, expected):
    contents = {
        "/sys/class/hwmon/hwmon0/name": "acpi_power_meter",
        "/sys/class/hwmon/hwmon0/temp2_label": label,
        "/sys/class/hwmon/hwmon0/temp2_input": 24500,
        "/sys/class/hwmon/hwmon0/temp3_input": 50000,
        "/sys/class/hwmon/hwmon0/temp4_label": "Inlet, which cannot be read",
    }
    inlets = [s for s in HostSensors(tree(contents), clock).read() if s.series == "inlet_temperature"]
    assert [(s.device, s.unit, s.value) for s in inlets] == ([("node", "°C", expected)] if expected else [])


def test_sensors_of_a_server(tree, clock):
    contents = {
        "/sys/class/hwmon/hwmon0/name": "coretemp",
        "/sys/class/hwmon/hwmon0/temp1_input": 61000,
        "/sys/class/hwmon/hwmon0/temp2_input": 64000,
        "/sys/class/hwmon/hwmon1/name": "nvme",
        "/sys/class/hwmon/hwmon1/temp1_input": 90000,
        "/sys/class/powercap/intel-rapl:0/name": "package-0",
        "/sys/class/powercap/intel-rapl:0/energy_uj": 1_000_000,
        "/sys/class/powercap/intel-rapl:0/max_energy_range_uj": 262_143_328_850,
        "/sys/class/powercap/intel-rapl:0:0/name": "dram",
        "/sys/class/powercap/intel-rapl:0:0/energy_uj": 1_000_000,
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": 3_500_000,
        "/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": 5,
        "/proc/stat": "cpu  0 0 0 100 0 0 0 0\ncpu0 0 0 0 100 0 0 0 0",
    }
    sensors = HostSensors(tree(contents), clock)
    first = {(s.series, s.device): s for s in sensors.read()}
    assert first["temperature", "node"].value == 64.0
    assert first["clock", "cpu0"].value == 3500.0
    assert first["throttle", "cpu0"].state == "none"
    assert ("power", "node") not in first
    clock.sleep(2.0)
    tree(
        {
            "/sys/class/powercap/intel-rapl:0/energy_uj": 401_000_000,
            "/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": 6,
            "/proc/stat": "cpu  75 0 0 125 0 0 0 0\ncpu0 75 0 0 125 0 0 0 0",
        }
    )
    second = {(s.series, s.device): s for s in sensors.read()}
    assert second["power", "node"].value == pytest.approx(200.0)
    assert second["throttle", "cpu0"].state == "hw_thermal"
    assert second["utilisation", "cpu0"].value == pytest.approx(75.0)


def test_energy_counter_that_wraps(tree, clock):
    base = "/sys/class/powercap/intel-rapl:0/"
    contents = {base + "name": "package-0", base + "max_energy_range_uj": 1000_000_000, base + "energy_uj": 950_000_000}
    sensors = HostSensors(tree(contents), clock)
    list(sensors.read())
    clock.sleep(1.0)
    tree({base + "energy_uj": 50_000_000})
    power = [s.value for s in sensors.read() if s.series == "power"]
    assert power == [pytest.approx(100.0)]


def test_a_machine_without_sensors_reports_none_of_them(tree, clock):
    sensors = HostSensors(tree({"/proc/stat": ""}), clock)
    assert {sample.series for sample in sensors.read()} == {"load"}


def test_telemetry_of_this_machine_is_plausible():
    hardware = open_hardware()
    list(hardware.telemetry())
    hardware.clock.sleep(0.2)
    samples = list(hardware.telemetry())
    shares = [s.value for s in samples if s.series == "utilisation"]
    assert shares
    assert all(0 <= share <= 100 for share in shares)
    assert all(0 < s.value < 130 for s in samples if s.series == "temperature")


def test_a_gpu_without_a_backend_is_skipped():
    from muster_node.probe import Skip

    with pytest.raises(Skip):
        HostHardware().compute(Device("gpu0", "gpu", 0))


JOURNAL = """#!/bin/sh
case " $* " in
*" -k "*" json "*) cat <<END
{"MESSAGE":"Linux version 6.8.0","PRIORITY":"5","_SOURCE_MONOTONIC_TIMESTAMP":"0"}
{"MESSAGE":"NVRM: Xid (PCI:0000:1b:00): 79, GPU lost.","PRIORITY":"3","_SOURCE_MONOTONIC_TIMESTAMP":"123456789"}
{"MESSAGE":"usb 1-1: new device","PRIORITY":"6","_SOURCE_MONOTONIC_TIMESTAMP":"500000001"}
END
;;
*) echo "Nov 21 10:00:00 node-1 kernel: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus." ;;
esac
"""


def test_a_reader_without_privilege_reads_when_each_message_came(tmp_path, monkeypatch):
    """Under dmesg_restrict only the journal is left; without its times an old error would count as a new one."""
    for name, script in (("dmesg", "#!/bin/sh\nexit 1\n"), ("journalctl", JOURNAL), ("sudo", "#!/bin/sh\nexit 1\n")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(kernel_log, "_read_kmsg", lambda: None)
    log = HostHardware().kernel_log()
    assert [event.at for event in device_events(log)] == [123.456789]
    assert last_time(log) == 500.000001
    assert [line[:3] for line in log] == ["<5>", "<3>", "<6>"]


def test_an_empty_device_in_place_of_the_kernel_log_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """LXC binds /dev/null there: nothing in it is not that nothing happened."""
    monkeypatch.setattr(kernel_log, "_read_kmsg", lambda: "")
    monkeypatch.setattr(kernel_log, "output_of", lambda command: None)
    assert kernel_log.read() is None


def pci(*functions):
    """A tree with so many functions on the bus, each a vendor and a class."""
    return {
        f"/sys/bus/pci/devices/0000:{at:02x}:00.0/{name}": text
        for at, pair in enumerate(functions)
        for name, text in zip(("vendor", "class"), pair, strict=True)
    }


BMC = ("0x1a03", "0x030000")
"""The graphics of an ASPEED."""


@pytest.mark.parametrize(
    ("kind", "needed_by"), [("0x120000", ()), ("0x030200", ("gpu_burn",)), ("0x038000", ("gpu_burn",))]
)
def test_gpus_of_a_vendor_without_queries_are_said_to_be_there(tree, kind, needed_by):
    """A processing accelerator may be an FPGA, which a CPU node may have."""
    files = tree(pci(("0x8086", "0x060400"), BMC, ("0x1002", kind), ("0x1002", kind)))
    count = by_name(HostHardware(files).inventory())["gpu_count", "node"]
    assert count.value is None
    assert "0x1002" in count.note
    item = check._gpus(False, ("gpu_burn",), files)
    assert (item.ok, item.needed_by) == (False, needed_by)
    assert count.note in item.message


def test_a_machine_without_gpus_is_a_cpu_node(tree):
    files = tree(pci(BMC))
    assert ("gpu_count", "node") not in by_name(HostHardware(files).inventory())
    assert check._gpus(False, ("gpu_burn",), files).needed_by == ()


def test_a_gpu_that_is_silent_under_its_own_driver_is_that_drivers(tree):
    item = check._gpus(False, ("gpu_burn",), tree(pci(("0x10de", "0x030200"))))
    assert "NVIDIA" in item.message
