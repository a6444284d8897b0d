"""A test of an idle node as a job of a real Slurm, or a pod of a real Kubernetes: users' jobs preempt it.

None of the users' jobs is ended by us unless the settings want it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from kubernetes import client as kubernetes_client

from muster import store
from muster.admission import clusters, service
from muster.admission.backend import TEST_PREFIX
from muster.admission.clusters import backend_of
from muster.errors import BadScheduler, JobEnded, LeftAlone, Preempted
from muster.model.stages import STAGES
from muster.model.states import State
from muster.operators.lifecycle import revalidation
from muster.operators.testing import qualification
from muster.remote.job import launch
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.admission.idle_schedulers import (
    KUBERNETES,
    NAME,
    NODE,
    PARAMS,
    RUN,
    SLURM,
    OnKubernetes,
    OnSlurm,
    Scheduler,
    serve,
)
from tests.support.servers import kubernetes_server
from tests.support.servers.slurm import Slurm
from tests.support.waiting import until

pytestmark = [pytest.mark.usefixtures("sqlite_db"), pytest.mark.early(2)]


@pytest.fixture
def on_slurm(alpha: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnSlurm]:
    scheduler = OnSlurm(alpha, monkeypatch)
    serve(scheduler, monkeypatch)
    yield scheduler
    alpha.call("scancel", "--user=root", check=False)
    until(lambda: not alpha.call("squeue", "--noheader"))


@pytest.fixture
def on_kubernetes(delta: kubernetes_server.Cluster, monkeypatch: pytest.MonkeyPatch) -> OnKubernetes:
    scheduler = OnKubernetes(delta, monkeypatch)
    serve(scheduler, monkeypatch)
    return scheduler


@pytest.fixture(params=[pytest.param("on_slurm", marks=SLURM), pytest.param("on_kubernetes", marks=KUBERNETES)])
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    found: Scheduler = request.getfixturevalue(request.param)
    return found


def test_a_test_and_its_pass_leave_the_node_in_service(scheduler: Scheduler) -> None:
    for _ in range(2):  # a claim that is repeated finds its job
        revalidation.claim(RUN, PARAMS)
    assert len(scheduler.ours()) == 1
    assert not backend_of(scheduler.name).look([NAME])[NAME].used_by
    lease = store.leases.get(NODE)
    assert lease is not None
    for stage in STAGES:
        fleet.do_stage(lease, stage)
        assert not scheduler.closed()
    revalidation.conclude(RUN)
    qualification.release(RUN)
    place = store.schedulers.place(NODE)
    assert place is not None
    assert place.admitted
    assert store.nodes.get(NODE).state is State.PRODUCTION
    assert not scheduler.closed()
    until(lambda: not scheduler.ours())


@pytest.mark.parametrize("phase", ["before", "claimed", "in a stage", "after a stage"])
def test_a_job_that_arrives_at_each_phase_gets_the_node_and_costs_it_nothing(scheduler: Scheduler, phase: str) -> None:
    job = scheduler.submit() if phase == "before" else ""
    if phase == "before":
        until(lambda: scheduler.runs(job))
        with pytest.raises(AirflowSkipException):
            revalidation.claim(RUN, PARAMS)
    else:
        revalidation.claim(RUN, PARAMS)
        if phase != "claimed":
            store.runs.begin_stage(RUN, "intake")
        if phase == "after a stage":
            result, raw = fleet.result("intake")
            fleet.record(RUN, result, fleet.judgement("intake", Verdict.INCONCLUSIVE), raw)
        job = scheduler.submit()
        until(lambda: scheduler.runs(job))
        with pytest.raises(Preempted):
            service.step_of_test(NODE)
        with pytest.raises(AirflowFailException):
            revalidation.conclude(RUN)
        assert store.runs.get(RUN).verdict is Verdict.SKIPPED
        store.leases.release(RUN, "over")
    node, place = store.nodes.get(NODE), store.schedulers.place(NODE)
    assert place is not None
    assert (node.state, node.inconclusive, place.admitted, place.test_job) == (State.PRODUCTION, 0, True, "")
    assert scheduler.runs(job)
    until(lambda: not scheduler.ours())
    assert not scheduler.closed()


@pytest.mark.parametrize("how", ["node", "person"])
def test_a_test_that_ends_with_its_node_or_by_a_person_is_not_preempted(scheduler: Scheduler, how: str) -> None:
    revalidation.claim(RUN, PARAMS)
    store.runs.begin_stage(RUN, "intake")
    result, raw = fleet.result("intake")
    fleet.record(RUN, result, fleet.judgement("intake", Verdict.INCONCLUSIVE), raw)
    scheduler.lose(how)
    until(lambda: not scheduler.ours())
    with pytest.raises(JobEnded):
        service.step_of_test(NODE)
    with pytest.raises(AirflowFailException):
        revalidation.conclude(RUN)
    assert store.runs.get(RUN).verdict is Verdict.INCONCLUSIVE


def test_a_fail_drains_and_kills_no_job_of_a_user(scheduler: Scheduler) -> None:
    revalidation.claim(RUN, PARAMS)
    store.runs.begin_stage(RUN, "intake")
    result, raw = fleet.result("intake")
    fleet.record(RUN, result, fleet.judgement("intake", Verdict.FAIL), raw)
    job = scheduler.submit()
    until(lambda: scheduler.runs(job))
    with pytest.raises(AirflowFailException):
        revalidation.conclude(RUN)
    assert store.nodes.get(NODE).state is State.QUARANTINE
    assert scheduler.closed()
    assert scheduler.runs(job)


@pytest.mark.parametrize(
    ("wanted", "metric"), [(True, "gemm_mismatches"), (False, "gemm_mismatches"), (True, "gemm_rate")]
)
def test_corrupted_data_ends_a_users_job_only_where_the_settings_want_it(
    scheduler: Scheduler, wanted: bool, metric: str
) -> None:
    scheduler.use(end_corrupted_jobs=wanted)
    revalidation.claim(RUN, PARAMS)
    store.runs.begin_stage(RUN, "intake")
    result, raw = fleet.result("intake")
    found = fleet.judgement("intake", Verdict.FAIL, findings=(fleet.finding(metric=metric),))
    fleet.record(RUN, result, found, raw)
    job = scheduler.submit()
    elsewhere = scheduler.submit("n1")
    until(lambda: scheduler.runs(job) and scheduler.runs(elsewhere))
    with pytest.raises(AirflowFailException):
        revalidation.conclude(RUN)
    ends = wanted and metric == "gemm_mismatches"
    until(lambda: scheduler.runs(job) is not ends)
    assert scheduler.runs(elsewhere)
    history = [event.reason for event in store.nodes.events(NODE)]
    assert any(f"job {scheduler.shown(job)}" in line for line in history) is ends


def test_the_job_of_a_controller_that_was_killed_is_ended_by_housekeeping(scheduler: Scheduler) -> None:
    """Its lease is freed when its run is over; before that the test goes on."""
    revalidation.claim(RUN, PARAMS)
    store.runs.begin_stage(RUN, "intake")
    service.reconcile()
    assert len(scheduler.ours()) == 1
    store.leases.release(RUN, "its run is gone")
    service.reconcile()
    until(lambda: not scheduler.ours())
    place = store.schedulers.place(NODE)
    assert place is not None
    assert not place.test_job


@pytest.mark.slow
@pytest.mark.needs_slurm
def test_a_step_runs_on_the_node_and_gets_sigterm_at_once(on_slurm: OnSlurm, tmp_path: Path) -> None:
    revalidation.claim(RUN, PARAMS)
    words = service.step_of_test(NODE)
    trap = f'trap "touch {tmp_path}/end; exit" TERM'
    script = f"{trap}; echo $SLURMD_NODENAME >{tmp_path}/begun; while :; do sleep 0.1; done"
    step = subprocess.Popen([*words, "sh", "-c", script], env=on_slurm.cluster.env)
    until((tmp_path / "begun").exists)
    assert (tmp_path / "begun").read_text().strip() == NAME
    on_slurm.submit()
    until((tmp_path / "end").exists)
    step.wait(120)


@pytest.mark.slow
@pytest.mark.needs_slurm
@pytest.mark.parametrize("then", ["it ends at last", "the node goes down"])
def test_a_preempted_job_whose_step_does_not_end_is_preempted_unless_the_node_is_down(
    on_slurm: OnSlurm, tmp_path: Path, then: str
) -> None:
    """Slurm shows such a job as completing, whatever ended it."""
    revalidation.claim(RUN, PARAMS)
    script = f"trap '' TERM; touch {tmp_path}/begun; while :; do sleep 0.1; done"
    step = subprocess.Popen([*service.step_of_test(NODE), "sh", "-c", script], env=on_slurm.cluster.env)
    until((tmp_path / "begun").exists)
    on_slurm.submit()
    until(lambda: "COMPLETING" in on_slurm.cluster.call("squeue", "--noheader", "--format=%T"))
    if then == "the node goes down":
        on_slurm.cluster.update(NAME, "State=DOWN", "Reason=psu")
    assert service.preempted(NODE) is (then == "it ends at last")
    step.wait(120)


@pytest.mark.slow
@pytest.mark.needs_slurm
@pytest.mark.parametrize("chosen", ["users", "nowhere"])
def test_a_partition_that_is_not_preemptible_is_refused(
    alpha: Slurm, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    OnSlurm(alpha, monkeypatch).use(test_partition=chosen)
    with pytest.raises(BadScheduler):
        clusters.check("alpha", [NAME])


@pytest.mark.slow
@pytest.mark.needs_kubernetes
@pytest.mark.parametrize("chosen", ["system-node-critical", "nowhere"])
def test_a_priority_class_that_is_not_the_lowest_is_refused(on_kubernetes: OnKubernetes, chosen: str) -> None:
    on_kubernetes.use(test_priority_class=chosen)
    with pytest.raises(BadScheduler):
        clusters.check("delta", [NAME])


@pytest.mark.slow
@pytest.mark.needs_kubernetes
def test_a_class_of_users_that_does_not_preempt_is_refused(on_kubernetes: OnKubernetes) -> None:
    scheduling = kubernetes_client.SchedulingV1Api(on_kubernetes.cluster.api)
    clusters.check("delta", [NAME])
    about = {"metadata": {"name": "patient"}, "value": 1000, "preemptionPolicy": "Never"}
    scheduling.create_priority_class(about)
    try:
        with pytest.raises(BadScheduler):
            clusters.check("delta", [NAME])
    finally:
        scheduling.delete_priority_class("patient")


@pytest.mark.slow
@pytest.mark.needs_kubernetes
def test_a_pod_of_another_scheduler_is_refused(on_kubernetes: OnKubernetes) -> None:
    clusters.check("delta", [NAME])
    spec = {"schedulerName": "volcano", "containers": [{"name": "c", "image": "i"}]}
    on_kubernetes.cluster.core.create_namespaced_pod("default", {"metadata": {"name": "train"}, "spec": spec})
    with pytest.raises(BadScheduler):
        clusters.check("delta", [NAME])


@pytest.mark.slow
@pytest.mark.needs_kubernetes
@pytest.mark.parametrize("ends", ["at SIGTERM", "never"])
def test_the_node_side_ends_with_its_pod(on_kubernetes: OnKubernetes, tmp_path: Path, ends: str) -> None:
    """The node's processes have a process namespace here; kubelet kills the pod after five seconds."""
    host = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sleep", "600"])
    children = Path(f"/proc/{host.pid}/task/{host.pid}/children")
    until(lambda: children.read_text().strip())
    on_kubernetes.cluster.enter = ["nsenter", "--pid", "--mount", f"--target={children.read_text().strip()}"]
    agent = tmp_path / "agents" / f"{'0f' * 32}.pyz"
    agent.parent.mkdir()
    handler = "lambda *_: sys.exit(7)" if ends == "at SIGTERM" else "signal.SIG_IGN"
    begun = tmp_path / "begun"
    agent.write_text(
        f"import signal, sys, time, pathlib\nsignal.signal(signal.SIGTERM, {handler})\n"
        f"pathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)\n"
    )
    try:
        revalidation.claim(RUN, PARAMS)
        assert service.step_of_test(NODE) == ()
        words = launch.command_for({"python": sys.executable}, str(agent), ["run", f"{tmp_path}/jobs/1/plan.json"])
        node_side = subprocess.Popen([*on_kubernetes.cluster.enter, *words])
        until(begun.exists)
        job = on_kubernetes.submit()
        assert node_side.wait(120) == (7 if ends == "at SIGTERM" else -9)
        until(lambda: on_kubernetes.runs(job))
        with pytest.raises(Preempted):
            service.step_of_test(NODE)
    finally:
        host.kill()
        host.wait()


@pytest.mark.slow
@pytest.mark.needs_kubernetes
def test_a_node_whose_gpus_a_pod_took_meanwhile_is_left_alone(
    on_kubernetes: OnKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod begins between the look and the test's own pod, which then waits, and is deleted."""
    tests = backend_of("delta").tests
    assert tests is not None
    job = on_kubernetes.submit()
    until(lambda: on_kubernetes.runs(job))
    monkeypatch.setattr("muster.admission.backends.kubernetes.pod.START_S", 1.0)
    monkeypatch.setattr("muster.admission.backends.kubernetes.pod.resources_left", lambda *_: {"nvidia.com/gpu": "8"})
    with pytest.raises(LeftAlone):
        tests.begin(NAME, f"{TEST_PREFIX}1", 60)
    until(lambda: not on_kubernetes.ours())
    assert on_kubernetes.runs(job)
