"""Jobs that users of the demo's Slurm submit, and what they met there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from muster_demo.scoring import InSlurm
from muster_demo.slurm import USERS, Slurm

BEGINS_WITHIN_S = 60.0
LOOK_EVERY_S = 0.1


class Jobs:
    """The users of a Slurm. Every job needs a whole node, writes down when it began, and ends."""

    def __init__(self, slurm: Slurm, say: Callable[[str], None]) -> None:
        self.slurm = slurm
        self.say = say
        self.ran: dict[str, float] = {}
        self.gave_way: dict[str, float] = {}
        """Seconds from the submission of a job to its beginning, by node: on idle nodes, and on nodes under test."""

    def run_on(self, node: str) -> None:
        """Run a job on an idle node, and return when it is over."""
        waited = self._run(node, "first")
        if waited is not None:
            self.ran[node] = waited
            self.say(f"Slurm: a user's job ran on {node}")

    def take_back(self, node: str) -> None:
        """Run a job on a node that is being tested."""
        self.say(f"Slurm: a user's job wants {node} while it is tested")
        waited = self._run(node, "urgent")
        if waited is not None:
            self.gave_way[node] = waited
            self.say(f"Slurm: {node} is the user's after {waited:.1f} s; its test is given up")

    def seen(self) -> InSlurm:
        """What Slurm shows now, and what the jobs met."""
        lines = self.slurm.call("sinfo", "--all", "--noheader", "--Node", "--format=%N|%T|%E").splitlines()
        shown = [line.split("|", 2) for line in lines]
        closed = {name: reason for name, state, reason in shown if state.startswith("drain")}
        return InSlurm(tuple(self.ran), self.gave_way, closed)

    def _run(self, node: str, name: str) -> float | None:
        """Returns the seconds that the job waited; None if it did not begin in time."""
        began = self.slurm.folder / f"{node}-{name}.began"
        submitted = time.time()
        self.slurm.call(
            "sbatch", "--parsable", "--exclusive", f"--partition={USERS}", f"--nodelist={node}", f"--job-name={name}",
            "--output=/dev/null", f"--chdir={self.slurm.folder}", f"--wrap=date +%s.%N > {began.name}",
        )  # fmt: skip
        if not _begins(lambda: _text(began).endswith("\n")):
            self.say(f"Slurm: the job did not begin on {node} within {BEGINS_WITHIN_S:.0f} s")
            self.slurm.call("scancel", f"--name={name}", f"--nodelist={node}", check=False)
            return None
        _begins(lambda: not self.slurm.call("squeue", "--noheader", f"--name={name}"))
        return float(_text(began)) - submitted


def _begins(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + BEGINS_WITHIN_S
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY_S)
    return found


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
