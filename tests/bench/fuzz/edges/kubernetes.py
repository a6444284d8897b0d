"""Kubernetes' answers about nodes and pods, up to what is known of each node.

One node in trouble and one that is free are among them: the first never counts as free, the second is always read.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from muster.admission.backends.kubernetes.backend import TAINT, Kubernetes
from muster.admission.backends.kubernetes.settings import KubernetesSettings
from muster.errors import MusterError, SchedulerDown
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

CREATED = "2026-05-01T00:00:00Z"


def _node(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "creationTimestamp": CREATED, "labels": {"muster.dev/admitted": "true"},
                     "annotations": {}, "managedFields": []},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}], **spec},
        "status": {"conditions": [{"type": each, "status": "True"} for each in ("Ready", "muster.dev/Qualified")]},
    }  # fmt: skip


def _pod(name: str, node: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team", **metadata}, "spec": {"nodeName": node}}


CORDON = {"manager": "kubectl-cordon", "time": "2026-06-01T00:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
NODES = [
    _node("n3", taints=[{"key": TAINT, "effect": "NoSchedule"}]),
    {**_node("n4", unschedulable=True), "metadata": {**_node("n4")["metadata"], "managedFields": [CORDON]}},
]
PODS = [_pod("train-0", "n3", ownerReferences=[{"kind": "Job", "name": "train"}]),
        _pod("exporter", "n2", ownerReferences=[{"kind": "DaemonSet", "name": "exporter"}])]  # fmt: skip
TROUBLE: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "not ready": ({**_node("n1"), "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, []),
    "cordoned": (_node("n1", unschedulable=True), []),
    "being removed": (_node("n1", taints=[{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]), []),
    "in use": (_node("n1"), [_pod("train-1", "n1")]),
    "in use by a pod of which little can be read": (_node("n1"), [{"metadata": None, "spec": {"nodeName": "n1"}}]),
    "without conditions": ({**_node("n1"), "status": {}}, []),
}


class _Api:
    """Answers as the API server's lists."""

    def __init__(self, nodes: Any, pods: Any) -> None:
        self._nodes, self._pods = nodes, pods

    def begin(self) -> None:
        return

    def nodes(self) -> Iterator[Any]:
        return self._items(self._nodes)

    def pods(self, node: str = "") -> Iterator[Any]:
        return self._items(self._pods)

    def _items(self, items: Any) -> Iterator[Any]:
        if not isinstance(items, list):
            raise SchedulerDown("Kubernetes sent no list")
        yield from items


def _draw(rng: random.Random) -> Sample:
    what, (node, pods) = rng.choice(list(TROUBLE.items()))
    drawn = {"nodes": copy.deepcopy(NODES), "pods": copy.deepcopy(PODS)}
    drawn = {kind: mutate.document(rng, items) for kind, items in drawn.items() if rng.random() < 0.8}
    beside = drawn.get("nodes", NODES)
    if isinstance(beside, list):
        drawn["nodes"] = [*beside, node, _node("n2")]
    used = drawn.get("pods", PODS)
    if isinstance(used, list):
        drawn["pods"] = [*used, *pods]
    return Sample(json.loads(json.dumps(drawn)), what)


def _read(sample: Sample) -> Taken:
    cluster = Kubernetes.__new__(Kubernetes)
    cluster._chosen = KubernetesSettings(kind="kubernetes", connection="kube")
    cluster._api = _Api(sample.data.get("nodes"), sample.data.get("pods"))  # type: ignore[assignment]
    cluster.tests = None
    seen = cluster.look(["n1", "n2", "n3", "n4"])
    alone = [] if seen.get("n2") and seen["n2"].open else ["a free node is not read as open beside others"]
    texts = [each.idle.why for each in seen.values()]
    return Taken(texts, alone, well="n1" in seen and seen["n1"].idle.idle)


EDGE = Edge(_draw, _read, (MusterError,), peak_bytes=32 * 2**20)
