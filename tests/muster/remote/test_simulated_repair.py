"""A simulated GPU is reset by its simulator over a real sshd; no command that would concern this machine is sent."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import muster_simulator
from muster.model.nodes import Node
from muster.model.repairs import Fault, Outcome
from muster.model.states import State
from muster.remote import repairing
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job.zipapp import AgentFile, build_agent
from muster.remote.repairing import Done
from muster_criteria.repair.ladder import Rung
from muster_simulator import SimulatedHardware, create_machine, load_machine
from tests.support.servers import sshd

pytestmark = pytest.mark.needs_sshd
GPU = 3
TOOL = """#!/bin/sh
echo "$0 $@" >>{folder}/calls
"""


@dataclasses.dataclass
class Bench:
    folder: Path
    server: sshd.Sshd
    agent: AgentFile
    node: Node

    def connect(self, node: Node) -> ssh.paramiko.SSHClient:
        return ssh.connect(node, Credentials(key_file=str(self.server.key_file)), timeout=30.0)

    def repair(self, rung: Rung, **changed: object) -> object:
        serial = load_machine(self.folder / "machine").gpus[GPU].serial
        fault = Fault("gpu_memory", f"gpu{GPU}", f"gpu {serial}")
        node = dataclasses.replace(self.node, **changed)  # type: ignore[arg-type]
        return repairing.carry_out(rung, node, fault, self.connect, last_boot="before", agent=self.agent)

    @property
    def pending(self) -> list[str]:
        states = SimulatedHardware(self.folder / "machine").states()
        return [fact.device for fact in states if fact.name == "row_remap_pending" and fact.value]

    @property
    def calls(self) -> str:
        path = self.folder / "calls"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    create_machine(tmp_path / "machine", faults=[{"kind": "row_remap_pending", "gpu": GPU}])
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("nvidia-smi", "systemctl", "sudo", "reboot"):
        (tools / name).write_text(TOOL.format(folder=tmp_path))
        (tools / name).chmod(0o700)
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "muster_simulator").symlink_to(Path(muster_simulator.__file__).parent)
    env = {
        "PATH": f"{tools}:/usr/bin:/bin", "PYTHONPATH": str(packages),
        **muster_simulator.environment(tmp_path / "machine"),
    }  # fmt: skip
    with sshd.running(tmp_path / "node", env=env) as server:
        launch = {"kind": "python", "python": sys.executable}
        there, now = server.node(), datetime.datetime.now(datetime.UTC)
        node = Node(
            there.name, there.host, there.port, there.user, " ".join(there.host_key.split()[:2]), "h100-sxm-8",
            State.QUARANTINE, launch, there.work_dir, "", "", {}, simulated=True, added_at=now,
        )  # fmt: skip
        yield Bench(tmp_path, server, build_agent(tmp_path / "agents"), node)


def test_a_reset_repairs_a_simulated_gpu_and_runs_no_command(bench: Bench) -> None:
    assert bench.pending == [f"gpu{GPU}"]
    done = bench.repair(Rung.RESET_GPU)
    assert isinstance(done, Done)
    assert done.outcome is Outcome.SUCCEEDED, done.detail
    assert bench.pending == []
    assert bench.calls == ""


@pytest.mark.parametrize("rung", [each for each in Rung if each is not Rung.RESET_GPU])
def test_nothing_else_is_done_about_a_simulated_node(bench: Bench, rung: Rung) -> None:
    done = bench.repair(rung, bmc={"url": "https://192.0.2.1"})
    assert isinstance(done, Done)
    assert done.outcome is Outcome.CANCELLED
    assert bench.calls == ""


def test_a_gpu_that_computes_is_not_reset(bench: Bench) -> None:
    hardware = SimulatedHardware(bench.folder / "machine")
    with hardware.loading([each for each in hardware.devices("gpu") if each.index == GPU]):
        done = bench.repair(Rung.RESET_GPU)
    assert isinstance(done, Done)
    assert done.outcome is Outcome.TRANSIENT
    assert bench.pending == [f"gpu{GPU}"]


def test_a_real_machine_that_the_records_call_simulated_is_left_alone(bench: Bench) -> None:
    launch = {"kind": "python", "python": sys.executable, "env": {"MUSTER_HARDWARE": ""}}
    done = bench.repair(Rung.RESET_GPU, launch=launch)
    assert isinstance(done, Done)
    assert done.outcome is Outcome.TRANSIENT
    assert "reset" not in bench.calls
    assert bench.pending == [f"gpu{GPU}"]
