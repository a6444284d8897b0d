"""Blocks of agents as real processes on loopback: each member with its own work directory and simulated machine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster_demo.services import free_port
from muster_node.contract import Plan, ProbeCall
from muster_simulator import create_machine, environment
from tests.muster_node.agent.harness import Ended, Node, Running, wait_for

AGENT = [sys.executable, "-m", "muster_node"]
SEED = 11


def rendezvous(names: Sequence[str], **limits: Any) -> dict[str, Any]:
    """What all members' plans share: limits short enough for a test, and long enough for a machine that is busy."""
    return {
        "members": list(names),
        "master_addr": "127.0.0.1",
        "master_ports": [free_port()],
        "session": "a secret of the test",
        "join_timeout_s": 60.0,
        "stall_timeout_s": 8.0,
        "progress_timeout_s": 60.0,
        **limits,
    }


@dataclasses.dataclass
class Block:
    """The agents of one block. ``calls`` are (probe, params); every member gets its own rank.

    ``inside`` is the command before a member's own that runs it in a network namespace; ``limits`` may then name the
    address where the first member is reached.
    """

    folder: Path
    names: Sequence[str]
    calls: Sequence[tuple[str, Mapping[str, Any]]]
    faults: Mapping[str, Sequence[Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    inside: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    simulated: bool = True
    probe_s: float = 120.0

    def __post_init__(self) -> None:
        self.shared = rendezvous(self.names, **self.limits)
        self.running: dict[str, Running] = {}
        self.nodes: list[Node] = []

    def start(self, *names: str) -> None:
        """Starts these members, or all of them."""
        for name in names or self.names:
            self.prepare(name)
            self.launch(name)

    def prepare(self, name: str, usage: str = "") -> None:
        """Builds a member's machine; ``usage`` is what its in-use guard will see."""
        machine = self.folder / f"machine-{name}"
        if self.simulated:
            create_machine(machine, seed=5, faults=self.faults.get(name, ()))
        if usage:
            (machine / "usage.json").write_text(usage)

    def launch(self, name: str) -> None:
        node = Node(self.folder / name)
        node.folder.mkdir()
        self.nodes.append(node)
        env = {"OMP_NUM_THREADS": "1"}
        if self.simulated:
            env.update(environment(self.folder / f"machine-{name}"))
        self.running[name] = node.start(self.plan(name), env=env, command=[*self.inside.get(name, ()), *AGENT])

    def plan(self, name: str) -> Plan:
        probes = tuple(
            ProbeCall(probe, self.probe_s, SEED, {**self.shared, "rank": list(self.names).index(name), **params})
            for probe, params in self.calls
        )
        # The host that the tests run on is shared: its in-use guard would rightly refuse.
        force = None if self.simulated else "a test on a machine that others use too"
        return Plan("job-1", name, "cluster_validation", "demo", 1, self.probe_s + 80.0, probes, 5.0, force)

    def await_phase(self, name: str, phase: str) -> None:
        self.await_progress(name, f"phase {phase}")

    def await_progress(self, name: str, words: str, limit_s: float = 60.0) -> None:
        path = self.running[name].job / "progress.jsonl"
        wait_for(lambda: path.exists() and words in path.read_text(), limit_s)

    def probe_process(self, name: str) -> int:
        """The process that runs the member's probe: of the agent's two children the one that is no watchdog."""
        return max(self.running[name].children())

    def rank_process(self, name: str, local: int) -> int:
        """The process of one of a member's ranks, in the order in which they were started."""
        probe = self.probe_process(name)
        ranks = Path(f"/proc/{probe}/task").glob("*/children")
        return sorted(int(pid) for file in ranks for pid in file.read_text().split())[local]

    def strike(self, name: str, number: int) -> None:
        """Sends a signal to the member's agent and to all processes that it started."""
        agent = self.running[name].agent
        for pid in (self.probe_process(name), agent):
            os.kill(pid, number)

    @contextlib.contextmanager
    def slowed(self, name: str) -> Iterator[None]:
        """The member's probe and its ranks work a fifth of the time only, in pieces far shorter than any limit."""
        pid, over = self.probe_process(name), threading.Event()

        def signalled(number: int) -> None:
            ranks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for each in (pid, *map(int, ranks)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, number)

        def hold_up() -> None:
            while not over.wait(0.02):
                signalled(signal.SIGSTOP)
                over.wait(0.08)
                signalled(signal.SIGCONT)

        thread = threading.Thread(target=hold_up)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def end(self, *names: str, limit_s: float = 60.0) -> dict[str, Ended]:
        """Waits for these members, or for all that run."""
        return {name: self.running[name].end(limit_s=limit_s) for name in names or list(self.running)}

    def close(self) -> None:
        for running in self.running.values():
            with contextlib.suppress(OSError, ValueError):  # it has ended, or not begun
                for pid in [*running.children(), running.agent]:
                    os.kill(pid, signal.SIGCONT)
        for node in self.nodes:
            node.close()
