"""The connection to a cluster: one that has no rights, or names no cluster, is one error; where its keys lie."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from pathlib import Path

import pytest
import yaml

from muster.admission.clusters import backend_of
from muster.errors import BadScheduler, SchedulerDown
from tests.support.servers.bmc import certificate
from tests.support.servers.kubernetes import TOKEN, Cluster, running


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


@pytest.mark.parametrize("field", ["kube_config", "kube_config_path"])
def test_certificates_and_keys_of_a_kubeconfig_lie_in_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: str
) -> None:
    """A task's process ends without exit handlers, which would remove them."""
    pem = certificate(tmp_path)
    known = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    known.load_cert_chain(pem)
    known.load_verify_locations(pem)
    known.verify_mode = ssl.CERT_REQUIRED
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    text = base64.b64encode(pem.read_bytes()).decode()
    with running(known) as server:
        config = server.kube_config
        config["clusters"][0]["cluster"]["certificate-authority-data"] = text
        config["users"][0]["user"] |= {"client-certificate-data": text, "client-key-data": text}
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
        extra = {field: config if field == "kube_config" else str(tmp_path / "kubeconfig")}
        monkeypatch.setenv("AIRFLOW_CONN_KUBE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
        chosen = {"kind": "kubernetes", "connection": "kube", "context": "muster"}
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"kube": chosen}))
        backend = backend_of("kube")
        assert backend.look(["n0"])["n0"].open
        assert not list(temporary.iterdir())


def exec_login(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch, command: str, script: str) -> None:
    """A kubeconfig whose program gives the token."""
    config = kubernetes.kube_config
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": ["-c", script]}
    config["users"][0]["user"] = {"exec": {**program, "env": [{"name": "ITS_TOKEN", "value": TOKEN}]}}
    extra = {"kube_config": config}
    monkeypatch.setenv("AIRFLOW_CONN_KUBE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "1" if "sleep" in script else "20")


def test_a_program_of_the_kubeconfig_gives_the_token(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the controller's environment too, where the profile of a provider's login is named."""
    monkeypatch.setenv("ITS_PROFILE", "fleet")
    script = """[ "$ITS_PROFILE" = fleet ] && printf '{"status": {"token": "%s"}}' "$ITS_TOKEN" """
    exec_login(kubernetes, monkeypatch, "sh", script)
    assert backend_of("kube").look(["n0"])["n0"].open


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("sh", "echo its cause, s3cret | cut -d, -f1 >&2; exit 1"),
        ("sh", "exec sleep 60"),
        ("sh", "echo '{}'"),
        ("sh", 'echo \'{"status": {"clientCertificateData": "x"}}\''),
        ("no-such-program", ""),
    ],
)
def test_a_program_of_the_kubeconfig_that_gives_none_is_one_error_with_its_cause(
    kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch, command: str, script: str
) -> None:
    exec_login(kubernetes, monkeypatch, command, script)
    with pytest.raises(SchedulerDown if command == "sh" else BadScheduler) as error:
        backend_of("kube")
    assert ("its cause" in str(error.value)) is ("its cause" in script)
    assert "s3cret" not in str(error.value)
    assert not kubernetes.requests
