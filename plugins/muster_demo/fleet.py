"""The demo's fleet: this machine, truly measured, and seven simulated nodes, each behind an SSH server of its own."""

from __future__ import annotations

import dataclasses
import getpass
import pathlib
import re
import socket

import muster_simulator
from muster.model.nodes import NewNode
from muster.remote.connection.login import Credentials
from muster.remote.connection.ssh import scan_host_key
from muster_demo.draw import Planted, node_names
from muster_demo.hosts import Hosts
from muster_simulator import create_machine

SIMULATED_SKU = "h100-sxm-8"
HOST_SKU = "cpu-generic"
REPAIRED = {"repair": "demo"}
"""The label of nodes that the demo's policies have repaired: the simulated ones."""
POOL = "this-machine"
"""All nodes of the demo are one computer: they share one pool, so that no two of them spoil each other's figures."""


@dataclasses.dataclass(frozen=True)
class Member:
    """One node of the fleet as it is to be enrolled."""

    name: str
    sku: str
    port: int
    simulated: bool
    work_dir: pathlib.Path
    server: str


def host_name() -> str:
    """This machine's name as a node."""
    short = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")
    return f"host-{short or 'local'}"


def build_machines(folder: pathlib.Path, seed: int, faults: tuple[Planted, ...]) -> None:
    """Make the simulated machines, the faulty ones with their fault in their physical state."""
    for number, node in enumerate(node_names()):
        planted = [{"kind": fault.kind, "gpu": fault.gpu} for fault in faults if fault.node == node]
        machine = folder / node / "machine"
        machine.mkdir(parents=True)
        create_machine(machine, model=SIMULATED_SKU, seed=seed * 100 + number, faults=planted)


def start_servers(hosts: Hosts, folder: pathlib.Path) -> list[Member]:
    """Start every node's SSH server, this machine's first; returns the fleet once all of them listen.

    The agent that production sends to nodes holds no simulator, so simulated nodes find one of their own on PYTHONPATH.
    """
    simulator = folder / "simulator"
    simulator.mkdir()
    (simulator / "muster_simulator").symlink_to(pathlib.Path(muster_simulator.__file__).parent)
    started = {
        node: hosts.start_python_server(
            node,
            folder / node / "home",
            {
                **muster_simulator.environment(folder / node / "machine"),
                "PYTHONPATH": str(simulator),
                "OMP_NUM_THREADS": "1",
            },
        )
        for node in node_names()
    }
    name = host_name()
    server = hosts.start_host_server(name)
    fleet = [Member(name, HOST_SKU, server.port, False, folder / name / "work", server.kind)]
    for node, port_file in started.items():
        port = hosts.wait_for_port(node, port_file)
        fleet.append(Member(node, SIMULATED_SKU, port, True, folder / node / "work", "asyncssh's server"))
    return fleet


def describe(member: Member, python: str) -> NewNode:
    """A member as the fleet records enrol it, with the host key that answers now and the interpreter for its jobs."""
    return NewNode(
        name=member.name,
        host="127.0.0.1",
        port=member.port,
        user=getpass.getuser(),
        host_key=scan_host_key("127.0.0.1", member.port, Credentials()),
        sku=member.sku,
        launch={"kind": "python", "python": python},
        work_dir=str(member.work_dir),
        rack="demo",
        pool=POOL,
        labels=REPAIRED if member.simulated else {},
        simulated=member.simulated,
    )
