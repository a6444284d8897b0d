"""The demo's directory: one demo at a time, fresh for each run, with nothing left running from the last."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import pathlib
import shutil
import time
import typing

from muster_demo import custody

PATIENCE_S = 5.0
"""How long a demo that is just ending may still hold its directory."""


class Busy(Exception):
    """Another demo works in this directory."""


@dataclasses.dataclass(frozen=True)
class Workdir:
    """Where everything of a demo lies. ``answers`` is read by the scoring alone."""

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
    def nodes(self) -> pathlib.Path:
        """A folder for each node: host key, home, simulated machine."""
        return self.root / "nodes"

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
        """What was planted."""
        return self.root / "answers.json"

    @property
    def mark(self) -> dict[str, str]:
        """What every process of this demo carries in its environment."""
        return {custody.MARK: str(self.root)}

    def claim(self) -> typing.IO[str]:
        """Make it ours and empty, ending what a killed demo left. Keep the returned lock open. Raises Busy."""
        self.root.mkdir(parents=True, exist_ok=True)
        lock = (self.root / "lock").open("a+")
        deadline = time.monotonic() + PATIENCE_S
        while not _locked(lock):
            if time.monotonic() > deadline:
                lock.close()
                raise Busy(f"A demo is running in {self.root} already: stop it with Ctrl-C, then start this one.")
            time.sleep(0.1)
        custody.end_all(custody.marked(str(self.root)), patience_s=1.0)
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
