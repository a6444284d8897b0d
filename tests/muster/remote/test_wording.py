"""The wording of the room's refusals: launch settings, BMCs, SSH and its files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import paramiko
import pytest
from syrupy.assertion import SnapshotAssertion

from muster.remote import repairing
from muster.remote.bmc import bmc
from muster.remote.bmc.redfish import read_chassis
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.job import jobs, launch
from muster_demo.services import free_port
from tests.muster.remote.job.test_jobs import KEY
from tests.support.servers import bmc as bmcs
from tests.support.servers.sshd import Sshd
from tests.support.wording import refused

LAUNCHES: list[dict[str, object]] = [
    {"kind": "vm"},
    {"kind": "venv"},
    {"kind": "docker"},
    {"kind": "docker", "image": "--privileged"},
    {"python": "-c"},
    {"kind": "venv", "path": "~/torch"},
    {"env": {"MUSTER_FENCE": "fence"}},
    {"env": {"A B": "1"}},
    {"pyton": "python3"},
]
BMCS: list[dict[str, str]] = [
    {"url": "10.0.0.7"},
    {"url": "https://root:calvin@10.0.0.7"},
    {"url": "https://b", "password": "calvin"},
    {"url": "https://b", "connection": "c", "password_env": "MUSTER_BMC_P", "user": "u"},
    {"url": "https://b", "password_env": "MUSTER_BMC_P"},
    {"url": "https://b", "user": "u", "password_env": "AIRFLOW__CORE__FERNET_KEY"},
    {"url": "http://b", "user": "u", "password_env": "MUSTER_BMC_P"},
    {"url": "http://b", "connection": "c"},
    {"url": "https://b", "user": "u"},
]
HOST_KEYS = ("", "ssh-ed25519", "ssh-ed25519 !!!", "ssh-new AAAA", "ssh-ed25519 AAAA")


def test_wording_of_refused_descriptions(snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "https://admin:calvin@elsewhere")
    logins = [
        bmc.Bmc(url="https://b", user="root", password_env="MUSTER_BMC_PASSWORD"),
        bmc.Bmc(url="https://b", connection="absent"),
        bmc.Bmc(url="https://b", connection="other"),
    ]
    refusals = [
        *(refused(launch.parse_launch, described) for described in LAUNCHES),
        *(refused(bmc.parse_bmc, described) for described in BMCS),
        *(refused(bmc.login, described) for described in logins),
        *(refused(ssh.pinned_key, ssh.NodeAddress("n1", "h", 22, "", text)) for text in HOST_KEYS),
        refused(jobs.paths, "/work", "../../etc"),
        refused(jobs.paths, "/a/../etc", KEY),
    ]
    assert "\n".join(refusals) == snapshot
    assert "calvin" not in "\n".join(refusals)


def test_wording_of_a_silent_bmc(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    bmcs.write(tmp_path)
    with bmcs.static(tmp_path) as url:
        refusals = []
        for limit_s in (30.0, 0.0):
            shown = read_chassis(bmc.Bmc(url=url), bmc.Login(), timeout_s=5.0, limit_s=limit_s)
            refusals.append(shown.trouble.replace(url, "URL"))
    assert "\n".join(refusals) == snapshot


def test_wording_of_a_login_shell_that_is_none(snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tcsh 6.24 says to a script of several lines."""
    said = ssh.Completed(1, b"", b"Unmatched '''.\n")
    monkeypatch.setattr(ssh, "run", lambda *_, **__: said)
    assert refused(jobs.look, paramiko.SSHClient(), "muster", KEY, "") == snapshot


def test_wording_of_orders_to_a_bmc(snapshot: SnapshotAssertion) -> None:
    """As the records have them: what was done, where it is not what the rung is called."""
    assert "\n".join(repairing._KINDS.values()) == snapshot


@pytest.mark.needs_sshd
def test_wording_of_a_node_that_refuses(
    server: Sshd, client: paramiko.SSHClient, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    node = server.node()
    (tmp_path / "large").write_bytes(b"x" * 2000)
    (tmp_path / "link").symlink_to("/etc/passwd")
    own, foreign = (Credentials(key_file=str(server.folder / name)) for name in ("login", "foreign"))
    away = dataclasses.replace(node, port=free_port())
    refusals = [
        refused(ssh.connect, server.node(host_key=server.key_text("foreign")), own),
        refused(ssh.connect, node, foreign),
        refused(ssh.connect, away, foreign),
        refused(ssh.scan_host_key, "127.0.0.1", away.port, Credentials(), timeout=2),
        *(refused(ssh.fetch, client, str(tmp_path / name), max_bytes=1000) for name in ("large", "link", "")),
        refused(ssh.store, client, str(tmp_path / "large" / "file"), b""),
        refused(ssh.run, client, "sleep 600", timeout=0.5),
        refused(ssh.run, ssh.connect(node, own), ssh.shell("sleep 600"), timeout=0.5, to="look at the job"),
    ]
    text = "\n".join(refusals)
    for shown, stands_for in ((node.port, "PORT"), (away.port, "PORT"), (tmp_path, "FOLDER")):
        text = text.replace(str(shown), stands_for)
    for which in ("host", "foreign"):
        key = ssh.pinned_key(dataclasses.replace(node, host_key=server.key_text(which)))
        text = text.replace(ssh._fingerprint(key), which.upper())
    assert text == snapshot
