"""The connection to a cluster: one that has no rights, or names no cluster, is one error."""

from __future__ import annotations

import json

import pytest

from muster.admission.clusters import backend_of
from muster.errors import BadScheduler, SchedulerDown
from tests.support.servers.kubernetes import Cluster


def test_the_current_context_has_no_rights_and_that_is_one_error(
    kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"kind": "kubernetes", "connection": "kube"}
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"kube": chosen, "no": {**chosen, "context": "nowhere"}}))
    with pytest.raises(SchedulerDown):
        backend_of("kube").look(["n0"])
    with pytest.raises(BadScheduler):
        backend_of("no")


NO_CLUSTER: list[dict[str, str] | None] = [
    None, {}, {"kube_config": "{"}, {"kube_config_path": "/nowhere"}, {"in_cluster": "?"},
]  # fmt: skip


@pytest.mark.parametrize("extra", NO_CLUSTER)
def test_a_connection_that_names_no_cluster_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, kubernetes: Cluster, extra: dict[str, str] | None
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_KUBE")
    if extra is not None:
        monkeypatch.setenv("AIRFLOW_CONN_KUBE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    with pytest.raises(BadScheduler):
        backend_of("kube")
