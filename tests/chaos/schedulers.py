"""The schedulers of a campaign as administrators and users reach them, with none of Muster's code."""

from __future__ import annotations

import base64
import json
import re
import ssl
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx

from muster_demo.services import ServiceFailed, Supervisor
from muster_demo.slurm import TESTS, USERS, Slurm
from tests.chaos.link import Link, Links
from tests.support.servers import kubernetes_server

PATIENCE_S = 5.0
TAINT, WRITTEN = "muster.dev/withdrawn", "muster.dev/certificate"
"""How Muster closes a node in Kubernetes: its taint, and the annotation that says why."""
WHY = "example.org/cordoned-for"
"""The annotation in which persons say why they cordoned a node."""


class Shown(NamedTuple):
    """A node as its scheduler shows it."""

    drained: bool
    reason: str


class Scheduler(Protocol):
    """One cluster of nodes. ``kind``: its name too; ``settings``, ``connection``: Muster's, as variables.

    Every method raises one of ``lives.TROUBLE`` where the scheduler does not answer.
    """

    kind: str
    names: tuple[str, ...]
    settings: dict[str, str]
    connection: dict[str, str]

    def shows(self) -> dict[str, Shown]:
        """Every node."""

    def drain(self, node: str, reason: str) -> None:
        """Close a node that no other person closed, as a person."""

    def resume(self, node: str) -> None:
        """Open a node that a person closed."""

    def submit(self, node: str, job: str, seconds: int) -> None:
        """Have a user's job of this name on the node, for so long at least."""

    def end(self, job: str) -> None:
        """End that job, if it does not end by itself."""


class OnSlurm:
    """The nodes that belong to Slurm."""

    kind = "slurm"

    def __init__(self, cluster: Slurm) -> None:
        self.cluster, self.names = cluster, cluster.names
        self.settings = {"kind": self.kind, "slurm_conf": str(cluster.conf), "test_partition": TESTS}
        self.connection: dict[str, str] = {}

    def shows(self) -> dict[str, Shown]:
        found = {}
        for line in self.cluster.call("scontrol", "-o", "show", "nodes").splitlines():
            name = re.search(r"NodeName=(\S+)", line)
            state = re.search(r"State=(\S+)", line)
            reason = re.search(r"Reason=(.*?) \[", line)
            if name and state:
                found[name[1]] = Shown("DRAIN" in state[1], reason[1] if reason else "")
        return found

    def drain(self, node: str, reason: str) -> None:
        self.cluster.update(node, "State=DRAIN", f"Reason={reason}")

    def resume(self, node: str) -> None:
        self.cluster.update(node, "State=RESUME")

    def submit(self, node: str, job: str, seconds: int) -> None:
        self.cluster.call(
            "sbatch", "--parsable", "--exclusive", f"--partition={USERS}", f"--nodelist={node}", f"--job-name={job}",
            "--output=/dev/null", f"--chdir={self.cluster.folder}", f"--wrap=sleep {seconds}",
        )  # fmt: skip

    def end(self, job: str) -> None:
        pass


def shown_by_kubernetes(node: dict[str, Any]) -> Shown:
    """A node of the API server: cordoned by a person, who says why, or else closed by Muster, which does."""
    metadata, spec = node["metadata"], node["spec"]
    tainted = any(taint["key"] == TAINT for taint in spec.get("taints") or [])
    cordoned = bool(spec.get("unschedulable"))
    reason = (metadata.get("annotations") or {}).get(WHY if cordoned else WRITTEN, "")
    return Shown(tainted or cordoned, reason if tainted or cordoned else "")


class OnKubernetes:
    """The nodes that belong to Kubernetes, whose API server Muster reaches over ``link`` and others without it."""

    kind = "kubernetes"

    def __init__(self, supervisor: Supervisor, folder: Path, names: tuple[str, ...], links: Links) -> None:
        """Start it. Raises ServiceFailed."""
        cluster = kubernetes_server.start(supervisor, folder, names)
        cluster.reset()
        self.names, self.settings = names, {"kind": self.kind, "connection": self.kind}
        login = cluster.kube_config(kubernetes_server.MUSTER)
        server = login["clusters"][0]["cluster"]
        self._api = httpx.Client(
            base_url=f"{server['server']}/api/v1/",
            headers={"Authorization": f"Bearer {kubernetes_server.ADMIN}"},
            verify=ssl.create_default_context(cadata=base64.b64decode(server["certificate-authority-data"]).decode()),
            timeout=PATIENCE_S,
        )
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder / "apiserver.crt", folder / "apiserver.key")
        port = httpx.URL(server["server"]).port
        assert port is not None
        self.link = Link(links, lambda: port, tls)
        server["server"] = f"https://127.0.0.1:{self.link.port}"
        conn = {"conn_type": "kubernetes", "extra": {"kube_config": login}}
        self.connection = {"AIRFLOW_CONN_KUBERNETES": json.dumps(conn)}

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        answer = self._api.request(method, path, **options)
        answer.raise_for_status()
        return answer.json()

    def _patch(self, node: str, why: str | None, version: str | None) -> None:
        """As ``kubectl cordon`` and ``uncordon``, unless another one changed the node since it had this version."""
        metadata = {"annotations": {WHY: why}, "resourceVersion": version}
        self._ask(
            "PATCH", f"nodes/{node}", params={"fieldManager": "kubectl-cordon"},
            headers={"Content-Type": "application/merge-patch+json"},
            content=json.dumps({"metadata": metadata, "spec": {"unschedulable": True if why else None}}),
        )  # fmt: skip

    def shows(self) -> dict[str, Shown]:
        return {each["metadata"]["name"]: shown_by_kubernetes(each) for each in self._ask("GET", "nodes")["items"]}

    def drain(self, node: str, reason: str) -> None:
        found = self._ask("GET", f"nodes/{node}")
        if found["spec"].get("unschedulable"):  # a cordon of what is cordoned changes nothing
            raise ServiceFailed(f"{node} is cordoned already")
        self._patch(node, reason, found["metadata"]["resourceVersion"])

    def resume(self, node: str) -> None:
        self._patch(node, None, None)

    def submit(self, node: str, job: str, seconds: int) -> None:
        """Bound at once, as by a scheduler; none binds a pod to a closed node."""
        if self.shows()[node].drained:
            raise ServiceFailed(f"{node} is closed")
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}
        self._ask("POST", "namespaces/default/pods", json={"metadata": {"name": job}, "spec": spec})

    def end(self, job: str) -> None:
        """It is gone at once, without a kubelet."""
        answer = self._api.delete(f"namespaces/default/pods/{job}", params={"gracePeriodSeconds": 0})
        if answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()
