"""Test pods in Kubernetes: what they request, and where they are refused."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from muster.admission.backend import LIMIT_MINUTES
from muster.admission.backends.kubernetes.backend import Kubernetes
from muster.admission.backends.kubernetes.pod import PodTests, _why_it_waits, resources_left
from muster.admission.clusters import backend_of
from muster.errors import BadScheduler, JobEnded, SchedulerDown
from tests.support.servers.kubernetes import FLAVORS, SLICES, Cluster


@pytest.fixture
def tests(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> PodTests:
    """Test pods of the lowest priority class."""
    chosen = {"kind": "kubernetes", "connection": "kube", "context": "muster", "test_image": "busybox"}
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"kube": chosen}))
    backend = backend_of("kube")
    assert isinstance(backend, Kubernetes)
    assert backend.tests
    lowest = {"metadata": {"name": "muster-idle-tests"}, "value": -1_000_000_000}
    monkeypatch.setattr(backend._api, "priority_classes", lambda: [lowest])
    return backend.tests


def test_what_the_pods_on_a_node_leave_of_it() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    allocatable = {"cpu": "8", "memory": "1Gi", "nvidia.com/gpu": "8", "hugepages-2Mi": "0", "pods": "110"}
    daemon = {
        "initContainers": [container("1500m"), container("500m", restartPolicy="Always")],
        "containers": [container("250m"), {"resources": {"requests": {"memory": "24M"}}}],
        "overhead": {"cpu": "50m"},
    }
    left = resources_left({"status": {"allocatable": allocatable}}, [{"spec": daemon}, {"spec": {"containers": [{}]}}])
    assert left == {"cpu": "6.450", "memory": str(2**30 - 24_000_000), "nvidia.com/gpu": "8"}


@pytest.mark.parametrize(
    ("first", "whole", "needed"),
    [
        ([("2", "Always"), ("8", "")], "", 10),
        ([("8", ""), ("2", "Always")], "", 8),
        ([("2", "Always"), ("3", "Always")], "", 6),
        ([("2", "Always"), ("8", "")], "4", 4),
    ],
    ids=["needs the sidecar before it", "ends before the sidecar", "sidecars", "for the whole pod"],
)
def test_sidecars_and_requests_of_whole_pods_count_as_the_scheduler_counts_them(
    first: list[tuple[str, str]], whole: str, needed: int
) -> None:
    pod = {
        "initContainers": [{"resources": {"requests": {"cpu": cpu}}, "restartPolicy": policy} for cpu, policy in first],
        "containers": [{"resources": {"requests": {"cpu": "1"}}}],
        "resources": {"requests": {"cpu": whole}} if whole else {},
        "overhead": {"cpu": "1"},
    }
    left = resources_left({"status": {"allocatable": {"cpu": "64"}}}, [{"spec": pod}])
    assert left == {"cpu": f"{63 - needed}.000"}


@pytest.mark.parametrize(
    ("pod", "refused"),
    [
        ({}, False),
        ({"scheduler": "volcano"}, True),
        ({"scheduler": "volcano", "phase": "Succeeded"}, True),
        ({"scheduler": "volcano", "namespace": "kube-system"}, False),
        ({"scheduler": "volcano", "ownerReferences": [{"kind": "DaemonSet", "name": "exporter"}]}, False),
    ],
    ids=["of the default scheduler", "of another", "ended", "of the system", "of a daemon set"],
)
def test_users_of_a_scheduler_that_does_not_preempt_do_not_wait_for_tests(
    kubernetes: Cluster, tests: PodTests, pod: dict[str, Any], refused: bool
) -> None:
    kubernetes.pod("train-0", "n1", **pod)
    with pytest.raises(BadScheduler) if refused else contextlib.nullcontext():
        tests.check(["n0"], 60)


def _key(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def selected(*keys: dict[str, Any], kind: str = "matchExpressions") -> dict[str, Any]:
    return {"nodeSelector": {"nodeSelectorTerms": [{kind: list(keys)}]}}


@pytest.mark.parametrize(
    ("slices", "refused"),
    [
        (None, False),
        ([], False),
        ([{"nodeName": "n1"}], False),
        ([{"nodeName": "n1"}, {"nodeName": "n0"}], True),
        ([{"nodeName": "n1"}, {"allNodes": True}], True),
        ([{"nodeSelector": {"nodeSelectorTerms": []}}], True),
        ([selected(_key("nvidia.com/gpu.present", "In", "true"))], True),
        ([selected(_key("nvidia.com/gpu.present", "In", "true"), _key("pool", "In", "b"))], False),
        ([selected(_key("pool", "Exists"))], False),
        ([selected(_key("pool", "DoesNotExist"))], True),
        ([selected(_key("pool", "NotIn", "b"))], True),
        ([selected(_key("nvidia.com/gpu.present", "NotIn", "true"))], False),
        ([selected(_key("generation", "Gt", "7"))], True),
        ([selected(_key("metadata.name", "In", "n0"), kind="matchFields")], True),
        ([selected(_key("metadata.name", "In", "n1"), kind="matchFields")], False),
        ([{"perDeviceNodeSelection": True}], True),
        ([{"perDeviceNodeSelection": True, "devices": [{"nodeName": "n1"}, {"allNodes": True}]}], True),
        ([{"perDeviceNodeSelection": True, "devices": [{"nodeName": "n1"}, selected(_key("pool", "Exists"))]}], False),
        ([{"perDeviceNodeSelection": True, "devices": [{"basic": {"nodeName": "n1"}}]}], False),
    ],
)
def test_pods_that_claim_devices_would_start_during_a_test_which_is_refused(
    kubernetes: Cluster, tests: PodTests, slices: list[dict[str, Any]] | None, refused: bool
) -> None:
    """Such GPUs are not among what a node may allocate, so a test pod cannot request them."""
    kubernetes.granted.add(("list", "resourceslices"))
    if slices is not None:
        kubernetes.served[SLICES] = [{"spec": {"driver": "gpu.nvidia.com", **each}} for each in slices]
    with pytest.raises(BadScheduler) if refused else contextlib.nullcontext():
        tests.check(["n0"], 60)


@pytest.mark.parametrize(
    ("flavors", "refused"),
    [
        ([], False),
        ([{"nodeLabels": {"nvidia.com/gpu.present": "true"}}], False),
        ([{}, {"topologyName": "racks", "nodeLabels": {"nvidia.com/gpu.present": "true"}}], True),
        ([{"topologyName": "racks", "nodeLabels": {"nvidia.com/gpu.present": "true", "pool": "b"}}], False),
    ],
    ids=["no flavor", "without topology", "of this node", "of other nodes"],
)
def test_users_whose_pods_kueue_places_by_topology_do_not_wait_for_tests(
    kubernetes: Cluster, tests: PodTests, flavors: list[dict[str, Any]], refused: bool
) -> None:
    """Their pods name the default scheduler, but none reaches it while a test holds the node: kueue#9992."""
    kubernetes.granted.add(("list", "resourceflavors"))
    kubernetes.served[FLAVORS] = [{"metadata": {"name": "gpus"}, "spec": spec} for spec in flavors]
    with pytest.raises(BadScheduler) if refused else contextlib.nullcontext():
        tests.check(["n0"], 60)


@pytest.mark.parametrize(
    ("events", "preempted"),
    [
        ([("Scheduled", 0), ("Preempted", 9), ("Killing", 10)], True),
        ([("Scheduled", 0), ("Preempted", 9), ("Scheduled", 20), ("Killing", 30)], False),
        ([("Preempted", 29), ("Scheduled", 20), ("Scheduled", 0), ("Preempted", 9)], True),
        ([("Preempted", 9)], True),
        ([("Killing", 9)], False),
        ([], False),
    ],
    ids=["preempted", "the one before was", "both were", "its start is forgotten", "deleted", "no event"],
)
def test_a_pod_is_not_preempted_because_one_of_its_name_was(
    tests: PodTests, monkeypatch: pytest.MonkeyPatch, events: list[tuple[str, int]], preempted: bool
) -> None:
    monkeypatch.setattr("muster.admission.backends.kubernetes.pod.EVENT_S", 0.0)
    monkeypatch.setattr(tests.api, "pod", lambda *_: None)
    stored = [{"reason": why, "metadata": {"creationTimestamp": f"2026-06-01T08:00:{at:02}Z"}} for why, at in events]
    monkeypatch.setattr(tests.api, "events", lambda *_: stored)
    with contextlib.nullcontext() if preempted else pytest.raises(JobEnded):
        assert tests.step("muster-test-1") is None


@pytest.mark.parametrize("looks", [0, 1, 5])
def test_a_test_is_over_once_its_pod_is_gone(tests: PodTests, monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Until then it ends every node side on its node: that of the next test too, which waits for this."""
    left = [{"metadata": {"deletionTimestamp": "2100-06-01T08:00:00Z"}}] * looks
    monkeypatch.setattr(tests.api, "delete_pod", lambda *_: True)
    monkeypatch.setattr(tests.api, "pod", lambda *_: left.pop() if left else None)
    tests.end("muster-test-1")
    assert not left


@pytest.mark.parametrize(("due", "patience_s"), [("2100-06-01T08:00:00Z", 0.0), ("2026-06-01T08:00:00Z", 15.0)])
def test_a_test_whose_pod_does_not_end_is_not_over(
    tests: PodTests, monkeypatch: pytest.MonkeyPatch, due: str, patience_s: float
) -> None:
    """One that should have been gone long ago is not waited for again."""
    looks = iter([{"metadata": {"deletionTimestamp": due}}] * 2)
    monkeypatch.setattr("muster.admission.backends.kubernetes.pod.END_S", patience_s)
    monkeypatch.setattr(tests.api, "delete_pod", lambda *_: True)
    monkeypatch.setattr(tests.api, "pod", lambda *_: next(looks, None))
    with pytest.raises(SchedulerDown):
        tests.end("muster-test-1")


Stored = Callable[[dict[str, Any]], dict[str, Any]]


def begun(
    tests: PodTests, monkeypatch: pytest.MonkeyPatch, minutes: int, change: Stored = copy.deepcopy
) -> dict[str, Any]:
    """Returns the pod of a test whose stages may take so many minutes."""
    made: list[dict[str, Any]] = []
    running = {"status": {"phase": "Running"}}
    monkeypatch.setattr(tests.api, "create_pod", lambda namespace, pod: made.append(pod))
    monkeypatch.setattr(tests.api, "pod", lambda namespace, name: change(made[0]) | running if made else None)
    tests.begin("n0", "muster-test-1", minutes)
    return made[0]


def _as_stored(pod: dict[str, Any], container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """As an API server, or a webhook that it asks, stores a pod."""
    made: dict[str, Any] = copy.deepcopy(pod)
    (first,) = made["spec"]["containers"]
    first.update(container or {})
    made["spec"] |= {"schedulerName": "default-scheduler", "priority": -1_000_000_000, **spec}
    return made


def _sidecar(pod: dict[str, Any]) -> dict[str, Any]:
    return _as_stored(pod, containers=[{"name": "proxy"}, *_as_stored(pod)["spec"]["containers"]])


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (_as_stored, False),
        (_sidecar, False),
        (lambda pod: _as_stored(pod, {"resources": {"requests": {"cpu": "8", "memory": "64Gi"}}}), False),
        (lambda pod: _as_stored(pod, {"resources": {"requests": {"cpu": "4", "memory": "64Gi"}}}), True),
        (lambda pod: _as_stored(pod, {"resources": {}}), True),
        (lambda pod: _as_stored(pod, priorityClassName="high"), True),
        (lambda pod: _as_stored(pod, schedulerName="volcano"), True),
        (lambda pod: _as_stored(pod, hostPID=False), True),
        (lambda pod: _as_stored(pod, terminationGracePeriodSeconds=1), True),
        (lambda pod: _as_stored(pod) | {"metadata": {"name": pod["metadata"]["name"]}}, True),
    ],
    ids=[
        "as it is",
        "sidecar",
        "quantities",
        "fewer",
        "none",
        "priority",
        "scheduler",
        "host's processes",
        "grace",
        "no annotation",
    ],
)
def test_a_pod_that_a_webhook_changes_so_that_it_does_not_hold_its_node_or_give_it_back_is_deleted(
    tests: PodTests, kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch, change: Stored, refused: bool
) -> None:
    kubernetes.nodes["n0"]["status"]["allocatable"] = {"cpu": "8", "memory": str(64 * 2**30)}
    ended: list[str] = []
    monkeypatch.setattr(tests.api, "delete_pod", lambda namespace, name: ended.append(name))
    with pytest.raises(BadScheduler) if refused else contextlib.nullcontext():
        begun(tests, monkeypatch, 60, change)
    assert bool(ended) is refused


def test_a_changed_pod_that_could_not_be_deleted_is_refused_again(
    tests: PodTests, kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubernetes.nodes["n0"]["status"]["allocatable"] = {"cpu": "8"}

    def away(*_: str) -> None:
        raise SchedulerDown("no answer")

    stored: list[dict[str, Any]] = []
    monkeypatch.setattr(tests.api, "create_pod", lambda _, pod: stored.append(_as_stored(pod, {"resources": {}})))
    monkeypatch.setattr(tests.api, "pod", lambda *_: stored[0] | {"status": {"phase": "Running"}} if stored else None)
    monkeypatch.setattr(tests.api, "delete_pod", away)
    for _ in range(2):
        with pytest.raises(BadScheduler):
            tests.begin("n0", "muster-test-1", 60)
    assert len(stored) == 1


@pytest.mark.parametrize(("minutes", "lasts"), [(60, LIMIT_MINUTES), (LIMIT_MINUTES + 1, LIMIT_MINUTES + 1)])
def test_a_test_pod_may_run_for_a_day_or_for_as_long_as_its_stages(
    tests: PodTests, monkeypatch: pytest.MonkeyPatch, minutes: int, lasts: int
) -> None:
    assert begun(tests, monkeypatch, minutes)["spec"]["activeDeadlineSeconds"] == lasts * 60


def test_a_test_pod_may_signal_the_node_side_where_apparmor_or_selinux_confine_containers(
    tests: PodTests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node side is an unconfined process of the host; the default profile allows signals within itself alone."""
    pod = begun(tests, monkeypatch, 60)
    (container,) = pod["spec"]["containers"]
    confined = container["securityContext"]
    assert (confined["appArmorProfile"], confined["seLinuxOptions"]) == ({"type": "Unconfined"}, {"type": "spc_t"})
    older = f"container.apparmor.security.beta.kubernetes.io/{container['name']}"
    # The API server refuses two that differ.
    assert pod["metadata"]["annotations"].items() >= {older: "unconfined"}.items()


def test_a_pod_that_the_kubelet_refused_says_why() -> None:
    """The kubelet's admission writes no condition and no container's state."""
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
    scheduled = {"type": "PodScheduled", "status": "True"}
    ready = {"type": "Ready", "status": "False", "reason": "PodFailed"}
    assert _why_it_waits({"status": refused | {"conditions": [scheduled, ready]}}) == "Allocate failed"
