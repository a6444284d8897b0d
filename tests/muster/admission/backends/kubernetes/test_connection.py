"""The connection to a cluster: one that has no rights, or names no cluster, is one error; where its keys lie."""

from __future__ import annotations

import base64
import errno
import json
import os
import ssl
import tempfile
from pathlib import Path
from typing import Any

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
    None, {}, {"kube_config": "{"}, {"kube_config": "# "}, {"kube_config_path": "/nowhere"}, {"in_cluster": "?"},
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


@pytest.mark.parametrize("user", ["{", '{"auth-provider": {"name": "oidc", "config": {"client-secret": "s3cret"}}}'])
def test_a_file_that_cannot_be_used_is_one_sentence_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kubernetes: Cluster, user: str
) -> None:
    config = {each: value for each, value in kubernetes.kube_config.items() if each != "users"}
    (tmp_path / "kubeconfig").write_text(f"{yaml.safe_dump(config)}users: [{{name: muster, user: {user}}}]")
    extra = {"kube_config_path": str(tmp_path / "kubeconfig")}
    monkeypatch.setenv("AIRFLOW_CONN_KUBE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    with pytest.raises(BadScheduler) as error:
        backend_of("kube")
    assert "s3cret" not in str(error.value)


def test_a_kubeconfig_without_users_needs_none(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that logs in by itself stands before such a server."""
    extra = {"kube_config": kubernetes.kube_config | {"users": None}}
    monkeypatch.setenv("AIRFLOW_CONN_KUBE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    with pytest.raises(SchedulerDown):
        backend_of("kube").look(["n0"])


@pytest.mark.parametrize(
    ("field", "before_6_3"), [("kube_config", False), ("kube_config_path", False), ("kube_config", True)]
)
def test_certificates_and_keys_of_a_kubeconfig_lie_in_no_file_and_end_with_the_backend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: str, before_6_3: bool
) -> None:
    """A task's process ends without exit handlers, which would remove them."""
    if before_6_3:
        make = os.memfd_create

        def older(name: str, flags: int = os.MFD_CLOEXEC) -> int:
            if flags & ~(os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING):
                raise OSError(errno.EINVAL, "")
            return make(name, flags)

        monkeypatch.setattr(os, "memfd_create", older)
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
        chosen = {"kind": "kubernetes", "connection": "kube", "context": "muster", "test_image": "busybox"}
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"kube": {**chosen, "end_corrupted_jobs": True}}))
        backend = backend_of("kube")
        assert backend.look(["n0"])["n0"].open
        assert not list(temporary.iterdir())
        assert files_in_memory()
        del backend
        assert not files_in_memory()


def files_in_memory() -> list[Path]:
    return [each for each in Path("/proc/self/fd").iterdir() if "memfd:muster-login" in os.path.realpath(each)]


def exec_login(
    kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch, command: str, script: str, path: str = "", **more: Any
) -> None:
    """A kubeconfig whose program gives the token. ``path``: the folders of programs; ``more``: fields of its user."""
    config = kubernetes.kube_config
    env = [{"name": "ITS_TOKEN", "value": TOKEN}, {"name": "PATH", "value": path or os.environ["PATH"]}]
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": ["-c", script], "env": env}
    its = {"name": "client.authentication.k8s.io/exec", "extension": "its settings"}
    config["clusters"][0]["cluster"]["extensions"] = [its]
    config["users"][0]["user"] = {"exec": {**program, "provideClusterInfo": True}, **more}
    extra = {"kube_config": config}
    monkeypatch.setenv("AIRFLOW_CONN_KUBE", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "1" if "sleep" in script else "20")


def test_a_program_of_the_kubeconfig_gives_the_token(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the cluster's settings for it, and the controller's environment, which names a provider's profile."""
    monkeypatch.setenv("ITS_PROFILE", "fleet")
    script = """case "$ITS_PROFILE $KUBERNETES_EXEC_INFO" in 'fleet {'*'"config": "its settings"'*) ;; *) exit 1;; esac
        printf '{"status": {"token": "%s"}}' "$ITS_TOKEN" """
    exec_login(kubernetes, monkeypatch, "sh", script)
    assert backend_of("kube").look(["n0"])["n0"].open


def test_a_program_of_the_kubeconfig_is_found_in_the_path_that_it_gets(
    kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "its-program").symlink_to("/bin/sh")
    script = """printf '{"status": {"token": "%s"}}' "$ITS_TOKEN" """
    exec_login(kubernetes, monkeypatch, "its-program", script, path=str(tmp_path))
    assert backend_of("kube").look(["n0"])["n0"].open


def test_a_login_of_a_provider_comes_before_a_program(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = {"name": "gcp", "config": {"access-token": TOKEN, "expiry": "2999-01-01T00:00:00Z"}}
    exec_login(kubernetes, monkeypatch, "no-such-program", "", **{"auth-provider": provider})
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
