"""NVSwitches, and the fabric manager, without which their machines cannot use their NVLinks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from muster_node.hardware.host.inventory import text_fact
from muster_node.hardware.host.sysfs import Files, output_of
from muster_node.hardware.seam import Fact

SERVICE = "nvidia-fabricmanager"
_KNOWN_STATES = ("active", "inactive", "failed", "activating", "deactivating")
_SWITCHES = "/proc/driver/nvidia-nvswitch/devices"
_SWITCH_BIOS = re.compile(r"^BIOS Version:\s*([0-9A-Fa-f.]+)\s*$", re.MULTILINE)
_VERSION = re.compile(r"(\d+(?:\.\d+)+)")


def facts(files: Files) -> Iterator[Fact]:
    """Firmware of each NVSwitch; version of the fabric manager, and its state from systemd."""
    for slot, address in enumerate(files.names(_SWITCHES)):
        found = _SWITCH_BIOS.search(files.text(f"{_SWITCHES}/{address}/information"))
        yield text_fact("nvswitch_firmware", f"nvswitch{slot}", found.group(1) if found else None)
    found = _VERSION.search(output_of(["nv-fabricmanager", "--version"]) or "")
    yield text_fact("fabric_manager_version", "node", found.group(1) if found else None)
    state = (output_of(["systemctl", "is-active", SERVICE], ok_statuses=(0, 3)) or "").strip()
    yield text_fact("fabric_manager", "node", state if state in _KNOWN_STATES else None)
