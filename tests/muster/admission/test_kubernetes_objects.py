"""The Kubernetes backend: rights that its login lacks, and objects that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.admission.backend import AdmissionBackend
from muster.admission.backends.kubernetes import Kubernetes
from muster.admission.clusters import backend_of
from muster.errors import SchedulerDown
from tests.support.servers.kubernetes import Cluster

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


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
