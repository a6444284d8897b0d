"""A test of an idle node as a job of a real Slurm: users' jobs preempt it, and none of them is ended by us."""

from __future__ import annotations

import getpass
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import records
from muster.admission import clusters, service
from muster.admission.clusters import backend_of
from muster.admission.slurm_test_job import JOB_PREFIX
from muster.errors import BadScheduler, Preempted
from muster.lifecycle.transitions import STAGES, State
from muster.operators import qualification, revalidation
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.support.slurm import Slurm

pytestmark = [pytest.mark.slow, pytest.mark.needs_slurm, pytest.mark.usefixtures("sqlite_db")]

NODE, NAME = "gpu-0001", "n0"
RUN = ("node_revalidation", "hourly")
PARAMS = {"node": NODE, "level": "demo", "reason": "idle"}


def until(true: Callable[[], object], limit_s: float = 30.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def use(patch: pytest.MonkeyPatch, cluster: Slurm, **more: object) -> None:
    chosen = {"kind": "slurm", "slurm_conf": str(cluster.conf), "test_partition": "muster", **more}
    patch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": chosen}))


@pytest.fixture
def slurm(alpha: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """A node in production, open in Slurm."""
    use(monkeypatch, alpha)
    monkeypatch.setattr("muster.operators.claims.controller_ready", lambda: None)  # of SSH and keys, tested elsewhere
    records.add_node(fleet.new_node(NODE))
    fleet.qualify(NODE)
    records.move_node(NODE, State.PRODUCTION, "Ada", "needed now")
    records.place_on_scheduler(NODE, "alpha", NAME, "Ada", "rack 1")
    service.carry_out(NODE)
    until(lambda: service.idle([NODE])[NODE].idle)
    yield alpha
    alpha.call("scancel", "--user=root", check=False)
    until(lambda: not alpha.call("squeue", "--noheader"))


def submit(cluster: Slurm, *options: str) -> str:
    """A job of a user that needs the node, for a minute; returns its id."""
    wanted = ("sbatch", "--parsable", "--exclusive", f"--nodelist={NAME}", "--output=/dev/null", "--chdir=/tmp")
    return cluster.call(*wanted, *options, "--wrap=sleep 60").strip()


def lease() -> records.LeaseRecord:
    found = records.get_lease(NODE)
    assert found is not None
    return found


def state_of(cluster: Slurm, job: str) -> str:
    return cluster.call("squeue", "--noheader", "--jobs", job, "--format=%T", check=False).strip()


def ours(cluster: Slurm) -> list[str]:
    shown = cluster.call("squeue", "--noheader", "--format=%j").split()
    return [name for name in shown if name.startswith(JOB_PREFIX)]


def test_a_test_and_its_pass_leave_the_node_in_service(slurm: Slurm) -> None:
    for _ in range(2):  # a claim that is repeated finds its job
        revalidation.claim(*RUN, PARAMS)
    assert len(ours(slurm)) == 1
    assert not backend_of("alpha").look([NAME])[NAME].used_by
    for stage in STAGES:
        fleet.do_stage(lease(), stage)
        assert "DRAIN" not in slurm.show(NAME)
    revalidation.conclude(*RUN)
    qualification.release(*RUN)
    place = records.scheduler_place(NODE)
    assert place is not None
    assert place.admitted
    assert records.get_node(NODE).state is State.PRODUCTION
    assert "DRAIN" not in slurm.show(NAME)
    until(lambda: not ours(slurm))


@pytest.mark.parametrize("phase", ["before", "claimed", "in a stage", "after a stage"])
def test_a_job_that_arrives_at_each_phase_gets_the_node_and_costs_it_nothing(slurm: Slurm, phase: str) -> None:
    job = submit(slurm) if phase == "before" else ""
    if phase == "before":
        until(lambda: state_of(slurm, job) == "RUNNING")
        with pytest.raises(AirflowSkipException):
            revalidation.claim(*RUN, PARAMS)
    else:
        revalidation.claim(*RUN, PARAMS)
        if phase != "claimed":
            records.begin_stage(*RUN, "intake")
        if phase == "after a stage":
            result, raw = fleet.result("intake")
            records.record_stage(*RUN, result, fleet.judgement("intake", Verdict.INCONCLUSIVE), raw)
        job = submit(slurm)
        until(lambda: state_of(slurm, job) == "RUNNING")
        with pytest.raises(Preempted):
            service.step_of_test(NODE)
        with pytest.raises(AirflowFailException):
            revalidation.conclude(*RUN)
        assert records.get_run(*RUN).verdict is Verdict.SKIPPED
        records.release_leases(*RUN, "over")
    node, place = records.get_node(NODE), records.scheduler_place(NODE)
    assert place is not None
    assert (node.state, node.inconclusive, place.admitted, place.test_job) == (State.PRODUCTION, 0, True, "")
    assert (state_of(slurm, job), ours(slurm)) == ("RUNNING", [])
    assert "DRAIN" not in slurm.show(NAME)


def test_a_fail_drains_and_kills_no_job_of_a_user(slurm: Slurm) -> None:
    revalidation.claim(*RUN, PARAMS)
    records.begin_stage(*RUN, "intake")
    result, raw = fleet.result("intake")
    records.record_stage(*RUN, result, fleet.judgement("intake", Verdict.FAIL), raw)
    job = submit(slurm)
    until(lambda: state_of(slurm, job) == "RUNNING")
    with pytest.raises(AirflowFailException):
        revalidation.conclude(*RUN)
    assert records.get_node(NODE).state is State.QUARANTINE
    assert "DRAIN" in slurm.show(NAME)
    assert state_of(slurm, job) == "RUNNING"


@pytest.mark.parametrize(
    ("wanted", "metric"), [(True, "gemm_mismatches"), (False, "gemm_mismatches"), (True, "gemm_rate")]
)
def test_corrupted_data_ends_a_users_job_only_where_the_settings_want_it(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, wanted: bool, metric: str
) -> None:
    use(monkeypatch, slurm, end_corrupted_jobs=wanted)
    revalidation.claim(*RUN, PARAMS)
    records.begin_stage(*RUN, "intake")
    result, raw = fleet.result("intake")
    found = fleet.judgement("intake", Verdict.FAIL, findings=(fleet.finding(metric=metric),))
    records.record_stage(*RUN, result, found, raw)
    job = submit(slurm, "--job-name=train|x")
    beside = ("--nodelist=n1", "--output=/dev/null", "--chdir=/tmp", "--wrap=sleep 60")
    elsewhere = slurm.call("sbatch", "--parsable", *beside).strip()
    until(lambda: state_of(slurm, job) == state_of(slurm, elsewhere) == "RUNNING")
    with pytest.raises(AirflowFailException):
        revalidation.conclude(*RUN)
    ends = wanted and metric == "gemm_mismatches"
    until(lambda: (state_of(slurm, job) != "RUNNING") is ends)
    assert state_of(slurm, elsewhere) == "RUNNING"
    history = [event.reason for event in records.node_events(NODE)]
    assert any(f"job {job} (train|x) of {getpass.getuser()}" in line for line in history) is ends


def test_the_job_of_a_controller_that_was_killed_is_ended_by_housekeeping(slurm: Slurm) -> None:
    """Its lease is freed when its run is over; before that the test goes on."""
    revalidation.claim(*RUN, PARAMS)
    records.begin_stage(*RUN, "intake")
    service.reconcile()
    assert len(ours(slurm)) == 1
    records.release_leases(*RUN, "its run is gone")
    service.reconcile()
    until(lambda: not ours(slurm))
    place = records.scheduler_place(NODE)
    assert place is not None
    assert not place.test_job


def test_a_step_runs_on_the_node_and_gets_sigterm_at_once(slurm: Slurm, tmp_path: Path) -> None:
    revalidation.claim(*RUN, PARAMS)
    words = service.step_of_test(NODE)
    trap = f'trap "touch {tmp_path}/end; exit" TERM'
    script = f"{trap}; echo $SLURMD_NODENAME >{tmp_path}/begun; while :; do sleep 0.1; done"
    step = subprocess.Popen([*words, "sh", "-c", script], env=slurm.env)
    until((tmp_path / "begun").exists)
    assert (tmp_path / "begun").read_text().strip() == NAME
    submit(slurm)
    until((tmp_path / "end").exists, 10.0)
    step.wait(10)


@pytest.mark.parametrize("chosen", ["users", "nowhere"])
def test_a_partition_that_is_not_preemptible_is_refused(
    alpha: Slurm, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    use(monkeypatch, alpha, test_partition=chosen)
    with pytest.raises(BadScheduler):
        clusters.check("alpha", [NAME])
