"""Versions of firmware other than the GPUs': BIOS, BMC, NICs."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Iterator

from muster_node.hardware.host.inventory import text_fact
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import Fact

_SIOCETHTOOL = 0x8946
_GET_DRIVER_INFO = 3
_DRIVER_INFO = struct.Struct("=I32s32s32s32s32s12s5I")  # struct ethtool_drvinfo of linux/ethtool.h


def firmware(files: Files) -> Iterator[Fact]:
    """Maker and versions of the machine."""
    yield text_fact("system_vendor", "node", files.text("/sys/class/dmi/id/sys_vendor") or None)
    yield text_fact("bios_version", "node", files.text("/sys/class/dmi/id/bios_version") or None)
    # By the kernel's IPMI driver: no login, and unlike ipmitool no privilege.
    bmcs = files.names("/sys/devices/platform", "ipmi_bmc.*")
    for bmc in bmcs[:1] or [""]:
        path = f"/sys/devices/platform/{bmc}/firmware_revision"
        yield text_fact("bmc_firmware", "node", files.text(path) or None, "" if bmc else "the kernel knows no BMC")
    for name in files.names("/sys/class/net"):
        if files.exists(f"/sys/class/net/{name}/device"):
            yield text_fact("nic_firmware", "nic:" + name, nic_firmware(name))


def nic_firmware(name: str) -> str | None:
    """Firmware of a network interface as its driver reports it (ETHTOOL_GDRVINFO); None where it reports none."""
    info = array.array("B", _DRIVER_INFO.pack(_GET_DRIVER_INFO, *[b""] * 6, *[0] * 5))
    request = struct.pack("16sP16x", name.encode()[:15], info.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket.fileno(), _SIOCETHTOOL, request)
    except OSError:
        return None
    text = _DRIVER_INFO.unpack(info.tobytes())[3].split(b"\0")[0].decode("ascii", "replace").strip()
    return text if text and text != "N/A" else None
