"""The demo's directory: for one demo at a time, emptied before each run."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import pathlib
import shutil
import time
import typing

from muster_demo import watchdog

PATIENCE_S = 5.0
"""Seconds that a demo which is ending may still hold its directory."""


class Busy(Exception):
    """Another demo works in this directory."""


@dataclasses.dataclass(frozen=True)
class Workdir:
    """The files of a demo. Only the scoring reads ``answers``."""

    root: pathlib.Path

    @property
    def airflow(self) -> pathlib.Path:
        """AIRFLOW_HOME."""
        return self.root / "airflow"

    @property
    def controller(self) -> pathlib.Path:
        """MUSTER_HOME."""
        return self.root / "muster"

    @property
    def policies(self) -> pathlib.Path:
        """The demo's own policies, a folder of MUSTER_SKU_PATH."""
        return self.root / "skus"

    @property
    def nodes(self) -> pathlib.Path:
        """A folder for each node: host key, home, simulated machine."""
        return self.root / "nodes"

    @property
    def shared(self) -> pathlib.Path:
        """The folder that all nodes share, for the checkpoints of a block's training."""
        return self.root / "shared"

    @property
    def slurm(self) -> pathlib.Path:
        """Slurm's configuration, state, sockets and logs."""
        return self.root / "slurm"

    @property
    def mail(self) -> pathlib.Path:
        """The mail sink."""
        return self.root / "mail"

    @property
    def logs(self) -> pathlib.Path:
        """One log for each service."""
        return self.root / "logs"

    @property
    def answers(self) -> pathlib.Path:
        """The planted faults."""
        return self.root / "answers.json"

    @property
    def mark(self) -> dict[str, str]:
        """The mark in the environment of every process of this demo."""
        return {watchdog.MARK: str(self.root)}

    def claim(self) -> typing.IO[str]:
        """Lock the directory, end what a killed demo left and empty it. Keep the returned file open. Raises Busy."""
        self.root.mkdir(parents=True, exist_ok=True)
        lock = (self.root / "lock").open("a+")
        deadline = time.monotonic() + PATIENCE_S
        while not _locked(lock):
            if time.monotonic() > deadline:
                lock.close()
                raise Busy(f"A demo is running in {self.root} already: stop it with Ctrl-C, then start this one.")
            time.sleep(0.1)
        watchdog.end_all(watchdog.marked(str(self.root)), patience_s=1.0)
        for entry in self.root.iterdir():
            if entry.name != "lock":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        os.truncate(lock.fileno(), 0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock


def _locked(lock: typing.IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
