"""The wording of the room's refusals: one snapshot, renewed by ``make wording``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from muster import store
from muster.admission import clusters, service
from muster.admission.clusters import backend_of
from muster.admission.entry import admit_by
from muster.model.states import State
from tests.muster import fleet
from tests.muster.admission.backends.kubernetes.test_connection import NO_CLUSTER
from tests.muster.admission.test_backends import UNCONFIGURED
from tests.support.servers.kubernetes import Cluster
from tests.support.wording import refused

pytestmark = pytest.mark.usefixtures("fleet_db")


def test_wording_of_settings(snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = []
    taints = {"kind": "kubernetes", "connection": "k", "closing_taints": ["acme.example/maintenance:NoSchedule"]}
    for chosen in (
        *UNCONFIGURED,
        {"alpha": {"kind": "webhook", "url": "http://scheduler.example.org/muster"}},
        {"alpha": taints},
    ):
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps(chosen))
        refusals.append(refused(backend_of, "alpha"))
    assert "\n".join(refusals) == snapshot


def test_wording_of_connections(
    snapshot: SnapshotAssertion, kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = []
    for extra in NO_CLUSTER:
        monkeypatch.delenv("AIRFLOW_CONN_KUBE", raising=False)
        if extra is not None:
            monkeypatch.setenv("AIRFLOW_CONN_KUBE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
        refusals.append(refused(backend_of, "kube"))
    assert "\n".join(refusals) == snapshot


def test_wording_of_places_and_differences(nodes: Path, snapshot: SnapshotAssertion) -> None:
    for name in ("gpu-0001", "gpu-0002"):
        store.nodes.add(fleet.new_node(name))
    store.schedulers.assign("gpu-0001", "alpha", "r1n1", "Ada", "rack 1")
    refusals = [
        refused(clusters.check, "alpha", ["r9n9"]),
        refused(clusters.check, "beta", ["r1n1"]),
        refused(store.schedulers.assign, "gpu-0002", "alpha", "r1n1", "Ada", "x"),
        service.idle(["gpu-0002"])["gpu-0002"].why,
    ]
    service.reconcile()
    nodes.write_text("r1n1\n")
    refusals += service.reconcile()
    nodes.write_text("")
    refusals += service.reconcile()
    store.nodes.move("gpu-0001", State.QUARANTINE, "Ada", "noise")
    refusals.append(refused(admit_by, "gpu-0001", "Ada", "needed"))
    assert "\n".join(refusals) == snapshot
