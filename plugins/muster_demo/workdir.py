"""The demo's directory: for one demo at a time, emptied before each run."""

from __future__ import annotations

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


class Workdir:
    """The files of a demo.

    ``airflow``: AIRFLOW_HOME. ``controller``: MUSTER_HOME. ``policies``: its own policies, a folder of MUSTER_SKU_PATH.
    ``nodes``: a folder for each node, with host key, home and simulated machine. ``shared``: the folder that all nodes
    share, for the checkpoints of a block's training. ``slurm``: configuration, state, sockets and logs. ``mail``: the
    mail sink. ``logs``: one log for each service. ``answers``: the planted faults, which only the scoring reads.
    ``mark``: what marks every process of this demo, in its environment.
    """

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.airflow = root / "airflow"
        self.controller = root / "muster"
        self.policies = root / "skus"
        self.nodes = root / "nodes"
        self.shared = root / "shared"
        self.slurm = root / "slurm"
        self.mail = root / "mail"
        self.logs = root / "logs"
        self.answers = root / "answers.json"
        self.mark = {watchdog.MARK: str(root)}

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
