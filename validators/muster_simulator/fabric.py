"""The links of a simulated machine: NVLink by link, the NVSwitch fabric, and its ports to the cluster."""

from __future__ import annotations

import uuid

from muster_node.hardware.seam import NOT_SUPPORTED, Fact
from muster_simulator.machine import Gpu, Machine
from muster_simulator.state import GpuState, State

_ERROR_KINDS = {4: ("replay", "recovery", "crc"), 5: ("effective", "recovered", "recovery_failed")}
"""Error counters of a link, by generation of NVLink; the first is the one that a noisy link increments."""
_GB = 1e9
_ADAPTER = {"adapter": "MT4129", "board": "MT_0000000838", "link_layer": "InfiniBand"}


def nvlink_facts(machine: Machine, built: Gpu, gpu: GpuState) -> list[Fact]:
    """State and speed of every link, error counters of those that are up, and the GPU's place in the fabric."""
    device, model = f"gpu{built.slot}", machine.model
    facts = [Fact("nvlink_active", device, "count", float(built.nvlinks))]
    for link in range(model.nvlinks):
        up, labels = link < built.nvlinks, {"link": str(link)}
        facts.append(Fact("nvlink_state", device, "bool", float(up), labels=labels))
        if up:
            facts.append(Fact("nvlink_speed", device, "GB/s", model.nvlink_rate / _GB, labels=labels))
    facts.append(Fact("fabric_state", device, "text", text="completed"))
    facts.append(Fact("fabric_healthy", device, "bool", 1.0))
    return facts + nvlink_errors(machine, built, gpu)


def domain_facts(device: str) -> list[Fact]:
    """The identity of no domain, as a GPU of an HGX machine reports it: it has joined the machine's own switches."""
    return [
        Fact("nvlink_domain", device, "text", text=f"{uuid.UUID(int=0)}.0"),
        Fact("fabric_state", device, "text", text="completed"),
        Fact("fabric_healthy", device, "bool", 1.0),
    ]


def nvlink_errors(machine: Machine, built: Gpu, gpu: GpuState) -> list[Fact]:
    """Error counters by link and kind; a noisy link is the GPU's first. Kinds that it lacks are not supported."""
    device, own = f"gpu{built.slot}", _ERROR_KINDS[machine.model.nvlink_generation]
    facts = []
    for kind in own:
        for link in range(built.nvlinks):
            count = float(int(gpu.nvlink_errors)) if kind == own[0] and link == 0 else 0.0
            facts.append(Fact("nvlink_errors", device, "count", count, labels={"kind": kind, "link": str(link)}))
    for kinds in _ERROR_KINDS.values():
        if kinds != own:
            facts += [
                Fact("nvlink_errors", device, "count", labels={"kind": kind}, note=NOT_SUPPORTED) for kind in kinds
            ]
    return facts


def port_facts(machine: Machine, state: State) -> list[Fact]:
    """Speed, state and error counters of the ports to the cluster."""
    facts = []
    for nic in machine.nics:
        device, speed = "nic:" + nic.name, nic.speed if nic.up else None
        why = "" if nic.up else "the port is down"
        facts += [
            Fact("nic_speed", device, "Gb/s", speed, note=why),
            Fact("ib_port_rate", device, "Gb/s", speed, labels=_ADAPTER, note=why),
            Fact("ib_port_active", device, "bool", float(nic.up)),
            Fact("ib_port_state", device, "text", text="ACTIVE" if nic.up else "DOWN"),
            Fact("ib_link_layer", device, "text", text="InfiniBand"),
        ]
    return facts + port_errors(state)


def port_errors(state: State) -> list[Fact]:
    """Error counters of the ports, to be differenced."""
    return [
        Fact("ib_errors", "nic:" + name, "count", float(int(count)), labels={"counter": "symbol_error"})
        for name, count in state.nic_errors.items()
    ]
