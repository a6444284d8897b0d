"""A real Slurm for the tests that need one, and the clusters of the settings."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support import slurm
from tests.support.slurm import Slurm


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
