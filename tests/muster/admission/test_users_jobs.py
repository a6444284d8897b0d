"""Users' jobs in a node's history: what schedulers list, and what is kept."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

import pytest

from muster import store
from muster.admission import users_jobs
from muster.admission.backend import AdmissionBackend
from muster.admission.backends.kubernetes.backend import Kubernetes
from muster.admission.clusters import backend_of
from muster.errors import SchedulerDown
from muster.model.schedulers import UsersJob
from muster.store.database import access
from muster.store.queues.users_jobs import KEPT
from tests.muster import fleet
from tests.muster.admission.listed import NODE, placed
from tests.support.node_list import NodeList
from tests.support.servers import kubernetes, kubernetes_server
from tests.support.servers.slurm import Slurm
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("fleet_db")
BEGAN = datetime.datetime(2026, 6, 1, 8, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)


def lists(patch: pytest.MonkeyPatch, jobs: Iterable[UsersJob]) -> None:
    """The list of nodes has these jobs too, from now on."""
    patch.setattr(NodeList, "users_jobs", lambda self, names: jobs, raising=False)
    assert users_jobs.note() == []


def test_the_jobs_since_a_moment_are_those_that_ran_after_it(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = UsersJob(there, "job 1 of alice", BEGAN, BEGAN + 5 * MINUTE)
    lists(monkeypatch, [ended, UsersJob(there, "job 2 of bob", BEGAN + MINUTE)])
    since = store.users_jobs.since
    assert {job.what for job in since({NODE: BEGAN + 5 * MINUTE})[NODE]} == {"job 1 of alice", "job 2 of bob"}
    assert {job.what for job in since({NODE: BEGAN + 6 * MINUTE, "other": BEGAN})[NODE]} == {"job 2 of bob"}
    assert since({}) == {}


def kept() -> list[tuple[str, datetime.datetime | None]]:
    return [(job.what, job.until) for job in store.users_jobs.of_node(NODE)]


@pytest.fixture
def there(nodes: object) -> str:
    """NODE in cluster alpha; its name there."""
    placed()
    place = store.schedulers.place(NODE)
    assert place
    return place.name


def test_a_job_stands_in_the_history_from_its_begin_to_its_end(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = UsersJob(there, "job 1 of alice", BEGAN), UsersJob(there, "job 2 of bob", BEGAN + MINUTE)
    lists(monkeypatch, [one, two])
    assert kept() == [("job 2 of bob", None), ("job 1 of alice", None)]
    ended = UsersJob(there, one.what, BEGAN, BEGAN + 5 * MINUTE)
    lists(monkeypatch, [ended, two])
    lists(monkeypatch, [ended, two])
    assert kept() == [("job 2 of bob", None), ("job 1 of alice", ended.until)]
    lists(monkeypatch, [])
    until_ = dict(kept())["job 2 of bob"]
    assert until_, "its scheduler lists it no longer"
    assert until_ <= access.now()


def test_a_job_that_is_listed_no_longer_ended_just_now_or_else_when_it_was_listed_last(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it "ran", errors count as errors under its load: those of its last minutes do, and of no week."""
    one, two = UsersJob(there, "job 1 of alice", BEGAN), UsersJob(there, "job 2 of bob", BEGAN + MINUTE)
    for moment, jobs in ((0, [one, two]), (5, [one, two]), (10, [two]), (7 * 24 * 60, [])):
        monkeypatch.setattr(access, "now", lambda moment=moment: BEGAN + (2 + moment) * MINUTE)
        lists(monkeypatch, jobs)
    assert kept() == [("job 2 of bob", BEGAN + 12 * MINUTE), ("job 1 of alice", BEGAN + 12 * MINUTE)]


def test_a_job_that_began_and_ended_between_two_looks_is_kept_once(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    short = UsersJob(there, "job 7 of alice", access.now() - 3 * MINUTE, access.now() - MINUTE)
    lists(monkeypatch, [short])
    lists(monkeypatch, [short])
    lists(monkeypatch, [])
    assert kept() == [(short.what, short.until)]


def test_a_user_who_starts_many_jobs_fills_no_history(there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = UsersJob(there, "job 0 of bob", BEGAN)
    for turn in range(3):
        jobs = [UsersJob(there, f"job {turn}-{each} of eve", access.now(), access.now()) for each in range(KEPT)]
        lists(monkeypatch, [runs, *jobs])
    assert len(kept()) == KEPT
    assert (runs.what, None) in kept(), "what runs stays, whatever ended later"
    lists(monkeypatch, [])
    lists(monkeypatch, [runs])
    assert (runs.what, None) in kept(), "it runs all the same"
    many = [UsersJob(there, f"job {each} of eve", BEGAN + each * MINUTE) for each in range(2 * KEPT)]
    lists(monkeypatch, many)
    before = {each.what for each in store.users_jobs.of_node(NODE)}
    lists(monkeypatch, many)
    assert {each.what for each in store.users_jobs.of_node(NODE)} == before
    assert all(each.until is None for each in store.users_jobs.of_node(NODE))


def test_a_node_that_leaves_its_scheduler_has_no_job_that_runs_for_ever(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists(monkeypatch, [UsersJob(there, "job 1 of alice", BEGAN)])
    store.schedulers.assign(NODE, "", "", "Ada", "moved to another cluster")
    assert kept()[0][1] is not None


def test_a_cluster_that_does_not_answer_ends_no_job_and_stops_no_other(
    there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists(monkeypatch, [UsersJob(there, "job 1 of alice", BEGAN)])

    def down(self: NodeList, names: object) -> Iterable[UsersJob]:
        raise SchedulerDown("down for maintenance")

    monkeypatch.setattr(NodeList, "users_jobs", down)
    (said,) = users_jobs.note()
    assert "down for maintenance" in said
    assert kept() == [("job 1 of alice", None)]


def test_the_users_pods_of_kubernetes_and_one_that_cannot_be_read(
    kubernetes: kubernetes.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_of("kube")
    assert isinstance(backend, Kubernetes)

    def pod(name: str, node: str, *, began: object, **more: object) -> dict[str, object]:
        about = {"name": name, "namespace": "team", **more}
        return {"metadata": about, "spec": {"nodeName": node}, "status": {"phase": "Running", "startTime": began}}

    owned = {"ownerReferences": [{"kind": "DaemonSet", "name": "dcgm"}]}
    pods = [
        pod("train", "n1", began="2026-06-01T08:00:00Z"), pod("pending", "n1", began=None),
        pod("other", "n2", began="2026-06-01T08:00:00Z"), pod("dcgm", "n1", began="2026-06-01T08:00:00Z", **owned),
        pod("odd", "n1", began="2026-06-01T08:00:00"), {"metadata": None}, 7,
    ]  # fmt: skip
    monkeypatch.setattr(backend._api, "pods", lambda: iter(pods))
    assert list(backend.users_jobs({"n1"})) == [UsersJob("n1", "pod team/train", BEGAN)]


@pytest.mark.slow
@pytest.mark.needs_slurm
def test_slurm_tells_of_jobs_of_one_and_of_several_nodes_with_begin_and_end(alpha: Slurm) -> None:
    names = alpha.names[:3]
    for number, name in enumerate(names):
        node = fleet.new_node(f"gpu-000{number}")
        store.nodes.add(node)
        store.schedulers.assign(node.name, "alpha", name, "Ada", "rack 1")
    backend = backend_of("alpha")
    before = datetime.datetime.now(datetime.UTC) - MINUTE
    long = alpha.call("sbatch", "--parsable", "-w", ",".join(names), "-o", "/dev/null", "--wrap", "sleep 300").strip()
    until(lambda: alpha.call("squeue", "-h", "-j", long, "-o", "%t").strip() == "R")
    assert users_jobs.note() == []
    for number in range(3):
        (job,) = (each for each in store.users_jobs.of_node(f"gpu-000{number}") if f"job {long} " in each.what)
        assert job.until is None
        assert before < job.since < datetime.datetime.now(datetime.UTC) + MINUTE
    alpha.call("scancel", long)
    until(lambda: alpha.call("squeue", "-h", "-j", long, "-o", "%t").strip() in ("", "CA"))
    assert users_jobs.note() == []
    (job,) = (each for each in store.users_jobs.of_node("gpu-0001") if f"job {long} " in each.what)
    assert job.until is not None
    assert job.until >= job.since
    assert not any(each.until is None for each in backend.users_jobs(set(names)))


@pytest.mark.slow
@pytest.mark.needs_kubernetes
def test_a_real_api_server_tells_when_pods_began(delta: kubernetes_server.Cluster) -> None:
    backend: AdmissionBackend = backend_of("delta")
    assert isinstance(backend, Kubernetes)
    delta.submit("train", "n0")
    until(lambda: delta.phase("train") == "Running")
    began = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    delta.core.patch_namespaced_pod_status("train", "default", {"status": {"startTime": began}})  # as kubelet does
    (job,) = backend.users_jobs({"n0", "n1"})
    assert (job.node, job.what, job.until) == ("n0", "pod default/train", None)
