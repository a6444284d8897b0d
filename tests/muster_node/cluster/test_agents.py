"""Blocks of real agents: a flip and a slow GPU pinned to their node and slot, and lost members named, by the judge."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster_criteria.cluster.acceptance.causes import stragglers
from muster_criteria.cluster.acceptance.values import Member
from muster_criteria.cluster.model import BlockFindings, ClusterJudgement, MemberResult
from muster_criteria.cluster.ports import judge_ports, port_limits
from muster_criteria.cluster.watched import watch_limits
from muster_criteria.model import Lack, Verdict
from muster_criteria.sku_files.skus import load_sku
from tests.muster_criteria.cluster_results import judge_block
from tests.muster_criteria.cluster_verdicts import cleared, inconclusive, reason
from tests.muster_node.agent.harness import Ended
from tests.muster_node.cluster.blocks import Block

pytestmark = [pytest.mark.needs_torch, pytest.mark.early(4)]

COLLECTIVES = ("cluster_collectives", {"mib": [0.25], "repeats": 3})
TRAINING = (
    "cluster_training",
    {"same_steps": 3, "warm_steps": 1, "alone_steps": 2, "steps": 5, "layers": 2, "step_s": 0.7, "path_mib": 0.25},
)
THREE_GPUS = tuple({"kind": "missing_gpu", "gpu": slot} for slot in range(3, 8))
"""Machines with fewer GPUs cost less to simulate, and judge no differently."""
WATCH = ("gpu_watch", {})
SKU = load_sku("h100-sxm-8")

Make = Callable[..., Block]


@pytest.fixture
def block(tmp_path: Path) -> Iterator[Make]:
    made: list[Block] = []

    def _block(*names: str, calls: Any, faults: Any = (), **keys: Any) -> Block:
        faults_of = {name: (*THREE_GPUS, *dict(faults).get(name, ())) for name in names}
        made.append(Block(tmp_path, names, calls, faults_of, **keys))
        return made[-1]

    yield _block
    for each in made:
        each.close()


def judged(ends: dict[str, Ended], *lost: str) -> ClusterJudgement:
    limits = watch_limits(SKU.limits)
    members = [MemberResult(name, end.result, watch_limits=limits) for name, end in ends.items()]
    return judge_block([*members, *(MemberResult(name, None, "its agent left no result") for name in lost)])


def test_a_flip_and_a_slow_gpu_are_each_pinned_and_the_others_pass(block: Make) -> None:
    faults = {"n1": [{"kind": "sdc", "gpu": 2}], "n2": [{"kind": "clock_lock", "gpu": 0, "share": 0.8}]}
    # The others have to be seen waiting for half of what the slow GPU computes longer, 0.19 s of steps of 1.5 s. Other
    # processes of this host hold ranks up for a tenth of a second, and agents for some seconds.
    training = (TRAINING[0], {**TRAINING[1], "step_s": 1.5})
    limits = {"stall_timeout_s": 20.0}
    four = block("n0", "n1", "n2", "n3", calls=[COLLECTIVES, training, WATCH], faults=faults, limits=limits)
    four.start()
    ends = four.end(limit_s=180.0)
    assert [end.rc for end in ends.values()] == [0, 0, 0, 0]
    assert all(end.result.simulated for end in ends.values())
    judgement = judged(ends)
    found = {name: [(f.rule, f.device) for f in findings] for name, findings in judgement.failed.items()}
    assert found == {"n1": [("repeats_itself", "gpu2")], "n2": [("straggler", "gpu0")]}
    assert cleared(judgement) == ("n0", "n3")
    weights = {row.text for end in ends.values() for row in end.result.measurements if row.metric == "weights_digest"}
    assert len(weights) == 1
    table = [Member(name, SKU.name, True, m.observations, m.findings) for name, m in judgement.members.items()]
    ((slow, device, _, cause),) = stragglers(table)
    assert (slow.name, device) == ("n2", "gpu0")
    assert cause.startswith("slow clock")
    watched = {row.device for row in ends["n0"].result.measurements if row.metric == "throttle_time"}
    assert watched == {"gpu0", "gpu1", "gpu2"}


def test_a_pair_of_real_cpus_confirm_each_other(block: Make) -> None:
    training = (TRAINING[0], {**TRAINING[1], "step_s": 0.2})
    pair = block("n0", "n1", calls=[COLLECTIVES, training], simulated=False)
    pair.start()
    ends = pair.end()
    judgement = judged(ends)
    assert judgement.failed == inconclusive(judgement) == {}
    # Two processes share these cores with whatever else runs: one may be slower, which warns, and must do no more.
    assert {member.verdict for member in judgement.members.values()} <= {Verdict.PASS, Verdict.WARN}
    assert not any(end.result.simulated for end in ends.values())
    rates = [row.value for row in ends["n0"].result.measurements if row.metric == "collective_busbw"]
    assert len(rates) == 5
    assert all(rate and rate > 0 for rate in rates)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler, which torch.compile calls")
def test_a_training_whose_layers_are_compiled_says_so_in_its_recipe(block: Make) -> None:
    training = (TRAINING[0], {**TRAINING[1], "step_s": 0.2, "layers": 1, "compile": True})
    pair = block("n0", "n1", calls=[training], simulated=False, limits={"progress_timeout_s": 200.0}, probe_s=300.0)
    pair.start()
    ends = pair.end(limit_s=400.0)
    assert [end.outcome(TRAINING[0]).status for end in ends.values()] == ["completed", "completed"]
    recipes = {row.text for end in ends.values() for row in end.result.measurements if row.metric == "training_recipe"}
    assert [recipe.split(", ")[-1] for recipe in recipes] == ["compiled"]


@pytest.mark.slow
def test_collectives_soak_as_long_as_is_asked_and_a_port_with_errors_is_named(block: Make) -> None:
    soak = (COLLECTIVES[0], {**COLLECTIVES[1], "gpus": "one", "ops": ["all_reduce"], "soak_minutes": 0.2})
    noisy = {"n1": [{"kind": "nic_errors", "nic": 2, "per_hour": 60_000.0}]}
    pair = block("n0", "n1", calls=[soak], faults=noisy)
    pair.start()
    ends = pair.end(limit_s=240.0)
    assert [end.rc for end in ends.values()] == [0, 0]
    rows = {name: end.result.measurements for name, end in ends.items()}
    for own in rows.values():
        assert [row.value >= 0.2 for row in own if row.metric == "soak_time"] == [True]
        assert {row.labels.get("part", "") for row in own if row.metric == "collective_mismatches"} == {"", "soak"}
        assert {row.value for row in own if row.metric == "port_down"} == {0.0}
    found, limits = BlockFindings(), port_limits((*SKU.limits, *SKU.block.limits))
    judge_ports(rows, dict.fromkeys(rows, limits), found)
    (noisy_port,) = {row.device for row in rows["n1"] if row.metric == "port_errors"}
    assert {name: [each.device for each in of] for name, of in found.findings.items()} == {"n1": [noisy_port]}


ENDLESS = {
    "collectives": ("cluster_collectives", {"mib": [4], "repeats": 100_000}),
    "same_batch": ("cluster_training", {"same_steps": 100_000, "layers": 2}),
    "training_all": ("cluster_training", {"same_steps": 1, "steps": 100_000, "layers": 1, "step_s": 0.2}),
    "training": ("cluster_training", {"same_steps": 1, "steps": 100_000, "layers": 1, "gpus": "one"}),
}
"""By phase: the probe that is made to stay in it."""

KILLED, HUNG = signal.SIGKILL, signal.SIGSTOP

STALL_S = 8.0
"""Importing PyTorch alone can keep a rank from a sign of life for seconds, where other work runs beside."""


@pytest.mark.parametrize("way", [pytest.param(KILLED, marks=pytest.mark.slow), HUNG])
def test_a_lost_rank_is_named_with_its_device(block: Make, way: int) -> None:
    """One of the three ranks of a node: its own process is stopped, its node's is not."""
    pair = block("n0", "n1", calls=[ENDLESS["training_all"]], limits={"stall_timeout_s": STALL_S})
    pair.start()
    for name in pair.names:
        pair.await_phase(name, "training")
    # The groups of nodes, which have trained alone before, are gone with their threads.
    threads = Path(f"/proc/{pair.rank_process('n1', 1)}/task").glob("*/comm")
    assert [each.read_text() for each in threads].count("gloo_tcp_loop\n") == 1
    os.kill(pair.rank_process("n1", 1), way)
    ends = pair.end(limit_s=60.0)
    for end in ends.values():
        lost = [row for row in end.result.measurements if row.metric == "member_missing" and row.value]
        assert [(row.labels["member"], row.labels.get("part")) for row in lost] == [("n1", "gpu1")]
    assert ends["n1"].outcome("cluster_training").status == "crashed"
    judgement = judged(ends)
    assert judgement.failed == {}
    (finding,) = judgement.members["n1"].findings
    assert (finding.rule, finding.device) == ("member_missing", "gpu1")


@pytest.mark.parametrize(
    ("phase", "way", "victim"),
    [
        ("collectives", KILLED, "n1"),
        pytest.param("training", HUNG, "n2", marks=pytest.mark.slow),
        pytest.param("collectives", HUNG, "n2", marks=pytest.mark.slow),
        pytest.param("same_batch", KILLED, "n0", marks=pytest.mark.slow),
    ],
)
def test_a_lost_node_is_named_by_all_others_which_end_cleanly(block: Make, phase: str, way: int, victim: str) -> None:
    """The other ways of these phases are in tests/dags/test_cluster_chaos.py, to the end of a whole run."""
    call = ENDLESS[phase]
    limits = {"stall_timeout_s": STALL_S}
    three = block("n0", "n1", "n2", calls=[call], limits=limits)
    three.start()
    for name in three.names:
        three.await_phase(name, phase)
    time.sleep(0.5)
    three.strike(victim, way)
    others = [name for name in three.names if name != victim]
    ends = three.end(*others, limit_s=30.0)
    for end in ends.values():
        assert end.rc == 0
        assert end.outcome(call[0]).status == "completed"
        missing = {row.labels["member"]: row.value for row in end.result.measurements if row.metric == "member_missing"}
        assert missing == {name: float(name == victim) for name in three.names}
    judgement = judged(ends, victim)
    assert judgement.missing == (victim,)
    assert judgement.failed == {}
    assert cleared(judgement) == ()
    assert Lack.LOST in inconclusive(judgement)[victim]
    assert phase in reason(judgement, victim)


@pytest.mark.slow
def test_a_slow_node_is_awaited_in_every_phase_and_not_failed(block: Make) -> None:
    """What test_rendezvous shows of one phase without PyTorch, in each phase with it.

    The node starts late and then works a fifth of the time. Tests above cover devices that fail for slowness."""
    calls = [
        ("cluster_collectives", {"mib": [1], "repeats": 20}),
        ("cluster_training", {**TRAINING[1], "same_steps": 30, "gpus": "one"}),
    ]
    three = block("n0", "n1", "n2", calls=calls, limits={"stall_timeout_s": 15.0})
    three.start("n0", "n2")
    for name in ("n0", "n2"):
        three.await_progress(name, "joined at")
    three.start("n1")
    three.await_phase("n1", "collectives")
    with three.slowed("n1"):
        three.await_phase("n1", "finish")
    three.await_phase("n1", "same_batch")
    with three.slowed("n1"):
        three.await_phase("n1", "calibration")
    ends = three.end()
    judgement = judged(ends)
    assert judgement.missing == ()
    assert judgement.failed == inconclusive(judgement) == {}
    assert [end.rc for end in ends.values()] == [0, 0, 0]
    lags = {name: measured(end, "join_lag") for name, end in ends.items()}
    assert max(lags, key=lambda name: lags[name]) == "n1"


def measured(end: Ended, metric: str, **labels: str) -> float:
    rows = [row for row in end.result.measurements if row.metric == metric and row.device == "node"]
    return float(next(row.value for row in rows if labels.items() <= row.labels.items()))


@pytest.mark.slow
def test_a_sharded_training_is_what_its_checkpoint_holds_to_the_last_bit(block: Make, tmp_path: Path) -> None:
    """After a loss alone, FSDP2 leaves some weights whole and in another format: they are sharded again first."""
    (tmp_path / "shared").mkdir()
    more = {"layout": "fsdp", "ranks": 2, "shared_path": str(tmp_path / "shared"), "checkpoints": 1, "shared_mib": 1}
    pair = block("n0", "n1", calls=[(TRAINING[0], {**TRAINING[1], "step_s": 0.1, **more})], simulated=False)
    pair.start()
    rows = [row for end in pair.end(limit_s=120.0).values() for row in end.result.measurements]
    assert [row.value for row in rows if row.metric == "resume_equal"] == [1.0, 1.0]


@pytest.mark.slow
def test_a_killed_rank_is_restarted_and_its_checkpoint_resumed(block: Make, tmp_path: Path) -> None:
    """By torchrun's elastic agent, twice, in four ranks on two real nodes of CPUs that share a folder."""
    shared = tmp_path / "shared"
    shared.mkdir()
    steps = {"same_steps": 1, "warm_steps": 1, "alone_steps": 1, "steps": 2, "step_s": 0.1, "checkpoints": 1}
    call = (TRAINING[0], {**steps, "ranks": 2, "shared_path": str(shared), "fault_steps": 12})
    limits = {"stall_timeout_s": 60.0, "progress_timeout_s": 250.0}
    pair = block("n0", "n1", calls=[call], simulated=False, limits=limits, probe_s=300.0)
    pair.start()
    ends = pair.end(limit_s=300.0)
    at_work = {
        name: {row.labels["nodes"] for row in end.result.measurements if row.metric in ("shared_rate", "small_files")}
        for name, end in ends.items()
    }
    assert at_work == {"n0": {"one", "all"}, "n1": {"all"}}
    for end in ends.values():
        assert any(row.metric == "checkpoint_own" and row.device != "node" for row in end.result.measurements)
        assert measured(end, "fault_run") == measured(end, "resume_equal") == 1
        rows = {row.metric: row for row in end.result.measurements if row.metric.startswith("fault_")}
        assert rows["fault_restart"].samples == 2
        assert 0 < float(rows["fault_detect"].value or 0) < float(rows["fault_restart"].value or 0)
    assert list(shared.iterdir()) == []


def test_a_node_that_is_never_started_is_named(block: Make) -> None:
    three = block("n0", "n1", "n2", calls=[COLLECTIVES], limits={"join_timeout_s": 8.0})
    three.start("n0", "n2")
    ends = three.end()
    judgement = judged(ends, "n1")
    assert judgement.missing == ("n1",)
    assert Lack.LOST in inconclusive(judgement)["n1"]
    # The others began without it.
    for end in ends.values():
        assert measured(end, "block_intact") == 1
        assert measured(end, "collective_mismatches", op="all_reduce") == 0


def test_a_busy_node_is_named_with_its_reason(block: Make) -> None:
    pair = block("n0", "n1", calls=[COLLECTIVES], limits={"join_timeout_s": 8.0})
    pair.start("n0")
    pair.prepare("n1", usage='{"gpu_processes": ["4711 python (user)"]}')
    pair.launch("n1")
    ends = pair.end()
    assert ends["n1"].result.end == "busy"
    judgement = judged(ends)
    assert judgement.missing == ("n1",)
    assert "4711 python" in reason(judgement, "n1")
