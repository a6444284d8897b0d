"""A real Slurm and a real Kubernetes that run tests of idle nodes as jobs, driven in the same way."""

from __future__ import annotations

import getpass
import json
from typing import Protocol

import pytest

from muster import store
from muster.admission import service
from muster.admission.backend import TEST_PREFIX
from muster.admission.backends.kubernetes.backend import TAINT
from muster.model.runs import RunKey
from muster.model.states import State
from tests.muster import fleet
from tests.support.servers import kubernetes_server
from tests.support.servers.slurm import Slurm
from tests.support.waiting import until

SLURM = [pytest.mark.slow, pytest.mark.needs_slurm]
KUBERNETES = [pytest.mark.slow, pytest.mark.needs_kubernetes]
NODE = "gpu-0001"
NAME = "n0"
RUN = RunKey("node_revalidation", "hourly")
PARAMS = {"node": NODE, "level": "demo", "reason": "idle"}


class Scheduler(Protocol):
    """A real scheduler. ``submit``: a job of a user that needs the whole node; ``ours``: our test jobs."""

    name: str

    def use(self, **settings: object) -> None: ...
    def submit(self, node: str = NAME) -> str: ...
    def runs(self, job: str) -> bool: ...
    def shown(self, job: str) -> str: ...
    def ours(self) -> list[str]: ...
    def closed(self) -> bool: ...
    def lose(self, how: str) -> None: ...


class OnSlurm:
    name = "alpha"

    def __init__(self, cluster: Slurm, patch: pytest.MonkeyPatch) -> None:
        self.cluster, self.patch = cluster, patch
        self.use()

    def use(self, **settings: object) -> None:
        chosen = {"kind": "slurm", "slurm_conf": str(self.cluster.conf), "test_partition": "muster", **settings}
        self.patch.setenv("MUSTER_SCHEDULERS", json.dumps({self.name: chosen}))

    def submit(self, node: str = NAME) -> str:
        wanted = ("sbatch", "--parsable", "--exclusive", f"--nodelist={node}", "--output=/dev/null", "--chdir=/tmp")
        return self.cluster.call(*wanted, "--job-name=train|x", "--wrap=sleep 60").strip()

    def runs(self, job: str) -> bool:
        shown = self.cluster.call("squeue", "--noheader", "--jobs", job, "--format=%T", check=False)
        return shown.strip() == "RUNNING"

    def shown(self, job: str) -> str:
        return f"{job} (train|x) of {getpass.getuser()}"

    def ours(self) -> list[str]:
        shown = self.cluster.call("squeue", "--noheader", "--format=%j").split()
        return [name for name in shown if name.startswith(TEST_PREFIX)]

    def closed(self) -> bool:
        return "DRAIN" in self.cluster.show(NAME)

    def lose(self, how: str) -> None:
        if how == "node":
            self.cluster.update(NAME, "State=DOWN", "Reason=psu")
        else:
            self.cluster.call("scancel", "--name", self.ours()[0])


class OnKubernetes:
    name = "delta"

    def __init__(self, cluster: kubernetes_server.Cluster, patch: pytest.MonkeyPatch) -> None:
        self.cluster, self.patch, self.count = cluster, patch, 0
        self.use()

    def use(self, **settings: object) -> None:
        chosen = {"kind": "kubernetes", "connection": "delta", "test_image": "busybox", **settings}
        self.patch.setenv("MUSTER_SCHEDULERS", json.dumps({self.name: chosen}))

    def submit(self, node: str = NAME) -> str:
        self.count += 1
        name = f"train-{self.count}"
        self.cluster.submit(name, node)
        return name

    def runs(self, job: str) -> bool:
        return self.cluster.phase(job) == "Running"

    def shown(self, job: str) -> str:
        return f"default/{job}"

    def ours(self) -> list[str]:
        return [pod.metadata.name for pod in self.cluster.core.list_namespaced_pod("muster").items]

    def closed(self) -> bool:
        return TAINT in {each.key for each in self.cluster.node(NAME).spec.taints or ()}

    def lose(self, how: str) -> None:
        """The node: kubelet marks pods that it evicts as failed."""
        (job,) = self.ours()
        if how == "person":
            self.cluster.core.delete_namespaced_pod(job, "muster")
            return
        body = {"status": {"phase": "Failed", "reason": "Evicted"}}
        self.cluster.core.patch_namespaced_pod_status(job, "muster", body)
        self.cluster.core.delete_namespaced_pod(job, "muster")


def serve(scheduler: Scheduler, patch: pytest.MonkeyPatch) -> None:
    """A node in production, open in its scheduler."""
    patch.setattr("muster.operators.testing.claims.controller_ready", lambda: None)  # of SSH and keys, tested elsewhere
    store.nodes.add(fleet.new_node(NODE))
    fleet.qualify(NODE)
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "needed now")
    store.schedulers.assign(NODE, scheduler.name, NAME, "Ada", "rack 1")
    until(lambda: service.carry_out(NODE) == "" and service.idle([NODE])[NODE].idle)  # it may be planned for a job
