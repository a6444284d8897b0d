"""Local disks by the kernel's view: which are the node's own, and which come and go."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_node.hardware.host import disks, kernel_log
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import NOT_SUPPORTED


@pytest.mark.parametrize(("transport", "model", "attached"), [
    ("pcie", "SAMSUNG MZQL2", None), ("", "SAMSUNG MZQL2", None), ("rdma", "Linux", "rdma"),
    ("pcie", "Amazon Elastic Block Store", "volume"),
])  # fmt: skip
def test_a_volume_is_told_from_a_disk(tmp_path: Path, transport: str, model: str, attached: str | None) -> None:
    controller = tmp_path / "sys/class/nvme/nvme0"
    controller.mkdir(parents=True)
    for name, text in (("state", "live"), ("transport", transport), ("model", model)):
        (controller / name).write_text(f"{text}\n")
    (found,) = disks.states(Files(tmp_path))
    assert (found.text, found.labels.get("attached")) == ("live", attached)


def errors(written: str) -> float | None:
    log = f'{{"critical_warning": 0, {written}}}'.encode()
    return next(each.value for each in disks.parse("nvme0", log) if each.name == "nvme_media_errors")


@pytest.mark.parametrize(("written", "count"), [
    ('"media_errors": 1204', 1204), ('"media_errors": {"value": 1204}', 1204), ('"media_errors": "0"', 0),
    ('"media_errors": "1,204"', 1204), ('"media_errors": "1.234.567"', 1_234_567),
    ('"media_errors": "12\\u202f345"', 12_345), ('"media_err": 1204', None), ('"media_errors": null', None),
])  # fmt: skip
def test_a_count_of_a_smart_log_is_read_in_any_locale(written: str, count: float | None) -> None:
    """As nvme-cli writes it: 1.16 a number, 2 a number or a text, whose separator is the locale's."""
    assert errors(written) == count


@pytest.mark.parametrize("value", ['"12,04"', '"1.2e3"', '"-"', '""', "true", "[]", '{"raw": 1}'])
def test_a_count_that_is_no_number_is_no_count_that_is_missing_and_hides_no_warning(value: str) -> None:
    log = f'{{"critical_warning": 4, "media_errors": {value}}}'.encode()
    warning, errors_, *_ = disks.parse("nvme0", log)
    assert (warning.value, errors_.value) == (4.0, None)
    assert errors_.note != NOT_SUPPORTED


def scsi(root: Path, name: str, place: str, address: str) -> None:
    """A SCSI disk at ``place`` of the machine."""
    device = root / "sys/devices/pci0000:00" / place / address
    device.mkdir(parents=True)
    (device / "state").write_text("running\n")
    (root / "sys/block" / name).mkdir(parents=True)
    (root / "sys/block" / name / "removable").write_text("1\n")
    (root / "sys/block" / name / "device").symlink_to(device)


def test_other_local_disks_and_raids(tmp_path: Path) -> None:
    scsi(tmp_path, "sda", "ata1/host0/target0:0:0", "0:0:0:0")  # in a bay for hot swapping
    scsi(tmp_path, "sdb", "usb1/1-14/host7/target7:0:0", "7:0:0:0")
    for path, text in {"md0/md/degraded": "1", "md1/size": "8"}.items():
        file = tmp_path / "sys/block" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    found = {each.device: each.text or each.value for each in disks.states(Files(tmp_path))}
    assert found == {"disk:sda": "running", "disk:md0": 1.0}


def lost(disk: str, host: int) -> list[str]:
    """What the kernel says when a disk goes away under a reader."""
    return [
        f"<6>[ 960.1] sd {host}:0:0:0: [{disk}] tag#0 FAILED Result: hostbyte=DID_NO_CONNECT driverbyte=DRIVER_OK",
        f"<3>[ 960.2] I/O error, dev {disk}, sector 0 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
        f"<3>[ 960.3] Buffer I/O error on dev {disk}1, logical block 0, async page read",
        f"<3>[ 960.4] sd {host}:0:0:0: rejecting I/O to offline device",
    ]


@pytest.mark.parametrize(("began", "here", "kept"), [
    (["<6>[ 900.1] scsi host7: usb-storage 1-14.1:1.0", "<5>[ 900.2] sd 7:0:0:0: [sdb] Attached SCSI disk"], False, 0),
    (["<6>[ 900.1] scsi host7: uas", "<6>[ 930.1] scsi host7: ahci"], False, 4),
    ([], True, 0),
    ([], False, 4),
])  # fmt: skip
def test_the_kernel_says_nothing_of_disks_over_usb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: list[str], here: bool, kept: int
) -> None:
    """A BMC's virtual disk gives errors when it is taken away. The log names it, or /sys while it is there."""
    if here:
        scsi(tmp_path, "sdb", "usb1/1-14/host7/target7:0:0", "7:0:0:0")
    own, others = lost("sda", 0), lost("sdb", 7)
    monkeypatch.setattr(kernel_log, "read", lambda: [*began, *own, *others])
    log = set(HostHardware(Files(tmp_path)).kernel_log() or ())
    assert (len(log & set(others)), set(own) <= log) == (kept, True)
