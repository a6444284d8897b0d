"""One rank of a block is killed or hangs in the middle of a run of cluster_qualification."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from muster import store
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.testing import member
from muster_criteria.cluster.model import COLLECTIVES, TRAINING
from muster_criteria.model import Verdict
from tests.dags.blocks import DAG_ID, NAMES, Meeting, Nodes, validate, verdicts
from tests.dags.test_cluster_runs import meeting, nodes  # noqa: F401 - fixtures
from tests.support.simulated_fleet import write_block

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs_sshd,
    pytest.mark.needs_torch,
    pytest.mark.early(6),
]

STALL_S = 5.0
FEW_GPUS = tuple({"kind": "missing_gpu", "gpu": slot} for slot in range(1, 8))
"""What is lost is not measured: one GPU a node is enough, and cheap."""

ENDLESS = {"same_batch": {"same_steps": 100_000}, "training": {"steps": 100_000}}
"""By phase: what makes a rank stay in it until something happens."""


class Strike:
    """Waits in the background until the victim's rank is in ``phase``, then sends ``number`` to all that runs there.

    All but the watchdog, which exists to outlive what befalls the others.
    """

    def __init__(self, block: Nodes, phase: str, number: int) -> None:
        self.block, self.phase, self.number = block, phase, number
        self.victim = ""
        self.killed_at = 0.0
        self.victims: list[psutil.Process] = []
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def begin(self, victim: str) -> None:
        if not self.victim:
            self.victim = victim
            self._thread.start()

    def end(self) -> None:
        """What was stopped does not end by being asked to: nothing of it may outlive the test."""
        self.over.set()
        if self._thread.ident:
            self._thread.join()
        for process in self.victims:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _watch(self) -> None:
        while f"phase {self.phase}" not in self.block.progress(self.victim):
            if self.over.wait(0.1):
                return
        time.sleep(0.5)
        self.killed_at = time.monotonic()
        self.victims = [process for process in self.block.jobs(self.victim) if not _is_watchdog(process)]
        for process in self.victims:
            process.send_signal(self.number)


def _is_watchdog(process: psutil.Process) -> bool:
    """A fork of the agent, in a session of its own."""
    parent = process.parent()
    return os.getsid(process.pid) == process.pid and parent is not None and process.cmdline() == parent.cmdline()


@pytest.mark.parametrize(
    ("phase", "number"), [("training", signal.SIGKILL), ("same_batch", signal.SIGSTOP)], ids=["killed", "hung"]
)
def test_a_lost_rank_is_named_the_other_ends_and_no_node_is_leased(
    nodes: Nodes,  # noqa: F811
    meeting: Meeting,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    phase: str,
    number: int,
) -> None:
    stall = {"stall_timeout_s": STALL_S}
    write_block(tmp_path, {COLLECTIVES: stall, TRAINING: {**stall, **ENDLESS[phase], "gpus": "one"}})
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path))
    strike = Strike(nodes, phase, number)
    monkeypatch.setattr(member, "PATIENCE_S", 3.0)
    nodes.build(dict.fromkeys(NAMES, FEW_GPUS))
    # The one that is left ends the other's job, and dag.test() never gets to it while it waits for one that hangs.
    meeting.at_work = lambda: strike.begin(NAMES[1 - (meeting.first or 0)])
    states, run_id = validate()
    running = nodes.jobs("n1") + nodes.jobs("n2")
    strike.end()
    assert strike.killed_at, "it was in that phase"
    assert running == [], "nothing of the run is left on the nodes"
    lost = strike.victim
    (left,) = set(NAMES) - {lost}
    assert (states[f"train[{left}]"], states[f"train[{lost}]"], states["run"]) == ("success", "failed", "failed")
    assert verdicts(run_id) == {left: Verdict.SKIPPED, lost: Verdict.INCONCLUSIVE}
    (stored,) = store.runs.stages(RunKey(DAG_ID, run_id), node=left)
    assert f"{lost}: " in stored.reason
    assert phase in stored.reason
    counted = {name: store.nodes.get(name).inconclusive for name in NAMES}
    assert counted == {left: 0, lost: 1}, "no member is charged for another"
    assert {store.nodes.get(name).state for name in NAMES} == {State.QUALIFIED}
    assert store.leases.live() == []
