"""The Kubernetes backend: rights that its login lacks, and objects that cannot be read, or are gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from kubernetes import client

from muster import store
from muster.admission import service
from muster.admission.backend import AdmissionBackend
from muster.admission.backends.kubernetes.backend import TAINT, Kubernetes
from muster.admission.clusters import backend_of
from muster.errors import SchedulerDown
from tests.muster import fleet
from tests.support.examples import examples
from tests.support.servers import kubernetes_server
from tests.support.servers.kubernetes import Cluster
from tests.support.waiting import until

ROOT = Path(__file__).parents[5]
FINE: dict[str, Any] = {"metadata": {"name": "fine", "namespace": "team"}}


@pytest.fixture
def backend(kubernetes: Cluster) -> AdmissionBackend:
    return backend_of("kube")


def test_a_login_that_lacks_a_right_is_told_which(backend: AdmissionBackend, kubernetes: Cluster) -> None:
    assert isinstance(backend, Kubernetes)
    backend.check_rights()
    for verb, what in sorted(kubernetes.granted):
        kubernetes.granted.discard((verb, what))
        with pytest.raises(SchedulerDown, match=f"{verb} {what}"):
            backend.check_rights()
        kubernetes.granted.add((verb, what))
    backend.check_rights()
    assert {method for method, _ in kubernetes.requests} == {"POST"}, "nothing was changed"


def test_the_file_that_gives_a_lacking_right_is_named(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"kind": "kubernetes", "connection": "kube", "context": "muster", "test_image": "busybox"}
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"kube": chosen | {"end_corrupted_jobs": True}}))
    backend = backend_of("kube")
    assert isinstance(backend, Kubernetes)
    with pytest.raises(SchedulerDown) as error:
        backend.check_rights()
    named = [file.name for file in (ROOT / "docs" / "examples").iterdir() if file.name in str(error.value)]
    assert sorted(named) == ["kubernetes_end_corrupted_jobs.yaml", "kubernetes_idle_tests.yaml"]


@pytest.mark.slow
@pytest.mark.needs_kubernetes
def test_a_real_api_server_names_each_right_that_the_documented_roles_lack(
    delta: kubernetes_server.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of docs/examples none is lacking; each verb that is taken away is the one that is named."""
    chosen = {"kind": "kubernetes", "connection": "delta", "test_image": "busybox", "end_corrupted_jobs": True}
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"delta": chosen}))
    backend = backend_of("delta")
    assert isinstance(backend, Kubernetes)

    def lacking() -> str:
        try:
            backend.check_rights()
        except SchedulerDown as error:
            return str(error)
        return ""

    rbac = client.RbacAuthorizationV1Api(delta.api)
    cluster = [(rbac.read_cluster_role, rbac.replace_cluster_role, (f"muster-{name}",))
               for name in ("admission", "idle-tests", "end-corrupted-jobs")]  # fmt: skip
    spaced = (rbac.read_namespaced_role, rbac.replace_namespaced_role, ("muster-idle-tests", "muster"))
    taken = []
    until(lambda: not lacking())  # the server's authorizer learns of a role a moment after it was written
    for read, replace, where in [*cluster, spaced]:
        whole = read(*where).rules
        for number, rule in enumerate(whole):
            for verb in rule.verbs:
                if (where[0], verb) == ("muster-idle-tests", "delete") and rule.resources == ["pods"]:
                    continue  # the role that ends corrupted jobs allows it in every namespace
                role = read(*where)
                role.rules[number].verbs = [each for each in rule.verbs if each != verb] or ["watch"]
                replace(*where, role)
                until(lambda verb=verb, rule=rule: f"{verb} {rule.resources[0]}" in lacking())
                role = read(*where)
                role.rules = whole
                replace(*where, role)
                until(lambda: not lacking())
                taken.append((verb, rule.resources[0]))
    assert len(taken) == 12
    with monkeypatch.context() as patch:
        extra = {"kube_config": delta.kube_config("an unknown token")}
        patch.setenv("AIRFLOW_CONN_DELTA", json.dumps({"conn_type": "kubernetes", "extra": extra}))
        with pytest.raises(SchedulerDown, match="401"):
            backend_of("delta").check_rights()


def test_the_documented_roles_allow_what_the_threats_page_says_and_no_more() -> None:
    allowed: dict[str, set[str]] = {}
    for file in (ROOT / "docs" / "examples").glob("kubernetes_*.yaml"):
        for document in yaml.safe_load_all(file.read_text()):
            for rule in document.get("rules", ()):
                assert set(rule) == {"apiGroups", "resources", "verbs"}, "no rights to addresses that are no resources"
                where = f"{file.stem.removeprefix('kubernetes_')}, {document['kind']}"
                rights = {f"{verb} {resource}" for verb in rule["verbs"] for resource in rule["resources"]}
                allowed.setdefault(where, set()).update(rights)
    assert allowed == {
        "rbac, ClusterRole": {"get nodes", "list nodes", "patch nodes", "patch nodes/status", "list pods"},
        "idle_tests, Role": {"get pods", "create pods", "delete pods", "list events"},
        "idle_tests, ClusterRole": {"list priorityclasses", "list resourceslices", "list resourceflavors"},
        "end_corrupted_jobs, ClusterRole": {"delete pods"},
    }


def test_a_token_that_no_header_can_hold_is_not_shown(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    config = kubernetes.kube_config
    config["users"][0]["user"]["token"] = "t0p\ns3cret"
    extra = {"kube_config": config}
    monkeypatch.setenv("AIRFLOW_CONN_KUBE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    with pytest.raises(SchedulerDown) as error:
        backend_of("kube").look(["n0"])
    assert "s3cret" not in str(error.value)


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@examples(13, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    odd=ODD, where=st.sampled_from(["pod", "metadata", "namespace", "name", "ownerReferences", "annotations", "spec"])
)
def test_a_pod_that_cannot_be_read_is_a_users_on_its_node_and_fails_no_other(
    backend: AdmissionBackend, monkeypatch: pytest.MonkeyPatch, kubernetes: Cluster, odd: object, where: str
) -> None:
    pod: Any = {"metadata": {"name": "p", "namespace": "team"}, "spec": {"nodeName": "n1"}}
    if where == "pod":
        pod = odd
    elif where in pod:
        pod[where] = odd
    else:
        pod["metadata"][where] = odd
    assert isinstance(backend, Kubernetes)
    monkeypatch.setattr(backend._api, "pods", lambda node="": [pod, {**FINE, "spec": {"nodeName": "n0"}}])
    shown = backend.look(["n0", "n1"])
    assert shown["n0"].open
    assert "team/fine" in shown["n0"].used_by
    if not isinstance(odd, dict) and where in ("pod", "metadata", "spec"):
        assert shown["n1"].used_by, "it is on that node, or may be"
    if where not in ("pod", "spec"):
        assert backend.look(["n0", "n2"])["n0"].used_by == "pod team/fine", "its node is known"


@pytest.mark.parametrize("odd", [None, 7, {}, {"metadata": None}, {"metadata": {"name": "n1", "labels": 7}}])
def test_a_node_that_cannot_be_read_fails_no_other(
    backend: AdmissionBackend, kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch, odd: object
) -> None:
    assert isinstance(backend, Kubernetes)
    monkeypatch.setattr(backend._api, "nodes", lambda: [odd, kubernetes.nodes["n0"]])
    shown = backend.look(["n0", "n1"])
    assert shown["n0"].open
    assert "n1" not in shown or shown["n1"].apart


def test_a_node_that_was_deleted_is_withdrawn_and_closed_when_it_returns(kubernetes: Cluster, fleet_db: str) -> None:
    node = fleet.new_node().name
    store.nodes.add(fleet.new_node())
    store.schedulers.assign(node, "kube", "n0", "Ada", "rack 1")
    gone = kubernetes.nodes.pop("n0")
    assert service.carry_out(node) == ""
    kubernetes.nodes["n0"] = gone
    service.reconcile()
    assert TAINT in {each["key"] for each in kubernetes.nodes["n0"]["spec"]["taints"]}
