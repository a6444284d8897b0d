"""A scheduler's commands: what they find in their environment."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from muster.admission.runner import KEPT, Runner
from muster.remote.connection.ssh import NodeAddress
from tests.support.servers import sshd

RUNNER = Runner(20.0, (("SLURM_CONF", "/etc/slurm/a b.conf"),))


def names(runner: Runner) -> set[str]:
    shown = runner.run("env").decode().splitlines()
    assert "SLURM_CONF=/etc/slurm/a b.conf" in shown
    return {line.partition("=")[0] for line in shown}


def test_a_command_finds_no_secret_of_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch hands its environment to the job, on the node that is tested."""
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/other.conf")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:secret@db/airflow")
    assert {"PATH", "SLURM_CONF"} <= names(RUNNER) <= {*KEPT}


@pytest.mark.needs_sshd
def test_nothing_of_a_login_node_changes_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with sshd.running(tmp_path / "sshd", {"SQUEUE_STATES": "PENDING", "SLURM_CLUSTERS": "other"}) as server:
        monkeypatch.setenv(sshd.CONNECTION, sshd.connection(server.key_file))
        found = names(dataclasses.replace(RUNNER, login=NodeAddress.of(server.node())))
    assert {"PATH", "SLURM_CONF"} <= found <= {*KEPT}
