"""One attempt on a real OpenSSH server with real records, without Airflow."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pkgutil
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

import muster.remote
from muster import store
from muster.errors import LeaseLost, MusterError, Overtaken, Preempted
from muster.model.attention import Cause
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job import attempt as remote
from muster.remote.job import jobs, outcome
from muster.remote.job.attempt import Attempt, Finished, NoVerdict, Programme, Task
from muster.remote.job.outcome import Ended, Kind
from muster.remote.job.zipapp import AgentFile
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.model import Verdict
from muster_criteria.sku_files.programme import CallSpec
from muster_criteria.sku_files.skus import load_sku
from tests.muster import fleet
from tests.support import standin
from tests.support.servers import sshd

pytestmark = [pytest.mark.needs_sshd, pytest.mark.usefixtures("sqlite_db")]

NODE = "this-node"
TASK = Task("node_qualification", "this-node__new", "intake", "intake", try_number=1, max_tries=2)
RUN = RunKey(TASK.dag_id, TASK.run_id)


@dataclasses.dataclass
class Bench:
    """A node that a run holds, and the steps of an attempt at its intake."""

    server: sshd.Sshd
    agent: AgentFile
    ended: list[Ended] = dataclasses.field(default_factory=list)

    def connect(self, _node: object = None) -> paramiko.SSHClient:
        return ssh.connect(self.server.node(NODE), Credentials(key_file=str(self.server.key_file)), timeout=1)

    def claim(self, *, begin: bool = True) -> Attempt:
        run = store.runs.get(RUN)
        sku = load_sku(run.sku, ())
        return remote.claim(TASK, run, sku, lambda _attempt, _job: Programme((), 60.0), begin=begin)

    def begin(self, step: Callable[[], tuple[str, ...]] = tuple) -> tuple[Attempt, jobs.Look]:
        attempt = self.claim()
        with self.connect() as client:
            return remote.begin(attempt, client, self.agent, step)

    def until_done(self, attempt: Attempt) -> Attempt:
        with self.connect() as client:
            end = time.monotonic() + 15
            while jobs.look(client, attempt.node.work_dir, attempt.job_key, "").state is jobs.State.RUNNING:
                assert time.monotonic() < end
                time.sleep(0.1)
        return self.claim(begin=False)

    def settle(self, attempt: Attempt, hint: Kind = Kind.DONE, *, last: bool = False, grace_s: float = 5.0) -> Any:
        """As an operator does, with a FAIL for whatever came, and INCONCLUSIVE for nothing."""
        with remote.collected(attempt, self.connect, hint, grace_s=grace_s, last=lambda: last) as found:
            if not isinstance(found, Finished):
                return found
            self.ended.append(found.end)
            result, _ = remote.checked_result(attempt, found)
            verdict = Verdict.FAIL if result else Verdict.INCONCLUSIVE
            fleet.record(RUN, result, fleet.judgement("intake", verdict), found.output.result)
            remote.record_end(attempt, found.end, outcome.state_after(found.end.kind, verdict))
        return verdict

    def folder(self, attempt: Attempt) -> Path:
        return Path(jobs.paths(attempt.node.work_dir, attempt.job_key).folder)

    def verdict(self) -> Verdict:
        (stage,) = store.runs.stages(RUN)
        return stage.verdict


@pytest.fixture
def bench(server: sshd.Sshd, tmp_path: Path) -> Iterator[Bench]:
    node = server.node(NODE)
    key, place = " ".join(node.host_key.split()[:2]), {"port": node.port, "user": node.user or ""}
    store.nodes.add(NewNode(NODE, node.host, key, "cpu-generic", work_dir=node.work_dir, **place))
    store.leases.acquire(NODE, RUN)
    store.runs.begin(RUN, NODE, "demo", "new", required_stages=STAGES)
    yield Bench(server, AgentFile(*standin.write(tmp_path / "cache")))
    sshd.kill_jobs(Path(node.work_dir))


def test_the_whole_way(bench: Bench) -> None:
    attempt, seen = bench.begin()
    assert seen.state is jobs.State.ABSENT
    assert store.runs.get_job(RUN, "intake") == dataclasses.replace(attempt.job, node=NODE)
    attempt = bench.until_done(attempt)
    assert bench.settle(attempt) is Verdict.FAIL
    assert bench.verdict() is Verdict.FAIL
    assert not bench.folder(attempt).exists()


def test_a_retry_finds_the_job_that_a_dead_worker_left(bench: Bench) -> None:
    standin.behave(bench.server.home, intake={"seconds": 600})
    first, _ = bench.begin()
    again, seen = bench.begin()
    assert (again.job_key, seen.state) == (first.job_key, jobs.State.RUNNING)
    assert standin.started(bench.server.home) == ["intake"]
    assert isinstance(bench.settle(again), jobs.Look)
    assert bench.ended == []
    wait = remote.wait(again, seen, grace_s=5.0)
    assert (wait.job_key, wait.deadline_at) == (again.job_key, again.job.started_at.timestamp() + 60.0)


def test_the_plan_names_the_daemons_that_are_no_use(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_BUSY_DAEMONS", "wekanode, ovs-vswitchd,")
    assert bench.claim().plan.busy_daemons == ("wekanode", "ovs-vswitchd")


def test_what_a_later_try_has_judged_is_not_started_again(bench: Bench) -> None:
    """By the process of an earlier try that goes on although its supervisor is gone: a full disk ended that."""
    stale = bench.claim()
    later, _ = bench.begin()
    assert later.job_key == stale.job_key
    assert bench.settle(bench.until_done(later)) is Verdict.FAIL
    with bench.connect() as client, pytest.raises(Overtaken):
        remote.begin(stale, client, bench.agent)
    assert standin.started(bench.server.home) == ["intake"]
    assert not bench.folder(stale).exists()
    assert bench.settle(later) is None
    assert bench.verdict() is Verdict.FAIL


@pytest.mark.parametrize("begun", ["", "directly before", "by a worker that died"])
def test_no_job_runs_on_a_node_that_its_scheduler_took_back(bench: Bench, begun: str) -> None:
    standin.behave(bench.server.home, intake={"seconds": 600})
    if begun == "by a worker that died":
        bench.begin()
    answers: list[tuple[str, ...]] = [()] if begun == "directly before" else []

    def step() -> tuple[str, ...]:
        if not answers:
            raise Preempted("its scheduler took the node back")
        return answers.pop()

    with contextlib.nullcontext() if begun == "by a worker that died" else pytest.raises(Preempted):
        bench.begin(step)
    attempt = bench.claim(begin=False)
    with bench.connect() as client:
        seen = jobs.look(client, attempt.node.work_dir, attempt.job_key, "")
    assert seen.state in ((jobs.State.DONE, jobs.State.GONE) if begun else (jobs.State.ABSENT,))
    assert attempt.job.state == {"": outcome.SUBMITTED, "directly before": outcome.STOPPED}.get(begun, outcome.RUNNING)
    assert begun != "by a worker that died" or bench.settle(attempt) is Verdict.FAIL, "what it found is judged"


def test_only_the_holder_of_the_lease_may_begin(bench: Bench) -> None:
    store.leases.release(RUN, "over")
    store.leases.acquire(NODE, RunKey("node_qualification", "another"))
    with pytest.raises(LeaseLost):
        bench.claim()


def test_a_folder_that_cannot_be_removed_leaves_the_verdict(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, _ = bench.begin()
    attempt = bench.until_done(attempt)

    def remove(*_: object) -> None:
        bench.server.stop()
        raise ssh.Unreachable("gone")

    monkeypatch.setattr(jobs, "remove", remove)
    assert bench.settle(attempt, last=True) is Verdict.FAIL
    assert bench.verdict() is Verdict.FAIL
    assert len(bench.ended) == 1


def test_the_folder_stays_until_the_verdict_is_recorded(bench: Bench) -> None:
    attempt = bench.until_done(bench.begin()[0])
    with pytest.raises(MusterError), remote.collected(attempt, bench.connect, Kind.DONE, grace_s=5, last=lambda: True):
        raise MusterError("the records are down")
    assert bench.folder(attempt).exists()
    assert bench.settle(attempt) is Verdict.FAIL
    assert not bench.folder(attempt).exists()


def test_no_result_never_supersedes_a_recorded_verdict(bench: Bench) -> None:
    """The worker dies after the verdict was recorded and before the job was; then the node goes away."""
    attempt, _ = bench.begin()
    attempt = bench.until_done(attempt)
    raw = (bench.folder(attempt) / "result.json").read_bytes()
    fleet.record(RUN, parse_result(raw), fleet.judgement("intake", Verdict.FAIL), raw)
    bench.server.stop()
    for hint in (Kind.DONE, Kind.LOST):
        assert bench.settle(attempt, hint, last=True) is None
    assert bench.ended == []
    assert bench.verdict() is Verdict.FAIL
    assert attempt.recorded_end() == "completed"


@pytest.mark.parametrize("freeze", [False, True], ids=["stopped", "frozen"])
def test_an_unreachable_node_is_judged_when_lost_or_on_the_last_attempt(bench: Bench, freeze: bool) -> None:
    attempt = bench.claim()
    bench.server.freeze() if freeze else bench.server.stop()
    with pytest.raises(NoVerdict) as waits:
        bench.settle(attempt)
    kept = store.runs.get_job(RUN, "intake")
    assert kept is not None
    assert (kept.state, kept.note) == (attempt.job.state, str(waits.value))
    assert bench.settle(attempt, last=True) is Verdict.INCONCLUSIVE
    assert bench.settle(attempt, Kind.LOST) is Verdict.INCONCLUSIVE
    assert [end.kind for end in bench.ended] == [Kind.REFUSED, Kind.LOST]


def test_why_a_node_cannot_be_reached_is_listed_until_it_is_reached(bench: Bench) -> None:
    keys = bench.server.folder / "authorized_keys"
    kept = keys.read_text()
    standin.behave(bench.server.home, intake={"seconds": 600})
    for _ in range(2):  # before the job has started, and while it runs
        attempt = bench.claim()
        keys.write_text("")
        with pytest.raises(NoVerdict) as waits:
            bench.settle(attempt)
        assert store.runs.obstacles() == {NODE: str(waits.value)}
        (listed,) = store.attention.collect()
        assert (listed.cause, listed.why, listed.listed) == (Cause.RETRIED, str(waits.value), True)
        keys.write_text(kept)
        bench.begin()
        assert store.runs.obstacles() == {}
    store.leases.release(RUN, "over")
    assert store.runs.obstacles() == {}


def test_a_node_that_forgot_its_job_when_it_rebooted_has_rebooted(bench: Bench) -> None:
    attempt = bench.until_done(bench.begin()[0])
    shutil.rmtree(attempt.node.work_dir)
    rebooted = dataclasses.replace(attempt, job=dataclasses.replace(attempt.job, boot_id="of the boot before"))
    for each in (attempt, rebooted):
        assert bench.settle(each, Kind.REBOOTED) is Verdict.INCONCLUSIVE
    assert [end.kind for end in bench.ended] == [Kind.VANISHED, Kind.REBOOTED]


def test_a_login_that_is_refused_is_never_a_lost_node(bench: Bench) -> None:
    attempt = bench.claim()
    (bench.server.folder / "authorized_keys").write_text("")
    with pytest.raises(NoVerdict):
        bench.settle(attempt, Kind.LOST)


DONE = Ended(Kind.DONE, "")


def checked(attempt: Attempt, raw: bytes | None, *notes: str, end: Ended = DONE) -> tuple[StageResult | None, str]:
    return remote.checked_result(attempt, Finished(end, jobs.Collected(raw, None, notes)))


def test_a_result_of_another_job_is_not_taken(bench: Bench) -> None:
    attempt = bench.until_done(bench.begin()[0])
    result = json.loads((bench.folder(attempt) / "result.json").read_text())
    assert checked(attempt, json.dumps(result).encode())[0] is not None
    other = {"job_id": "x", "node": "x", "stage": "burn_in", "level": "long", "fence": 99, "repeat": True}
    for name, value in other.items():
        found, why = checked(attempt, json.dumps({**result, name: value}).encode())
        assert (found, name in why) == (None, True)
    assert checked(attempt, b"{}")[0] is None
    assert checked(attempt, None, "too large") == (None, "too large")


def test_a_job_s_record_says_what_its_probes_had_to_do_when_it_was_started(bench: Bench) -> None:
    assert bench.claim().job.work == ""
    bench.begin()
    run, calls = store.runs.get(RUN), (CallSpec("gemm_rate", {"size": 512}, 60.0, 1),)
    for now, same in (((), True), (calls, False)):
        attempt = remote.claim(TASK, run, load_sku(run.sku, ()), lambda *_, now=now: Programme(now, 60.0), begin=False)
        assert (attempt.job.work == attempt.work) is same


def test_a_job_that_nothing_waits_for_is_stopped(bench: Bench) -> None:
    standin.behave(bench.server.home, intake={"seconds": 600})
    attempt, _ = bench.begin()
    remote.stop_leftovers(RUN, bench.connect)
    job = store.runs.get_job(RUN, "intake")
    assert job is not None
    assert job.state == outcome.STOPPED
    with bench.connect() as client:
        after = jobs.look(client, attempt.node.work_dir, attempt.job_key, "")
    assert after.state is not jobs.State.RUNNING
    assert str(outcome.next_attempt(2, job)) == "2.1"


def test_a_job_that_began_as_its_connection_broke_is_stopped_with_its_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the last attempt: no other one finds the job on the node."""
    standin.behave(bench.server.home, intake={"seconds": 600})
    start, attempt = jobs.start, bench.claim()

    def breaks(*given: Any) -> bool:
        start(*given)
        raise ssh.Unreachable("the connection broke")

    monkeypatch.setattr(jobs, "start", breaks)
    with bench.connect() as client, pytest.raises(ssh.Unreachable) as broke:
        remote.begin(attempt, client, bench.agent)
    finished = remote.unreachable(attempt, Kind.REFUSED, broke.value, last=lambda: True)
    assert finished is not None
    remote.record_end(attempt, finished.end, outcome.state_after(finished.end.kind, Verdict.INCONCLUSIVE))
    kept = bench.claim(begin=False).job
    assert (kept.remote_dir, kept.state) == (str(bench.folder(attempt)), outcome.UNSEEN)
    assert kept.started_at is not None
    remote.stop_leftovers(RUN, bench.connect)
    assert bench.claim(begin=False).job == dataclasses.replace(kept, state=outcome.STOPPED)
    with bench.connect() as client:
        after = jobs.look(client, attempt.node.work_dir, attempt.job_key, "")
    assert after.state not in (jobs.State.RUNNING, jobs.State.ABSENT)


def test_nothing_is_asked_of_a_node_whose_jobs_are_over(bench: Bench) -> None:
    bench.settle(bench.until_done(bench.begin()[0]))
    bench.server.stop()
    remote.stop_leftovers(RUN, bench.connect)


def test_a_task_that_is_killed_records_its_job_as_stopped_once_it_is(bench: Bench) -> None:
    standin.behave(bench.server.home, intake={"seconds": 600})
    before = bench.claim()
    begun, _ = bench.begin()
    bench.server.stop()
    with pytest.raises(ssh.RemoteError):
        remote.stop(before, bench.connect)
    assert bench.claim(begin=False).job.state == outcome.RUNNING
    bench.server.start()
    remote.stop(before, bench.connect)
    kept = bench.claim(begin=False).job
    assert kept == dataclasses.replace(begun.job, node=kept.node, state=outcome.STOPPED)


def test_a_job_that_was_done_when_its_task_was_killed_is_that_of_the_retry(bench: Bench) -> None:
    begun = bench.until_done(bench.begin()[0])
    remote.stop(begun, bench.connect)
    assert bench.claim(begin=False).job.state == outcome.RUNNING
    retried, _ = bench.begin()
    assert retried.job_key == begun.job_key


def test_no_job_is_recorded_as_stopped_that_still_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a container runtime that fails."""
    standin.behave(bench.server.home, intake={"seconds": 600})
    attempt, seen = bench.begin()
    monkeypatch.setattr(jobs, "stop", lambda *_: False)

    def taken_back() -> tuple[str, ...]:
        raise Preempted("its scheduler took the node back")

    with bench.connect() as client:
        stops: list[Callable[[], object]] = [
            lambda: remote.stop(attempt, bench.connect),
            lambda: remote.stop_leftovers(RUN, bench.connect),
            lambda: remote.stop_hung(dataclasses.replace(attempt.job, node=NODE), bench.connect, 0.0),
            lambda: remote._stop_if_taken_back(taken_back, attempt, client, seen),
            lambda: bench.settle(attempt, grace_s=-60.0),
        ]
        for stop in stops:
            with pytest.raises(ssh.RemoteError):
                stop()
            assert bench.claim(begin=False).job.state == outcome.RUNNING


def test_a_job_that_hangs_is_stopped_after_some_patience(bench: Bench) -> None:
    standin.behave(bench.server.home, intake={"seconds": 600})
    attempt, _ = bench.begin()
    remote.stop_hung(dataclasses.replace(attempt.job, node=NODE), bench.connect, 0.0)
    with bench.connect() as client:
        assert jobs.look(client, attempt.node.work_dir, attempt.job_key, "").state is not jobs.State.RUNNING


def test_the_seed_is_the_same_for_the_same_job_alone() -> None:
    assert remote.seed("a") == remote.seed("a") != remote.seed("b")


def test_the_room_knows_no_airflow() -> None:
    names = [module.name for module in pkgutil.walk_packages(muster.remote.__path__, "muster.remote.")]
    script = f"import sys, {', '.join(names)}; sys.exit('airflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
