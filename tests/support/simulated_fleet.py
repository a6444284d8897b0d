"""Many simulated nodes of one process: each an SSH server with its own port, host key, home and machine.

The nodes keep their own diary: every start of the node side there writes down the stage and the job before anything
else. Their intake lasts until the test opens the gate, so that any number of nodes wait at the same time.
Run as ``python -m tests.support.simulated_fleet CONFIG.json…``, one ``muster_demo.sshserver.Config`` a node.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import getpass
import json
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

import muster_simulator
from muster import store
from muster.model.nodes import NewNode
from muster_criteria.sku_files.skus import SHIPPED
from muster_demo.hosts import Keys, make_client_keys, make_key
from muster_demo.services import Supervisor
from muster_demo.sshserver import Config, serve
from muster_simulator import create_machine

SERVICE = "nodes"
LISTENING_S = 60.0
FILES = Path(__file__).parents[1] / "bench" / "fleet_files"
GATED_STAGE = "intake"

# The gate is a lock: waiting for it costs nothing, and it opens by itself if the test dies.
INTERPRETER = """#!/bin/sh
if [ "$2" = run ]; then
  stage=$(sed -n 's/.*"stage": *"\\([a-z_]*\\)".*/\\1/p' "$3")
  echo "$stage ${{3%/*}}" >>"$HOME/starts"
  [ "$stage" != {stage} ] || flock --shared '{gate}' true
fi
exec '{python}' "$@"
"""


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of the node side, as the node itself wrote it down."""

    node: str
    stage: str
    job: str


class Gate:
    """Keeps nodes waiting in their first stage while it is shut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held: IO[str] = path.open("w")

    def shut(self) -> None:
        """Block all callers from now on."""
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def open(self) -> None:
        """Release all callers."""
        fcntl.flock(self._held, fcntl.LOCK_UN)


class SimulatedFleet:
    """The nodes of one benchmark or test, in a folder."""

    def __init__(self, folder: Path, names: Iterable[str], seed: int, faults: Mapping[str, str]) -> None:
        """``faults``: {node: kind of fault on its GPU 0}."""
        self.folder = folder
        self.names = tuple(names)
        self.keys: Keys = make_client_keys(folder / "keys")
        self.gate = Gate(folder / "gate")
        self.python = folder / "python"
        self.python.write_text(INTERPRETER.format(stage=GATED_STAGE, gate=self.gate.path, python=sys.executable))
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)
        for number, name in enumerate(self.names):
            planted = [{"kind": faults[name], "gpu": 0}] if name in faults else []
            machine = self._of(name) / name
            machine.mkdir(parents=True)
            create_machine(machine, seed=seed * 1000 + number, faults=planted)

    def start(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        """Start the servers as one service; returns once all of them listen."""
        configs = [self._config(name, environment) for name in self.names]
        command = [sys.executable, "-m", "tests.support.simulated_fleet", *configs]
        supervisor.start(SERVICE, command, environment)
        ports = [self._of(name) / "port" for name in self.names]
        supervisor.wait_until("the nodes' servers", lambda: all(port.exists() for port in ports), LISTENING_S)

    def enrol(self, sku: str, labels: Mapping[str, str] = {}) -> None:
        """Write every node into the fleet records."""
        for name in self.names:
            store.nodes.add(
                NewNode(
                    name=name,
                    host="127.0.0.1",
                    port=self._port(name),
                    user=getpass.getuser(),
                    host_key=(self._of(name) / "host_key.pub").read_text(),
                    sku=sku,
                    launch={"kind": "python", "python": str(self.python)},
                    work_dir=str(self._of(name) / "work"),
                    simulated=True,
                    labels=dict(labels),
                    bmc=self._bmc(name),
                )
            )

    def starts(self) -> list[Start]:
        """Every start on every node."""
        found = []
        for name in self.names:
            diary = self._of(name) / "starts"
            for line in diary.read_text().splitlines() if diary.exists() else []:
                stage, job = line.split(" ", 1)
                found.append(Start(name, stage, Path(job).name))
        return found

    def ports(self) -> set[int]:
        """Where the nodes listen."""
        return {self._port(name) for name in self.names}

    def _port(self, name: str) -> int:
        return int((self._of(name) / "port").read_text())

    def _bmc(self, name: str) -> dict[str, Any]:
        return {}

    def _of(self, name: str) -> Path:
        return self.folder / "nodes" / name

    def _config(self, name: str, environment: Mapping[str, str]) -> str:
        folder = self._of(name)
        (folder / "host_key.pub").write_text(make_key(folder / "host_key"))
        config = Config(
            host_key=str(folder / "host_key"),
            authorized_keys=str(self.keys.authorized),
            port_file=str(folder / "port"),
            home=str(folder),
            environment={
                **environment,
                "HOME": str(folder),
                "SHELL": "/bin/bash",
                **muster_simulator.environment(folder / name),
                "OMP_NUM_THREADS": "1",
            },
        )
        config.save(folder / "config.json")
        return str(folder / "config.json")


def write_sku(folder: Path, limit_s: int) -> Path:
    """Write the SKU ``fleet-node`` with another time limit of each stage; gives the folder, for MUSTER_SKU_PATH."""
    (folder / "programmes").mkdir(parents=True)
    (folder / "fleet-node.yaml").write_text((FILES / "fleet-node.yaml").read_text())
    programme = (FILES / "programmes" / "fleet.yaml").read_text()
    (folder / "programmes" / "fleet.yaml").write_text(programme.replace("timeout_s: 1800", f"timeout_s: {limit_s}"))
    return folder


def write_block(folder: Path, params: Mapping[str, Mapping[str, Any]], optional: str = "") -> None:
    """Write the shipped programme of a block with these parameters, by probe, into a folder of SKU files.

    ``optional``: what is required of such devices is not.
    """
    programme = yaml.safe_load((SHIPPED / "programmes" / "block.yaml").read_text())
    for probe, changed in params.items():
        asked = programme["probes"][probe]
        asked["params"] |= changed
        asked["require"] = [each for each in asked["require"] if each["devices"] != optional]
    (folder / "programmes").mkdir(exist_ok=True)
    (folder / "programmes" / "block.yaml").write_text(yaml.safe_dump(programme))


async def serve_all(configs: Iterable[str]) -> None:
    """Listen as every node until cancelled."""
    await asyncio.gather(*(serve(Config(**json.loads(Path(path).read_text()))) for path in configs))


if __name__ == "__main__":
    asyncio.run(serve_all(sys.argv[1:]))
