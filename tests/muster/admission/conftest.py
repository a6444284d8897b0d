"""A real Slurm for the tests that need one, and the clusters of the settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.muster.admission.listed import Jobs
from tests.support import node_list
from tests.support.node_list import NodeList
from tests.support.servers import kubernetes_server, slurm
from tests.support.servers.kubernetes import Cluster
from tests.support.servers.kubernetes import running as running_kubernetes
from tests.support.servers.receiver import SECRET, Receiver, running
from tests.support.servers.slurm import Slurm


@pytest.fixture(scope="session")
def cluster() -> Iterator[Slurm]:
    with slurm.running(4) as server:
        yield server


@pytest.fixture
def alpha(cluster: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """The cluster as ``alpha`` of the settings, every node open and unmarked."""
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": {"kind": "slurm", "slurm_conf": str(cluster.conf)}}))
    monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "10")
    for name in cluster.names:
        cluster.call("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        cluster.update(name, "Reason=", "Extra=", "Comment=", "AvailableFeatures=", "ActiveFeatures=")
    cluster.await_nodes(cluster.names)
    yield cluster
    cluster.call("scancel", "--state=RUNNING", check=False)


def webhook_settings(patch: pytest.MonkeyPatch, receiver: Receiver, **changed: str) -> None:
    """Cluster ``hook`` of the settings."""
    chosen = {"kind": "webhook", "url": f"{receiver.url}/", "state_url": f"{receiver.url}/nodes", "connection": "hook"}
    patch.setenv("MUSTER_SCHEDULERS", json.dumps({"hook": chosen | changed}))
    patch.setenv("AIRFLOW_CONN_HOOK", json.dumps({"conn_type": "http", "password": SECRET}))
    patch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "1")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver of webhooks, as cluster ``hook`` of the settings."""
    with running() as server:
        webhook_settings(monkeypatch, server)
        yield server


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The stand-in of an API server, as cluster ``kube`` of the settings."""
    with running_kubernetes() as server:
        chosen = {"kind": "kubernetes", "connection": "kube", "context": "muster"}
        chosen |= {"closing_taints": ["acme.example/maintenance"]}
        extra = {"kube_config": server.kube_config}
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"kube": chosen}))
        monkeypatch.setenv("AIRFLOW_CONN_KUBE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
        monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "1")
        yield server


@pytest.fixture(scope="session")
def control_plane() -> Iterator[kubernetes_server.Cluster]:
    with kubernetes_server.running() as cluster:
        yield cluster


@pytest.fixture
def delta(
    control_plane: kubernetes_server.Cluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[kubernetes_server.Cluster]:
    """The real API server as ``delta`` of the settings, under the account that docs/examples makes for Muster."""
    extra = {"kube_config": control_plane.kube_config(kubernetes_server.MUSTER)}
    chosen = {"kind": "kubernetes", "connection": "delta", "test_image": "busybox"}
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"delta": chosen}))
    monkeypatch.setenv("AIRFLOW_CONN_DELTA", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "10")
    control_plane.reset()
    yield control_plane
    control_plane.reset()
    control_plane.enter = list(kubernetes_server.ALONE)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The list of cluster ``alpha``, which knows r1n1 and r1n2."""
    path = tmp_path / "nodes"
    path.write_text("r1n1\nr1n2\n")
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": node_list.chosen(path)}))
    return path


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Idle nodes of the list are tested as jobs."""
    found = Jobs()
    monkeypatch.setattr(NodeList, "tests", found)
    return found
