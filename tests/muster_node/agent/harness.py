"""A node's agent as a real process with a fake machine under it, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster_criteria.measured import StageResult, parse_result
from muster_node.contract import Plan, ProbeCall

MAIN = Path(__file__).parent / "fakes" / "agent_main.py"
STUCK = MAIN.with_name("stuck.py")


def call(probe: str, timeout_s: float = 20.0, **params: Any) -> ProbeCall:
    return ProbeCall(probe, timeout_s, 7, params)


def plan(*calls: ProbeCall, **fields: Any) -> Plan:
    given: dict[str, Any] = {
        "job_id": "job-1",
        "node": "node-1",
        "stage": "intake",
        "level": "demo",
        "fence": 1,
        "deadline_s": 60.0,
        "telemetry_interval_s": 0.1,
    }
    return Plan(**{**given, **fields}, probes=calls)


def wait_for(what: Callable[[], Any], limit_s: float = 10.0) -> Any:
    """Returns the first true value of ``what()``; the test fails after the limit."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        answer = what()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"nothing happened within {limit_s:g} s")


def alive(pid: int) -> bool:
    """Whether a process runs: one that is dead but not yet reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@dataclasses.dataclass
class Ended:
    """A job that has ended: what the controller reads of it."""

    rc: int
    out: str
    err: str
    job: Path

    @functools.cached_property
    def result(self) -> StageResult:
        """As the controller takes it: so every test here also tests that the controller would."""
        return parse_result((self.job / "result.json").read_bytes())

    def outcome(self, probe: str) -> Any:
        (found,) = [outcome for outcome in self.result.probes if outcome.probe == probe]
        return found

    def measured(self, probe: str) -> list[Any]:
        return [row for row in self.result.measurements if row.probe == probe]

    def progress(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.job / "progress.jsonl").read_text().splitlines()]


class Running:
    """A job under way."""

    def __init__(self, process: subprocess.Popen[str], job: Path) -> None:
        self.process = process
        self.job = job

    def wait_for_progress(self, text: str) -> None:
        path = self.job / "progress.jsonl"
        wait_for(lambda: path.exists() and text in path.read_text())

    @property
    def agent(self) -> int:
        """The process that works; ``process`` is the one that its caller waits for."""
        return int((self.job / "agent.pid").read_text())

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.agent}/task/{self.agent}/children").read_text().split()]

    def end(self, number: int = 0, limit_s: float = 120.0) -> Ended:
        if number:
            os.kill(self.process.pid, number)
        out, err = self.process.communicate(timeout=limit_s)
        return Ended(self.process.returncode, out, err, self.job)


class Node:
    """Starts agents that share one work directory, as on one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.work = folder / "work"
        self._started: list[Running] = []

    def start(
        self, plan: Plan, *, env: dict[str, str] | None = None, job: str = "", command: list[str] | None = None
    ) -> Running:
        path = self.folder / (job or f"job{len(self._started)}")
        path.mkdir(exist_ok=True)
        (path / "plan.json").write_text(plan.to_json())
        process = subprocess.Popen(
            [*(command or [sys.executable, str(MAIN)]), "run", str(path / "plan.json")],
            env={**os.environ, "MUSTER_WORK": str(self.work), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(Running(process, path))
        return self._started[-1]

    def run(self, plan: Plan, **kwargs: Any) -> Ended:
        return self.start(plan, **kwargs).end()

    def command(self, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "MUSTER_WORK": str(self.work), **(env or {})}
        return subprocess.run(
            [sys.executable, str(MAIN), *args], env=environment, capture_output=True, text=True, timeout=60
        )

    def close(self) -> None:
        for running in self._started:
            if running.process.poll() is None:
                running.process.kill()
                running.process.communicate()
