"""The run with faults: the node's ranks under torchrun's elastic agent, one of them killed, restarted, resumed.

`torchrun` (torch.distributed.run) watches and restarts; Muster only measures the times, from the lines that the ranks
write. Everything goes through the shared path, the only thing that a restarting node shares with the others.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import muster_node
from muster_node.cluster.collectives.fabric import choose_interface, interface_of
from muster_node.cluster.storage.checkpoint import folders_of, trouble_soon
from muster_node.hardware.seam import RealClock
from muster_node.probe import Context

if TYPE_CHECKING:
    from muster_node.cluster.rendezvous.member import PeerGroup

RESTARTS = 10
"""Each agent counts its own: one that finds its ranks failed after the others' restart restarts once more."""

SAVE_EVERY = 5
"""Steps from one checkpoint to the next."""

_MONITOR_S = 0.1
_JOIN_S = 60
_QUIET_SHARE = 5 / 6
"""Of the time after which a node without progress counts as stuck: the run is given up before, and the block lives."""
_END_S = 40.0
"""Seconds that torchrun has to end its ranks, which a kill would leave behind: it kills them itself after 30."""
Event = dict[str, Any]


def fault_run(context: Context, group: PeerGroup, ranks: int) -> None:
    """One run on all nodes; emits what it measured, or why it could not. Raises BlockEnded."""
    path = context.params["shared_path"]
    if not path:
        group.gather()
        context.emit("fault_run", "node", note="no shared path is named, through which a training could resume")
        return
    block = group.block
    # A training whose ranks hang in the path makes no progress, for which its node would be lost.
    trouble = group.gather(trouble_soon(pathlib.Path(path)))
    if any(trouble.values()):
        group.gather()
        context.emit("fault_run", "node", note=_named(trouble))
        return
    _, folder = folders_of(path, block.session)
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)  # before a command line shows its name, by which another user could make it
    master = group.names[0] == block.name
    port = group.gather(_free_port() if master else None)[group.names[0]]
    endpoint = f"{'127.0.0.1' if master else block.master_addr}:{port}"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(group.names)),
        "--nproc-per-node", str(ranks), "--node-rank", str(group.names.index(block.name)),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--local-addr", group.local_address,
        "--rdzv-conf", f"join_timeout={_JOIN_S},is_host={int(master)}",
        "--max-restarts", str(RESTARTS), "--monitor-interval", str(_MONITOR_S),
        "-m", "muster_node.cluster.training.elastic", json.dumps(
            {"folder": str(folder), "node": block.name, "steps": context.params["fault_steps"], "seed": context.seed}
        ),
    ]  # fmt: skip
    why = _run(command, context.scratch, group)
    ends = group.gather(why)
    events = events_of(folder)
    failed = any(ends.values())
    context.emit("fault_run", "node", value=float(not failed), note=_named(ends))
    if not failed:
        for metric, values in measured(events).items():
            context.emit(metric, "node", value=statistics.median(values), samples=len(values))
    group.gather()


def _named(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {sentence}" for name, sentence in found.items() if sentence)[:400]


def _run(command: Sequence[str], scratch: pathlib.Path, group: PeerGroup) -> str:
    """Runs torchrun to its end, or until it is silent for too long; returns why it failed, "" if it did not."""
    package = pathlib.Path(muster_node.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])}
    environment["OMP_NUM_THREADS"] = "1"
    # Under this key the agents' pickles lie in a store that is open to the network. Arguments of a program are public.
    environment["PET_RDZV_ID"] = hashlib.sha256(b"torchrun " + group.block.session.encode()).hexdigest()
    # Agents count restarts each by itself, and in their own store ranks would find addresses of the last attempt.
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    choose_interface(group.block.interface or interface_of(group.local_address), environment)
    clock, quiet_s = RealClock(), _QUIET_SHARE * group.block.progress_timeout_s
    log = scratch / "torchrun.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=str(scratch),
            start_new_session=True,
        )  # fmt: skip
        try:
            size, moved_at = -1, clock.now()
            while process.poll() is None:
                clock.sleep(_MONITOR_S)
                if log.stat().st_size != size:  # each step leaves a line: without any the node counts as stuck
                    size, moved_at = log.stat().st_size, clock.now()
                    group.mark("the run with faults")
                elif clock.now() - moved_at > quiet_s:
                    group.mark("the end of the run with faults")
                    return f"no rank took a step or began within {quiet_s:.0f} s"
        finally:
            _end(process)
    if process.returncode == 0:
        return ""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line] or lines
    return f"torchrun ended with status {process.returncode}: {(telling or ['no output'])[-1].strip()[:200]}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends torchrun with its ranks, which are in sessions of their own, if it has not ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def events_of(folder: pathlib.Path) -> list[Event]:
    """The lines of all ranks, in order of time, each by the clock of its node."""
    events = []
    for file in sorted(folder.glob("events-*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:  # the line that a killed rank was writing
                continue
    return sorted(events, key=lambda event: float(event["at"]))


def measured(events: Sequence[Event]) -> Mapping[str, list[float]]:
    """By metric, a value for each death: seconds until another rank was asked, until the next step, and lost work.

    An event is {"at": epoch seconds, "kind", "rank", "node", "step"}: "step" after each step, "killed" just before a
    death, "asked" when a rank is asked to end. Lost work is what was trained since the resumed checkpoint. All times
    are by the clock of the dead rank's node, unless only another node was asked between death and restart.
    """
    found: dict[str, list[float]] = {"fault_detect": [], "fault_restart": [], "fault_lost_work": []}
    for death in (event for event in events if event["kind"] == "killed"):
        node = death["node"]
        own = [event for event in events if event["node"] == node]
        after = [event for event in own if event["at"] > death["at"]]
        started = next((event for event in after if event["kind"] == "resumed"), None)
        if started is None:
            continue
        asked = [each for each in events if each["kind"] == "asked" and death["at"] < each["at"] < started["at"]]
        if asked:
            first = min(asked, key=lambda each: (each["node"] != node, each["at"]))
            found["fault_detect"].append(first["at"] - death["at"])
        steps = [event for event in after if event["kind"] == "step" and event["at"] > started["at"]]
        if steps:
            found["fault_restart"].append(steps[0]["at"] - death["at"])
            lost = [event for event in own if event["kind"] == "step" and event["at"] <= death["at"]]
            kept = [event["at"] for event in lost if event["step"] < started["step"]]
            found["fault_lost_work"].append(death["at"] - (max(kept) if kept else lost[0]["at"]))
    return {metric: values for metric, values in found.items() if values}


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("", 0))
        return int(taken.getsockname()[1])
