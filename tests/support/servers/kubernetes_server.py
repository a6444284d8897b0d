"""A real Kubernetes control plane for tests: etcd, kube-apiserver with RBAC, kube-scheduler; and a stand-in of kubelet.

``kubernetes_server.sh`` builds the servers. The kubelet stand-in copies what kubelet does with a pod that is bound to
its node: it runs the container's command for real, sends SIGTERM once the pod is deleted, SIGKILL after its grace
period, and then removes the pod. Images are not loaded, and no controller manager runs.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from kubernetes import client, config, utils
from kubernetes.client.exceptions import ApiException

from muster_demo.services import Supervisor, free_ports
from tests.support.plugins.services_needed import KUBERNETES
from tests.support.waiting import until

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
ADMIN, MUSTER = "token-of-admin", "token-of-muster"
USERS = f'{ADMIN},admin,1,system:masters\n{MUSTER},system:serviceaccount:muster:muster,2,"system:serviceaccounts"\n'
GPU = "nvidia.com/gpu"
API_SERVER = "kube-apiserver"
"""Its name as a service."""
STARTS_WITHIN_S = 60.0


def missing() -> bool:
    """Whether a part of the control plane is not installed."""
    return shutil.which("etcd") is None or not all(
        (KUBERNETES / f"kube-{name}").exists() for name in ("apiserver", "scheduler")
    )


ALONE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""What pods run in: a test pod ends every node side that it sees, and other tests run theirs on this machine."""


class Cluster:
    """A started cluster of nodes with eight GPUs each. ``core``: its API, as administrator."""

    def __init__(self, kube_config: Callable[[str], dict[str, Any]], nodes: tuple[str, ...]) -> None:
        self.kube_config = kube_config
        self.names = nodes
        self.api = config.new_client_from_config_dict(kube_config(ADMIN))
        self.core = client.CoreV1Api(self.api)
        self.enter = list(ALONE)
        """Words before each container's command, which lead to where the node's processes are."""

    def apply(self, manifest: str) -> None:
        """As ``kubectl apply`` of one of docs/examples, by the administrator; what exists already stays."""
        for document in yaml.safe_load_all((EXAMPLES / manifest).read_text()):
            with contextlib.suppress(utils.FailToCreateError):
                utils.create_from_dict(self.api, document)

    def node(self, name: str) -> Any:
        """Returns the node as the administrator sees it."""
        return self.core.read_node(name)

    def submit(self, name: str, node: str, *, gpus: int = 8, namespace: str = "default") -> None:
        """Create a pod of a user that needs the node's GPUs, for a minute."""
        amount = {GPU: str(gpus)}
        container = {"name": "c", "image": "i", "command": ["sleep", "60"], "resources": {"limits": amount}}
        spec = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container]}
        spec["tolerations"] = [{"key": GPU, "operator": "Exists"}]
        self.core.create_namespaced_pod(namespace, {"metadata": {"name": name}, "spec": spec})

    def phase(self, name: str, namespace: str = "default") -> str:
        """Returns the pod's phase, "" if there is none; "Ending" once it is deleted."""
        try:
            pod = self.core.read_namespaced_pod(name, namespace)
        except ApiException:
            return ""
        return "Ending" if pod.metadata.deletion_timestamp else str(pod.status.phase)

    def reset(self) -> None:
        """Every node open and unmarked, no pod and no event of one left."""
        self.core.delete_collection_namespaced_event("muster")
        for pod in self.core.list_pod_for_all_namespaces().items:
            with contextlib.suppress(ApiException):
                # The first process of a container ignores SIGTERM unless it handles it: each would wait 30 s.
                self.core.delete_namespaced_pod(pod.metadata.name, pod.metadata.namespace, grace_period_seconds=1)
        until(lambda: not self.core.list_pod_for_all_namespaces().items)
        for name in self.names:
            with contextlib.suppress(ApiException):
                self.core.delete_node(name)
            labels = {"kubernetes.io/hostname": name}
            spec = {"taints": [{"key": GPU, "effect": "NoSchedule"}]}
            self.core.create_node({"metadata": {"name": name, "labels": labels}, "spec": spec})
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready",
                     "lastHeartbeatTime": now, "lastTransitionTime": now}  # fmt: skip
            amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", GPU: "8"}
            status = {"conditions": [ready], "capacity": amounts, "allocatable": amounts}
            self.core.patch_node_status(name, {"status": status})
            # The API server taints each new node as not ready until its controller manager, which is not here, sees it.
            self.core.patch_node(name, {"spec": spec})


class Kubelet(threading.Thread):
    """Runs the pods of every node."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="kubelet", daemon=True)
        self.cluster = cluster
        self.over = threading.Event()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.terminated: dict[str, float] = {}

    def run(self) -> None:
        while not self.over.wait(0.1):
            with contextlib.suppress(ApiException):
                for pod in self.cluster.core.list_pod_for_all_namespaces().items:
                    self.care_for(pod)

    def care_for(self, pod: Any) -> None:
        about, process = pod.metadata, self.processes.get(pod.metadata.uid)
        if about.deletion_timestamp and process is not None:
            since = self.terminated.setdefault(about.uid, time.monotonic())
            if since + about.deletion_grace_period_seconds < time.monotonic():
                self.signal(process, signal.SIGKILL)
            elif since > time.monotonic() - 0.05:
                self.signal(process, signal.SIGTERM)
        if about.deletion_timestamp and (process is None or process.poll() is not None):
            self.cluster.core.delete_namespaced_pod(about.name, about.namespace, grace_period_seconds=0)
        elif not about.deletion_timestamp and pod.spec.node_name and process is None:
            words = [*self.cluster.enter, *pod.spec.containers[0].command]
            self.processes[about.uid] = subprocess.Popen(words)
            self.report(pod, "Running")
        elif process is not None and process.poll() is not None and pod.status.phase == "Running":
            self.report(pod, "Failed" if process.returncode else "Succeeded")

    def signal(self, process: subprocess.Popen[bytes], number: int) -> None:
        """Signal the container: the child of what enters its namespace, which passes its end on."""
        with contextlib.suppress(psutil.Error):
            for each in psutil.Process(process.pid).children() or [psutil.Process(process.pid)]:
                each.send_signal(number)

    def report(self, pod: Any, phase: str) -> None:
        body = {"status": {"phase": phase}}
        self.cluster.core.patch_namespaced_pod_status(pod.metadata.name, pod.metadata.namespace, body)

    def stop(self) -> None:
        self.over.set()
        self.join()
        for process in self.processes.values():
            process.kill()
            process.wait()


def start(supervisor: Supervisor, folder: Path, nodes: tuple[str, ...]) -> Cluster:
    """Start etcd and the API server, with what docs/examples gives Muster in it. Raises ServiceFailed.

    Nothing binds or runs pods. ``apiserver.crt`` and ``apiserver.key`` in ``folder`` are the server's.
    """
    folder.mkdir(exist_ok=True)
    etcd, peer, api = free_ports(3)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    (folder / "accounts.pem").write_bytes(key.private_bytes(*pem))
    (folder / "tokens.csv").write_text(USERS)

    def kube_config(token: str) -> dict[str, Any]:
        authority = base64.b64encode((folder / "apiserver.crt").read_bytes()).decode()
        server = {"server": f"https://127.0.0.1:{api}", "certificate-authority-data": authority}
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": server}], "users": [{"name": "it", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }  # fmt: skip

    def answers() -> bool:
        try:
            made = config.new_client_from_config_dict(kube_config(ADMIN))
            names = {each.metadata.name for each in client.CoreV1Api(made).list_namespace().items}
            found = client.SchedulingV1Api(made).list_priority_class().items
            return "default" in names and bool(found)
        except Exception:  # whatever a server answers that starts
            return False

    supervisor.start("etcd", [
        "etcd", f"--data-dir={folder}/etcd", f"--listen-client-urls=http://127.0.0.1:{etcd}",
        f"--advertise-client-urls=http://127.0.0.1:{etcd}", f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}", f"--initial-cluster=default=http://127.0.0.1:{peer}",
    ], dict(os.environ))  # fmt: skip
    supervisor.start(API_SERVER, [
        str(KUBERNETES / "kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{etcd}", f"--secure-port={api}",
        "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--cert-dir={folder}",
        f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24", "--service-account-issuer=https://muster.test",
        f"--service-account-key-file={folder}/accounts.pem",
        f"--service-account-signing-key-file={folder}/accounts.pem", "--disable-admission-plugins=ServiceAccount",
    ], dict(os.environ))  # fmt: skip
    supervisor.wait_until("the API server", answers, STARTS_WITHIN_S)
    cluster = Cluster(kube_config, nodes)
    for manifest in ("kubernetes_rbac.yaml", "kubernetes_idle_tests.yaml", "kubernetes_end_corrupted_jobs.yaml"):
        cluster.apply(manifest)
    return cluster


@contextlib.contextmanager
def running(nodes: tuple[str, ...] = ("n0", "n1")) -> Iterator[Cluster]:
    """A started cluster, in which pods are bound and run."""
    folder = Path(tempfile.mkdtemp(prefix="muster-kubernetes-"))
    supervisor = Supervisor(folder / "logs")
    try:
        cluster = start(supervisor, folder, nodes)
        (folder / "admin.yaml").write_text(yaml.safe_dump(cluster.kube_config(ADMIN)))
        supervisor.start("kube-scheduler", [
            str(KUBERNETES / "kube-scheduler"), f"--kubeconfig={folder}/admin.yaml", "--leader-elect=false",
            "--port=0", "--secure-port=0",
        ], dict(os.environ))  # fmt: skip
        kubelet = Kubelet(cluster)
        kubelet.start()
        try:
            yield cluster
        finally:
            kubelet.stop()
    finally:
        supervisor.stop()
        shutil.rmtree(folder, ignore_errors=True)
