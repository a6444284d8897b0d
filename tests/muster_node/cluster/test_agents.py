"""Blocks of real agents: a flip and a slow GPU pinned to their node and slot, and lost members named, by the judge."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_criteria.cluster import ClusterJudgement, MemberResult, convict
from muster_criteria.model import Verdict
from tests.muster_node.agent.harness import Ended
from tests.muster_node.cluster.blocks import Block

pytestmark = pytest.mark.needs_torch

COLLECTIVES = ("cluster_collectives", {"mib": [0.25], "repeats": 3})
TRAINING = ("cluster_training", {"same_steps": 3, "steps": 5, "layers": 2, "step_s": 0.7})
THREE_GPUS = tuple({"kind": "missing_gpu", "gpu": slot} for slot in range(3, 8))
"""Machines with fewer GPUs cost less to simulate, and judge no differently."""

Make = Callable[..., Block]


@pytest.fixture
def block(tmp_path: Path) -> Iterator[Make]:
    made: list[Block] = []

    def _block(*names: str, calls: Any, faults: Any = (), **keys: Any) -> Block:
        told = {name: (*THREE_GPUS, *dict(faults).get(name, ())) for name in names}
        made.append(Block(tmp_path, names, calls, told, **keys))
        return made[-1]

    yield _block
    for each in made:
        each.close()


def judged(ends: dict[str, Ended], *lost: str) -> ClusterJudgement:
    members = [MemberResult(name, end.result) for name, end in ends.items()]
    return convict([*members, *(MemberResult(name, None, "its agent left no result") for name in lost)])


def test_a_flip_and_a_slow_gpu_are_each_pinned_and_the_others_pass(block: Make) -> None:
    faults = {"n1": [{"kind": "sdc", "gpu": 2}], "n2": [{"kind": "slow_gemm", "gpu": 0}]}
    four = block("n0", "n1", "n2", "n3", calls=[COLLECTIVES, TRAINING], faults=faults)
    four.start()
    ends = four.end()
    assert [end.rc for end in ends.values()] == [0, 0, 0, 0]
    assert all(end.result.simulated for end in ends.values())
    judgement = judged(ends)
    found = {name: [(f.rule, f.device) for f in findings] for name, findings in judgement.convicted.items()}
    assert found == {"n1": [("repeats_itself", "gpu2")], "n2": [("straggler", "gpu0")]}
    assert judgement.cleared == ("n0", "n3")
    weights = {row.text for end in ends.values() for row in end.result.measurements if row.metric == "weights_digest"}
    assert len(weights) == 1


def test_a_pair_of_real_cpus_confirm_each_other(block: Make) -> None:
    pair = block("n0", "n1", calls=[COLLECTIVES, TRAINING], simulated=False)
    pair.start()
    ends = pair.end()
    judgement = judged(ends)
    assert judgement.convicted == judgement.inconclusive == {}
    # Two processes share these cores with whatever else runs: one may be slower, which warns, and must do no more.
    assert {member.verdict for member in judgement.members} <= {Verdict.PASS, Verdict.WARN}
    assert not any(end.result.simulated for end in ends.values())
    rates = [row.value for row in ends["n0"].result.measurements if row.metric == "collective_busbw"]
    assert len(rates) == 5
    assert all(rate and rate > 0 for rate in rates)


@pytest.mark.parametrize(
    ("way", "victim", "phase", "call"),
    [
        (
            signal.SIGSTOP,
            "n2",
            "training",
            ("cluster_training", {"same_steps": 1, "steps": 500, "layers": 1, "gpus": "one"}),
        ),
        (signal.SIGKILL, "n1", "collectives", ("cluster_collectives", {"mib": [4], "repeats": 5000})),
        (signal.SIGKILL, "n0", "same_batch", ("cluster_training", {"same_steps": 5000, "layers": 2})),
    ],
)
def test_a_lost_node_is_named_by_all_others_which_end_cleanly(
    block: Make, way: int, victim: str, phase: str, call: tuple[str, dict[str, Any]]
) -> None:
    limits = {"stall_timeout_s": 4.0}
    three = block("n0", "n1", "n2", calls=[call], limits=limits)
    three.start()
    for name in three.names:
        three.await_phase(name, phase)
    time.sleep(0.5)
    three.strike(victim, way)
    struck = time.monotonic()
    others = [name for name in three.names if name != victim]
    ends = three.end(*others, limit_s=30.0)
    assert time.monotonic() - struck < limits["stall_timeout_s"] + 10.0
    for end in ends.values():
        assert end.rc == 0
        assert end.outcome(call[0]).status == "completed"
        missing = {row.labels["member"]: row.value for row in end.result.measurements if row.metric == "member_missing"}
        assert missing == {name: float(name == victim) for name in three.names}
    judgement = judged(ends, victim)
    assert judgement.missing == (victim,)
    assert judgement.convicted == {}
    assert judgement.cleared == ()
    assert phase in judgement.inconclusive[victim]


def test_a_node_that_is_never_started_is_named(block: Make) -> None:
    three = block("n0", "n1", "n2", calls=[COLLECTIVES], limits={"join_timeout_s": 8.0})
    started = time.monotonic()
    three.start("n0", "n2")
    ends = three.end()
    assert time.monotonic() - started < 8.0 + 15.0
    judgement = judged(ends, "n1")
    assert judgement.missing == ("n1",)
    assert "did not come up within 8 s" in judgement.inconclusive["n1"]


def test_a_node_that_may_not_be_loaded_is_named_and_says_why(block: Make) -> None:
    pair = block("n0", "n1", calls=[COLLECTIVES], limits={"join_timeout_s": 8.0})
    pair.start("n0")
    pair.prepare("n1", usage='{"gpu_processes": ["4711 python (somebody)"]}')
    pair.launch("n1")
    ends = pair.end()
    assert ends["n1"].result.end == "busy"
    judgement = judged(ends)
    assert judgement.missing == ("n1",)
    assert "4711 python" in judgement.inconclusive["n1"]
