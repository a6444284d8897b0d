"""Users' pods on a node of Kubernetes: which of its pods are jobs, and how those on a node that corrupts data end."""

from __future__ import annotations

import datetime
import json

import pytest

from muster.admission.backend import Mark
from muster.admission.backends.kubernetes.backend import Kubernetes
from muster.admission.clusters import backend_of
from muster.errors import SchedulerDown
from tests.support.servers.kubernetes import Cluster


def test_users_pods_are_jobs_and_those_of_the_node_are_not(kubernetes: Cluster) -> None:
    backend = backend_of("kube")
    kubernetes.pod("exporter", "n0", ownerReferences=[{"kind": "DaemonSet", "name": "exporter"}])
    kubernetes.pod("coredns", "n0", namespace="kube-system")
    kubernetes.pod("other", "n1")
    assert backend.look(["n0"])["n0"].idle.idle
    assert backend.look(["n0", "n1", "n9"])["n1"].used_by
    kubernetes.pod("train-0", "n0")
    assert "team/train-0" in backend.look(["n0"])["n0"].used_by
    backend.withdraw("n0", "revalidation")
    assert len(kubernetes.pods) == 4
    backend.admit("n0", Mark("PASS", datetime.date(2026, 11, 23), "c-1"))
    kubernetes.pods[-1]["status"]["phase"] = "Succeeded"
    assert backend.look(["n0"])["n0"].idle.idle


def test_a_test_pod_that_is_left_of_former_settings_is_no_users(kubernetes: Cluster) -> None:
    """Without ``test_image`` nothing ends it, and it would keep its node from all tests for a day."""
    kubernetes.pod("muster-test-1", "n0", namespace="muster")
    assert backend_of("kube").look(["n0"])["n0"].idle.idle


@pytest.fixture
def ending(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> Kubernetes:
    """A backend that ends users' pods on a node that corrupts data."""
    chosen = {"kind": "kubernetes", "connection": "kube", "context": "muster", "end_corrupted_jobs": True}
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"kube": chosen}))
    kubernetes.granted |= {("delete", "pods")}
    backend = backend_of("kube")
    assert isinstance(backend, Kubernetes)
    for name in ("train-0", "train-1"):
        kubernetes.pod(name, "n0")
    return backend


def test_a_pod_that_was_deleted_is_named_though_the_next_cannot_be_deleted(
    ending: Kubernetes, kubernetes: Cluster
) -> None:
    assert ending.end_jobs
    ended = iter(ending.end_jobs("n0"))
    assert next(ended) == "team/train-0"
    kubernetes.mood = ["500"]
    with pytest.raises(SchedulerDown):
        next(ended)


def test_a_pod_that_was_made_again_since_the_list_is_neither_deleted_nor_named(
    ending: Kubernetes, kubernetes: Cluster
) -> None:
    """As of a StatefulSet, on another node and under the same name."""
    assert ending.end_jobs
    ended = iter(ending.end_jobs("n0"))
    assert next(ended) == "team/train-0"
    kubernetes.pods.clear()
    kubernetes.pod("train-1", "n1", uid="another")
    assert list(ended) == []
    assert [each["spec"]["nodeName"] for each in kubernetes.pods] == ["n1"]
