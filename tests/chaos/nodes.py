"""The nodes of a campaign: simulated machines that keep a diary, behind links, on small disks of their own."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
import random
import shutil
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from muster_demo import between
from muster_demo.hosts import make_key
from muster_demo.services import Supervisor
from muster_simulator import create_machine, load_machine
from muster_simulator.defects import with_defect
from muster_simulator.machine import save_machine
from tests.chaos import clocks
from tests.chaos.link import REFUSED, Link, Links
from tests.support.simulated_fleet import LISTENING_S, SERVICE, SimulatedFleet

FAULT = "missing_gpu"
DISK = "64m"
CLONE_NEWNS = 0x20000

INTERPRETER = """#!/bin/bash
note() {{ printf '%s %s %s %s\\n' "$(date +%s.%N)" "$1" "${{job##*/}}" "$2" >>"$HOME/diary"; }}
clock=(env)
[ ! -s "$HOME/clock" ] || clock=(env {clock} FAKETIME="$(cat "$HOME/clock")")
if [ "$2" = simulate-reset ]; then
  job=none
  "${{clock[@]}}" '{python}' "$@" && note reset "$3"
  exit
fi
[ "$2" = run ] || exec "${{clock[@]}}" '{python}' "$@"
job=${{3%/*}}
stage=$(sed -n 's/.*"stage": *"\\([a-z0-9_]*\\)".*/\\1/p' "$3")
exec 9>>"$HOME/lock"
flock --nonblock 9 || note overlap "$stage"
note start "$stage"
trap stopped=yes TERM INT HUP
sleep $((RANDOM % 4 + 1)) 9>&-
[ -z "$stopped" ] || exit 143
"${{clock[@]}}" '{python}' "$@" 9>&-
status=$?
result=$job/result.json
if [ -f "$result" ]; then
  own=$(sha256sum "$result")
  [ $status != 0 ] || note measured "${{own%% *}}"
  mkdir -p "$HOME/kept"
  if mv "$HOME/tamper" "$HOME/tampering" 2>/dev/null; then
    sh "$HOME/tampering" "$result" "$HOME/kept/$stage"
    [ "$(sha256sum "$result")" = "$own" ] || note tampered "$(head -1 "$HOME/tampering" | cut -c3-)"
  else
    cp "$result" "$HOME/kept/$stage"
  fi
fi
exit $status
"""
"""What starts the node side on a node, by the node's clock, and keeps its diary by the true one. The lock is the
kernel's: its holder is alive, whatever else was killed. A replay before a result was kept changes nothing, and is none.
"""


def own_mounts() -> bool:
    """Give this process a mount namespace of its own, so that no mount outlives it; False without the right."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        return False
    return subprocess.run(["mount", "--make-rprivate", "/"], check=False).returncode == 0


def mount(place: Path, size: str) -> None:
    """Make a folder a disk of its own, which other users cannot write."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", str(place)], check=True)


class ChaosFleet(SimulatedFleet):
    """``disks``: whether each node's work folder is a disk of its own, which needs the right to mount.

    ``bmc_port``: where one emulator answers as the BMC of every node, each behind a link of its own in ``bmcs``.
    """

    def __init__(
        self, folder: Path, names: Iterable[str], seed: int, links: Links, bmc_port: int, *, disks: bool
    ) -> None:
        super().__init__(folder, names, seed, {})
        self.seed, self.disks = seed, disks
        self._power = threading.Lock()
        self.python.write_text(INTERPRETER.format(python=sys.executable, clock=" ".join(clocks.preloaded())))
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR)
        self.links = {name: Link(links, functools.partial(self.server_port, name)) for name in self.names}
        self.bmcs = {name: Link(links, lambda: bmc_port) for name in self.names}
        for name in self.names:
            (self.home(name) / "boot_id").write_text(load_machine(self.home(name) / name).boot_id)
            self.work(name).mkdir()
            if disks:
                mount(self.work(name), DISK)

    def start(self, supervisor: Supervisor, environment: Mapping[str, str]) -> None:
        """Start the servers, each node's own and an impostor with another host key, as one service."""
        configs = [each for name in self.names for each in self._configs(name, environment)]
        supervisor.start(SERVICE, [sys.executable, "-m", "tests.support.simulated_fleet", *configs], environment)
        ports = [self.home(name) / which for name in self.names for which in ("port", "impostor.port")]
        supervisor.wait_until("the nodes' servers", lambda: all(port.exists() for port in ports), LISTENING_S)

    def _configs(self, name: str, environment: Mapping[str, str]) -> list[str]:
        home = self.home(name)
        first = self._config(name, {**environment, "MUSTER_BOOT_ID_FILE": str(home / "boot_id")})
        make_key(home / "impostor_key")
        other = json.loads(Path(first).read_text())
        other |= {"host_key": str(home / "impostor_key"), "port_file": str(home / "impostor.port")}
        (home / "impostor.json").write_text(json.dumps(other))
        return [first, str(home / "impostor.json")]

    def home(self, name: str) -> Path:
        """A node's home folder."""
        return self._of(name)

    def work(self, name: str) -> Path:
        """Muster's folder on a node."""
        return self._of(name) / "work"

    def server_port(self, name: str, which: str = "port") -> int:
        """Where the node's server, or with "impostor.port" the impostor, listens."""
        return int((self._of(name) / which).read_text())

    def _port(self, name: str) -> int:
        return self.links[name].port

    def _bmc(self, name: str) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{self.bmcs[name].port}"}

    def rebuild(self, name: str, *, faulty: bool) -> None:
        """Repair the machine, or break it: the same parts, without or with its fault. Not while it boots."""
        machine = self.home(name) / name
        seed = self.seed * 1000 + self.names.index(name)
        with self._power:
            booted = (self.home(name) / "boot_id").read_text()
            shutil.rmtree(machine)
            machine.mkdir()
            create_machine(machine, seed=seed, faults=[{"kind": FAULT, "gpu": 0}] if faulty else [])
            save_machine(machine, dataclasses.replace(load_machine(machine), boot_id=booted))

    def wear(self, name: str, gpu: int, dice: random.Random) -> None:
        """Let a memory row of one GPU fail, which a reset of that GPU repairs."""
        machine = self.home(name) / name
        with self._power:
            worn = with_defect(load_machine(machine), {"kind": between.KIND, "gpu": gpu}, dice)
            save_machine(machine, worn)

    def reboot(self, name: str, dice: random.Random) -> None:
        """Lose power: every process of the node ends, and it has another boot id. It is unreachable meanwhile."""
        self.links[name].set(REFUSED)
        for process in self.processes(name):
            with contextlib.suppress(psutil.Error):
                process.kill()
        booted = str(uuid.UUID(int=dice.getrandbits(128), version=4))
        machine = self.home(name) / name
        with self._power:
            save_machine(machine, dataclasses.replace(load_machine(machine), boot_id=booted))
            (self.home(name) / "boot_id").write_text(booted)

    def processes(self, name: str) -> list[psutil.Process]:
        """What runs on the node."""
        return processes_of(self.home(name))


def processes_of(home: Path) -> list[psutil.Process]:
    """The processes with this home."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def fill(disk: Path) -> Path:
    """Fill a disk to its last byte; gives the file to remove."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65536)
    return filler
