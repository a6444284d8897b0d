"""Lists of all nodes and pods: who asks for them, what is kept of each object, and lists that fail."""

from __future__ import annotations

import json

import pytest

from muster import store
from muster.admission import service
from muster.admission.backends.kubernetes.backend import REQUEST, Kubernetes
from muster.admission.clusters import backend_of
from muster.admission.silence import silence
from muster.errors import SchedulerDown
from tests.muster import fleet
from tests.support.servers.kubernetes import Cluster


def test_only_who_uses_a_node_is_asked_of_all_pods(kubernetes: Cluster, fleet_db: str) -> None:
    names = []
    for place in ("n0", "n1"):
        store.nodes.add(node := fleet.new_node())
        store.schedulers.assign(node.name, "kube", place, "Ada", "rack 1")
        names.append(node.name)
    service.reconcile()
    silence(names)
    listed = ("GET", "/api/v1/pods")
    assert listed not in kubernetes.requests
    service.idle(names)
    assert listed in kubernetes.requests


def test_what_a_list_keeps_is_all_that_is_read_of_it(kubernetes: Cluster) -> None:
    backend = backend_of("kube")
    assert isinstance(backend, Kubernetes)
    kubernetes.cordon("n0")
    kubernetes.write("n0", "kubectl-annotate", {"metadata": {"annotations": {REQUEST: "ECC?"}}})
    backend.withdraw("n0", "failed burn_in")
    kubernetes.nodes["n0"]["status"]["images"] = [{"names": ["registry.example/train"]}]
    kubernetes.pod("exporter", "n0", ownerReferences=[{"kind": "DaemonSet", "name": "exporter"}])
    kubernetes.pod("proxy", "n0", annotations={"kubernetes.io/config.mirror": "1", "last-applied": "{}"})
    kubernetes.pod("train-0", "n1")
    for pod in kubernetes.pods:
        pod["spec"]["containers"] = [{"name": "c"}]
    together = backend.look(["n0", "n1"])
    assert together == {name: backend.look([name])[name] for name in ("n0", "n1")}
    assert together["n1"].used_by
    assert not together["n0"].used_by
    kept = list(backend._api.pods())
    assert len(kept) == 3
    assert not any("containers" in pod["spec"] or "last-applied" in pod["metadata"] for pod in kept)
    assert all("containers" in pod["spec"] for pod in backend._api.pods("n0"))
    assert not any("images" in node["status"] for node in backend._api.nodes())


@pytest.mark.parametrize(
    ("system", "idle"),
    [([], False), (["kube-system"], True), (["kube-*"], True), (["*"], True), (["kube"], False), (["Kube-*"], False)],
)
def test_namespaces_of_the_system_are_names_or_patterns(
    kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch, system: list[str], idle: bool
) -> None:
    chosen = {"kind": "kubernetes", "connection": "kube", "context": "muster", "system_namespaces": system}
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"kube": chosen}))
    kubernetes.pod("coredns", "n0", namespace="kube-system")
    assert backend_of("kube").look(["n0"])["n0"].idle.idle is idle


@pytest.mark.parametrize("mood", ["410", "cut", "babble"])
def test_a_list_that_breaks_off_is_no_shorter_list(kubernetes: Cluster, mood: str) -> None:
    for number in range(5):
        kubernetes.pod(f"train-{number}", "n1")
    kubernetes.mood = ["", "", mood]
    with pytest.raises(SchedulerDown):
        backend_of("kube").look(["n0", "n1"])


def test_a_conflict_where_there_can_be_none_is_one_error(kubernetes: Cluster) -> None:
    kubernetes.mood = ["409"]
    with pytest.raises(SchedulerDown):
        backend_of("kube").look(["n0"])
