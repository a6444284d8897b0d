"""The bench of the tests of repairs: a node over a real sshd, with stand-ins for what a repair orders.

The machine that runs the tests is not rebooted: ``systemctl reboot`` is a stand-in that changes the boot id that the
server shows (MUSTER_BOOT_ID_FILE), after a while, or never. ``nvidia-smi`` is a stand-in that refuses to reset a GPU in
use, with the original's words and status. What else runs on this machine would keep each repair away, so a stand-in
says whether it is in use.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster import store
from muster.model.nodes import Node
from muster.model.repairs import Bundle, Fault
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import repair
from muster.remote import repairing
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job.zipapp import AgentFile
from muster.remote.repairing import Done, Sent
from muster_criteria.repair.ladder import Rung
from muster_criteria.sku_files.skus import SHIPPED
from tests.muster import fleet
from tests.support import standin
from tests.support.servers import bmc as bmcs
from tests.support.servers import sshd

KEY = RunKey("repair", "this-node__1")
FAULT = {"node": "this-node", "fault": "gpu_memory", "device": "gpu3", "reason": "XID 95 on gpu3"}
RETURN_S = 4.0
SMI = """#!/bin/sh
echo "$@" >>{folder}/calls
[ ! -e {folder}/in-use ] || {{
  echo "GPU 00000000:4E:00.0 is currently in use by one or more other processes (In use by another client)."
  exit 255
}}
echo "GPU 00000000:4E:00.0 was successfully reset."
"""
REBOOT = """#!/bin/sh
echo "$@" >>{folder}/calls
[ -e {folder}/never ] || (sleep 0.5; echo after >{folder}/boot_id) >/dev/null 2>&1 &
"""


@dataclasses.dataclass
class Bench:
    folder: Path
    server: sshd.Sshd

    def connect(self, node: Node) -> ssh.paramiko.SSHClient:
        return ssh.connect(node, Credentials(key_file=str(self.server.key_file)), timeout=30.0)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def node(self) -> Node:
        return store.nodes.get("this-node")

    def carry_out(
        self, rung: Rung, last_boot: str = "", limit_s: float = RETURN_S, part: str = "gpu 1650423000003"
    ) -> Done:
        """Carry a rung out, and look until the node is back or its time is over."""
        done = repairing.carry_out(
            rung, self.node(), Fault("gpu_memory", "gpu3", part), self.connect, last_boot=last_boot,
            serial=store.parts.system_serial("this-node"),
        )  # fmt: skip
        began = time.monotonic()
        while isinstance(done, Sent):
            waited = time.monotonic() - began
            done = repairing.returned(self.node(), self.connect, done, waited, limit_s) or done
        return done


@pytest.fixture
def bench(tmp_path: Path, sqlite_db: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("nvidia-smi", SMI), ("systemctl", REBOOT)):
        (tools / name).write_text(text.format(folder=tmp_path))
        (tools / name).chmod(0o700)
    (tmp_path / "boot_id").write_text("before\n")
    policy = (SHIPPED / "policies" / "repair.yaml").read_text()
    rungs = "[reset_gpu, reboot, power_cycle]"
    (tmp_path / "skus" / "policies").mkdir(parents=True)
    switched_on = policy.replace("enabled: []", f"enabled: [{{label: repair, value: auto, rungs: {rungs}}}]")
    (tmp_path / "skus" / "policies" / "repair.yaml").write_text(switched_on)
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path / "skus"))
    env = {"PATH": f"{tools}:/usr/bin:/bin", "MUSTER_BOOT_ID_FILE": str(tmp_path / "boot_id")}
    monkeypatch.setattr(repair, "build_agent", lambda _: AgentFile(*standin.write(tmp_path / "cache")))
    with sshd.running(tmp_path / "node", env=env) as server:
        there = server.node()
        described = fleet.new_node(
            there.name, host=there.host, port=there.port, user=there.user, work_dir=there.work_dir,
            host_key=" ".join(there.host_key.split()[:2]), labels={"repair": "auto"},
            serials={"gpu3": "1650423000003", "system": f" {bmcs.SERIAL.lower()}"},
            launch={"kind": "python", "python": sys.executable},
        )  # fmt: skip
        store.nodes.add(described)
        store.nodes.move(there.name, State.QUARANTINE, "Ada", "XID 95")
        yield Bench(tmp_path, server)


def by_themselves(bench: Bench) -> None:
    """Let the sweep start repairs."""
    policy, mode = (SHIPPED / "policies" / "health.yaml").read_text(), "\nmode: quarantine"
    assert policy.count(mode) == 1
    groups = f"{mode}\ngroups: [{{label: repair, value: auto, mode: repair}}]"
    (bench.folder / "skus" / "policies" / "health.yaml").write_text(policy.replace(mode, groups))


def begun(fault: dict[str, str] | None = None) -> int:
    """A repair whose evidence was taken."""
    incident = repair.claim(KEY, fault or FAULT)
    store.repairs.keep_bundle(incident, Bundle("/archive/bundle", "ab" * 32, 100))
    return incident


def act(bench: Bench, incident: int) -> dict[str, object]:
    ordered = repair.act(KEY, incident, bench.connect)
    while not repair.returned(KEY, incident, bench.connect, limit_s=RETURN_S):
        time.sleep(0.2)
    return ordered
