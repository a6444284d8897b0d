"""A node's side of the fabric: InfiniBand and RoCE ports, and the NUMA node of each GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from muster_node.hardware.events import normal_pci
from muster_node.hardware.host.inventory import fact, text_fact
from muster_node.hardware.host.parse import parse_infiniband_rate
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import NOT_SUPPORTED, Fact

_IB = "/sys/class/infiniband"
_ACTIVE = "ACTIVE"
_REPRESENTOR = re.compile(r"(vf|sf)\d+$")
"""The kernel's name of a port that stands for a virtual function or a subfunction: "pf0vf3" (net/devlink/port.c)."""

# Error counters, in two folders of each port. What a healthy port may have of each is in the SKU files.
_ERRORS = (
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/local_link_integrity_errors",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/req_transport_retries_exceeded",
    "hw_counters/req_rnr_retries_exceeded",
    "hw_counters/roce_slow_restart",
)


def adapters(files: Files) -> list[str]:
    """The RDMA devices."""
    return files.names(_IB)


def ports(files: Files) -> list[tuple[str, str, str]]:
    """(device, adapter, path) of every port that ``stays``; devices are named as ``inventory`` names them for their
    speed."""
    found = []
    for adapter in adapters(files):
        for port in files.names(f"{_IB}/{adapter}/ports"):
            device = "nic:" + adapter if port == "1" else f"nic:{adapter}/{port}"
            path = f"{_IB}/{adapter}/ports/{port}/"
            net = files.text(path + "gid_attrs/ndevs/0")
            if stays(files, f"{_IB}/{adapter}") and not (net and _represents(files, f"/sys/class/net/{net}")):
                found.append((device, adapter, path))
    return found


def stays(files: Files, interface: str) -> bool:
    """Whether an interface is the node's own. Interfaces of containers (virtual functions, subfunctions, and their
    representors in the adapter's switch) and of USB (a BMC's) come and go, and need no link."""
    device = f"{interface}/device"
    lent = any(files.exists(f"{device}/{each}") for each in ("physfn", "sfnum"))
    return not lent and "/usb" not in files.real(device) and not _represents(files, interface)


def _represents(files: Files, interface: str) -> bool:
    """Whether a network interface is the representor of a virtual function or subfunction in its adapter's switch."""
    return _REPRESENTOR.search(files.text(f"{interface}/phys_port_name")) is not None


def interfaces(files: Files, adapter: str) -> set[str]:
    """The network interfaces whose packets an adapter carries: its own and, for RoCE, those above them (VLAN, bond)."""
    base = f"{_IB}/{adapter}"
    tables = [f"{base}/ports/{port}/gid_attrs/ndevs" for port in files.names(f"{base}/ports")]
    above = {files.text(f"{table}/{entry}") for table in tables for entry in files.names(table)}
    return {*files.names(f"{base}/device/net"), *filter(None, above)}


def port_facts(files: Files) -> Iterator[Fact]:
    """State, rate, link layer and firmware of every port, and its error counters."""
    for device, adapter, path in ports(files):
        state = files.text(path + "state")
        active = float(_ACTIVE in state) if state else None
        yield fact("ib_port_active", device, "bool", active)
        # By model of adapter, so that a port is compared with ports of its kind only; one model has boards of several
        # rates, and a board has ports of several link layers.
        kind = {"adapter": files.text(f"{_IB}/{adapter}/hca_type") or "unknown"}
        own = {
            **kind,
            "board": files.text(f"{_IB}/{adapter}/board_id") or "unknown",
            "link_layer": files.text(path + "link_layer") or "unknown",
        }
        rate = parse_infiniband_rate(files.text(path + "rate")) if active else None
        yield Fact("ib_port_rate", device, "Gb/s", rate, labels=own, note="" if rate else "the port is not up")
        yield text_fact("ib_port_state", device, state.partition(":")[2].strip() or None)
        yield text_fact("ib_link_layer", device, files.text(path + "link_layer") or None)
        firmware = files.text(f"{_IB}/{adapter}/fw_ver") or None
        yield Fact("ib_firmware", device, "text", text=firmware, labels=kind, note="" if firmware else NOT_SUPPORTED)
    yield from port_errors(files)


def port_errors(files: Files) -> Iterator[Fact]:
    """Error counters of every port, to be differenced."""
    for device, _, path in ports(files):
        for counter in _ERRORS:
            labels = {"counter": counter.rpartition("/")[2]}
            count = files.number(path + counter)
            note = "" if count is not None else NOT_SUPPORTED
            yield Fact("ib_errors", device, "count", count, labels=labels, note=note)


def port_links(files: Files) -> dict[str, bool]:
    """Whether each port is ACTIVE, by device; without those whose state cannot be read."""
    states = {device: files.text(path + "state") for device, _, path in ports(files)}
    return {device: _ACTIVE in state for device, state in states.items() if state}


def topology(files: Files, gpus: dict[str, str]) -> Iterator[Fact]:
    """For each GPU (device → PCI address) its NUMA node."""
    for device, address in gpus.items():
        node = files.number(f"/sys/bus/pci/devices/{normal_pci(address)}.0/numa_node")
        yield fact("gpu_numa_node", device, "count", node if node is not None and node >= 0 else None)
