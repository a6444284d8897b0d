"""Local disks as the sweep reads them: the kernel's view of each, and the SMART log of NVMe disks by nvme-cli.

Disks over USB, such as a BMC's virtual one, come and go: nothing is read of them, and what the kernel logs of them is
no fault. That a disk is removable is no sign of it: a SATA disk in a bay for hot swapping is, too.

The JSON is that of ``nvme smart-log`` of nvme-cli 1 and 2, of which some write counts as the locale does, as "1,204"
(``uint128_t_to_l10n_string`` of its util/types.c); bits of ``critical_warning`` are those of the NVMe Base
Specification 2.0 (log page 02h).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator

from muster_node import privilege
from muster_node.bounded import Hung
from muster_node.hardware.host.inventory import fact, text_fact
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import NOT_SUPPORTED, Fact

SMART_S = 8.0
"""A healthy disk answers within milliseconds. Less than the sweep waits for a reading, so no command is left behind."""
VOLUMES = ("Amazon Elastic Block Store", "nvme_card-pd")
"""Models of NVMe controllers in virtual machines whose disk lies elsewhere: people attach and detach them."""
NUMBERS = (
    ("critical_warning", "nvme_warning", "bits"), ("media_errors", "nvme_media_errors", "count"),
    ("percent_used", "nvme_used", "%"), ("avail_spare", "nvme_spare", "%"),
)  # fmt: skip
"""(the log's name, the fact's name, its unit)."""
_COUNT = re.compile(r"\d+|\d{1,3}(\D\d{3})+")
"""A count in any locale: none has a fraction."""
_HOST = re.compile(r"\bscsi host(\d+): (\S+)")
"""A SCSI host begins: its number, and its driver (a later one may have that number)."""
_DISK = re.compile(r"\bsd (\d+):\d+:\d+:\d+: (?:\[(sd[a-z]+)\])?")
_NAME = re.compile(r"\b(sd[a-z]+)\d*\b")
_USB_DRIVERS = ("usb-storage", "uas")


def states(files: Files) -> Iterator[Fact]:
    """The kernel's state of each NVMe controller and SCSI or SATA disk, and the missing members of each RAID.

    An NVMe controller that may come and go (a volume over a network, or of a cloud) has the label ``attached``.
    """
    for name in files.names("/sys/class/nvme"):
        base = f"/sys/class/nvme/{name}/"
        state, transport = files.text(base + "state"), files.text(base + "transport")
        volume = files.text(base + "model") in VOLUMES
        attached = "volume" if volume else transport if transport != "pcie" else ""
        labels = {"attached": attached} if attached else {}
        note = "" if state else NOT_SUPPORTED
        yield Fact("nvme_state", "disk:" + name, "text", text=state or None, labels=labels, note=note)
    for name in files.names("/sys/block", "sd*"):
        if _usb_host(files, name) is None:
            yield text_fact("disk_state", "disk:" + name, files.text(f"/sys/block/{name}/device/state") or None)
    for name in files.names("/sys/block", "md*"):
        missing = files.number(f"/sys/block/{name}/md/degraded")
        if missing is not None:  # RAID 0 has no such file
            yield fact("raid_missing", "disk:" + name, "count", missing)


def _usb_host(files: Files, disk: str) -> str | None:
    """The number of the SCSI host by which a disk is attached over USB; None for any other disk."""
    above, _, place = files.real(f"/sys/block/{disk}/device").rpartition(os.sep)
    return place.partition(":")[0] if "/usb" in above else None


def without_usb(log: Iterable[str], files: Files) -> list[str]:
    """The kernel log without lines about disks over USB: those that its own lines identify, gone ones too, and those in
    /sys, whose first lines it may have lost."""
    now = {name: _usb_host(files, name) for name in files.names("/sys/block", "sd*")}
    names = {name for name, host in now.items() if host is not None}
    hosts = {host for host in now.values() if host is not None}
    return [line for line in log if not _of_usb(line, hosts, names)]


def _of_usb(line: str, hosts: set[str], names: set[str]) -> bool:
    """Whether a line is about a disk over USB. ``hosts``, ``names``: those before it, which the line may change."""
    if "sd" not in line and "scsi host" not in line:
        return False
    if host := _HOST.search(line):
        hosts.discard(host.group(1))
        if host.group(2) in _USB_DRIVERS:
            hosts.add(host.group(1))
    disk = _DISK.search(line)
    if disk is None:
        return not names.isdisjoint(_NAME.findall(line))
    if name := disk.group(2):
        names.discard(name)
        if disk.group(1) in hosts:
            names.add(name)
    return disk.group(1) in hosts


def live(files: Files) -> list[str]:
    """NVMe controllers that answer the kernel: one that does not would not answer a command either."""
    return [name for name in files.names("/sys/class/nvme") if files.text(f"/sys/class/nvme/{name}/state") == "live"]


def smart(disk: str) -> list[Fact]:
    """The SMART log of an NVMe controller. Raises OSError with the reason where it is not read, Hung without an end."""
    command = privilege.smart_log(disk)
    if shutil.which(command[0]) is None:
        raise OSError("nvme-cli is not installed")
    root = os.geteuid() == 0
    answer = privilege.output_within(command if root else privilege.as_root(command), SMART_S)
    if answer is None:
        raise Hung(f"nvme smart-log did not end within {SMART_S:.0f} s")
    status, out = answer
    if status != 0:
        raise OSError(f"nvme smart-log ended with status {status}" + ("" if root else ": it needs root by sudo"))
    return list(parse(disk, out))


def parse(disk: str, out: bytes) -> Iterator[Fact]:
    """The facts of a log. A missing one is not supported; one that is no number has a note, since a later nvme-cli may
    write it differently. Raises OSError for text that is no JSON object."""
    try:
        log = json.loads(out)
    except (ValueError, RecursionError):
        log = None
    if not isinstance(log, dict):
        raise OSError("nvme smart-log gave no JSON object")
    for key, name, unit in NUMBERS:
        value = log.get(key)
        if isinstance(value, dict):  # the verbose form names each bit
            value = value.get("value", "")
        if isinstance(value, str) and _COUNT.fullmatch(value):
            value = int(re.sub(r"\D", "", value))
        odd = value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)))
        note = f"nvme smart-log gave no number for {key}: {str(log[key])[:40]!r}" if odd else ""
        yield fact(name, "disk:" + disk, unit, None if odd or value is None else float(value), note)
