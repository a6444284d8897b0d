"""Kubernetes: a taint, a label, an annotation and the node condition ``muster.dev/Qualified``, all ours.

Muster never cordons: every cordon is somebody else's. A cordon and our taint can coexist, and each closes the node by
itself. Taints of others are never changed. Pods that tolerate every taint also start on a closed node.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import pydantic

from muster.admission.backend import TEST_PREFIX, VERIFY, AdmissionBackend, Mark, Seen, each_alone
from muster.admission.backends.kubernetes.api import MIRROR, Api, Right
from muster.admission.backends.kubernetes.login import KubernetesLogin, client_of
from muster.admission.backends.kubernetes.pod import EXAMPLE, PodTests
from muster.admission.backends.kubernetes.settings import KubernetesSettings
from muster.errors import LeftAlone, SchedulerDown
from muster.model.schedulers import UsersJob
from muster.settings import settings
from muster_criteria.text import one_line

log = logging.getLogger(__name__)

TAINT = "muster.dev/withdrawn"
CONDITION = "muster.dev/Qualified"
LABEL = "muster.dev/admitted"
"""The label of every admitted node. It is constant: pods may select it, and it says nothing else."""

ANNOTATION = "muster.dev/certificate"
"""The annotation with verdict, date and certificate of an admitted node, or why a node is withdrawn."""

REQUEST = "muster.dev/verify"
"""The annotation by which a person who cordoned a node requests a test, as ``muster:verify`` in other schedulers.

It is ignored if it is older than the cordon: it was forgotten, and the cordon may be another person's. It is also
ignored if its field manager sets other fields too, since only the time of the last change is recorded then.
"""

_MOMENT = pydantic.TypeAdapter(pydantic.AwareDatetime)
_SYSTEM = "node.kubernetes.io/"
_WORKED_ON = {
    "node.cloudprovider.kubernetes.io/": "not initialised, or shut down, by its cloud",
    "ToBeDeletedByClusterAutoscaler": "being removed by the autoscaler",
    "startup-taint.cluster-autoscaler.kubernetes.io/": "not initialised yet",
    "ignore-taint.cluster-autoscaler.kubernetes.io/": "not initialised yet",
    "node.cluster.x-k8s.io/uninitialized": "not initialised yet",
    "node.cilium.io/agent-not-ready": "without its network yet",
    "ebs.csi.aws.com/agent-not-ready": "without its storage yet",
    "karpenter.sh/disrupted": "being removed by Karpenter",
    "karpenter.sh/disruption": "being removed by Karpenter",
    "karpenter.sh/unregistered": "not registered with Karpenter yet",
    "aws-node-termination-handler/": "about to be ended by its cloud",
    "cloud.google.com/impending-node-termination": "about to be ended by its cloud",
}
"""{beginning of a taint's key: why nodes with it are left alone}. Nodes with a taint of ``node.kubernetes.io/``, other
than a cordon's, are away: neither opened nor tested in service.

The autoscaler's soft taint ``DeletionCandidateOfClusterAutoscaler:PreferNoSchedule`` is not among them: jobs still
start on such a node, so it has to be closed when it fails a test.
"""

RIGHTS = [
    *(Right(verb, "nodes") for verb in ("get", "list", "patch")),
    Right("patch", "nodes", subresource="status"),
    Right("list", "pods"),
]
_CLOSING = ("NoSchedule", "NoExecute")
_GPUS = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu")
"""Beginnings of resources that are GPUs or slices of them, as NVIDIA's and AMD's device plugins name them."""
_TEXT_MAX = 1000


class Kubernetes(AdmissionBackend):
    """One cluster."""

    tests: PodTests | None

    def __init__(self, chosen: KubernetesSettings) -> None:
        from muster.integration import logins

        extra = logins.extra(chosen.connection, "the cluster's kubeconfig", KubernetesLogin)
        self._chosen = chosen
        timeout_s = settings().scheduler_timeout_s
        self._api = Api(client_of(extra, chosen.context, chosen.connection, timeout_s), timeout_s)
        # No bound methods: they form a cycle, which would keep the login's files until Python's garbage collection.
        self._is_of_a_user = of_a_user = functools.partial(_is_of_a_user, chosen)
        where = (chosen.test_image, chosen.test_namespace, chosen.test_priority_class)
        self.tests = PodTests(self._api, of_a_user, *where) if chosen.test_image else None
        self.end_jobs = functools.partial(_end_jobs, self._api, of_a_user) if chosen.end_corrupted_jobs else None

    def check_rights(self) -> None:
        """Ask the API server whether our login may do all that we do with nodes and pods. Raises SchedulerDown."""
        self._api.begin()
        wanted = {"docs/examples/kubernetes_rbac.yaml": RIGHTS}
        if self.tests:
            wanted[EXAMPLE] = self.tests.rights()
        if self.end_jobs:
            wanted["docs/examples/kubernetes_end_corrupted_jobs.yaml"] = [Right("delete", "pods")]
        lacking = {file: [str(each) for each in rights if not self._api.may(each)] for file, rights in wanted.items()}
        if found := [f"{', '.join(rights)} (see {file})" for file, rights in lacking.items() if rights]:
            raise SchedulerDown(f"the login of {self._chosen.connection} may not, in Kubernetes, {', '.join(found)}")

    def look(self, names: Collection[str]) -> Mapping[str, Seen]:
        """As the API server shows nodes and pods. Raises SchedulerDown."""
        return self._look(names, jobs=True)

    def look_without_jobs(self, names: Collection[str]) -> Mapping[str, Seen]:
        """As the API server shows nodes, without a list of all pods, which is slow and large. Raises SchedulerDown."""
        return self._look(names, jobs=False)

    def _look(self, names: Collection[str], *, jobs: bool) -> Mapping[str, Seen]:
        self._api.begin()
        wanted = set(names)
        alone = next(iter(wanted)) if len(wanted) == 1 else ""
        if alone:
            nodes = {alone: node} if (node := self._api.node(alone)) is not None else {}
        else:
            nodes = {name: node for node in self._api.nodes() if (name := _name_of(node)) in wanted}
        used = self._used_by(self._api.pods(alone), alone) if jobs else {}
        return each_alone(nodes, lambda node: self._seen(node, used))

    def users_jobs(self, names: Collection[str]) -> Iterable[UsersJob]:
        """Yields the users' pods that have started on these nodes, except unreadable ones. Raises SchedulerDown."""
        self._api.begin()
        for pod in self._api.pods():
            try:
                metadata, began = pod["metadata"], pod["status"].get("startTime")
                if began and self._is_of_a_user(metadata) and (node := _node_of(pod)) in names:
                    what = one_line(f"pod {metadata['namespace']}/{metadata['name']}")
                    yield UsersJob(node, what, _MOMENT.validate_python(began))
            except Exception as error:
                log.warning("a pod cannot be read as Kubernetes shows it: %r", error)

    def admit(self, name: str, mark: Mark, wanted_at: datetime.datetime | None = None) -> str:
        """Remove our taint, and a person's cordon that requested a test, if the test is newer; set the condition.

        Raises LeftAlone, SchedulerDown.
        """
        self._api.begin()
        node = self._api.existing(name)
        seen, shown = self._seen(node), _condition(node, CONDITION).get("message")
        if seen.marked and not seen.foreign and shown == mark.text and not _opened(node, mark.text):
            return ""
        self._refuse(name, node, mark)

        def decide(now: dict[str, Any]) -> Mapping[str, Any]:
            self._refuse(name, now, mark)  # somebody may have closed it since
            return _opened(now, mark.text)

        self._api.change(name, decide)
        node = self._api.existing(name)
        after = self._seen(node)
        if not after.open and not after.apart:
            raise SchedulerDown(f"Kubernetes confirmed the admission of {name}, and shows it closed")
        self._qualify(node, True, mark.verdict, mark.text)
        return ""

    def withdraw(
        self, name: str, reason: str, wanted_at: datetime.datetime | None = None, *, for_good: bool = False
    ) -> None:
        """Taint the node unless it is being deleted; in either case its condition becomes False.

        This includes a node that somebody else closed, since they may reopen it, and one that is not ready or shut
        down, since it would be open when it comes back. A node that does not exist runs no pod; if it is created
        again, ``reconcile`` closes it. Raises LeftAlone, SchedulerDown.
        """
        self._api.begin()
        text = one_line(reason)[:_TEXT_MAX]
        node = self._api.node(name)
        if node is None:
            log.info("Kubernetes has no node %s to close", name)
            return

        def decide(now: dict[str, Any]) -> Mapping[str, Any]:
            if now["metadata"].get("deletionTimestamp"):
                raise LeftAlone(f"{name} is not closed in Kubernetes: it is being deleted")
            return _closed(now, text)

        # Do both, even if one is refused: the taint keeps pods off if the condition cannot be set, and a node that is
        # being deleted must not count as qualified.
        try:
            self._api.change(name, decide)
        finally:
            self._qualify(node, False, "Withdrawn", text)
        if not self._seen(self._api.existing(name)).ours:
            raise SchedulerDown(
                f"Kubernetes confirmed the withdrawal of {name}, and shows it without a taint of Muster's"
            )

    def _refuse(self, name: str, node: dict[str, Any], mark: Mark) -> None:
        if why := self._seen(node).stays_closed(mark) or _withheld(node):
            raise LeftAlone(f"{name} is not admitted in Kubernetes: {why}")

    def _qualify(self, node: dict[str, Any], qualified: bool, reason: str, message: str) -> None:
        status = "True" if qualified else "False"
        before = _condition(node, CONDITION)
        wanted = {"type": CONDITION, "status": status, "reason": reason.title().replace("_", ""), "message": message}
        if all(before.get(key) == value for key, value in wanted.items()):
            return
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        since = now if before.get("status") != status else before.get("lastTransitionTime", now)
        condition = wanted | {"lastHeartbeatTime": now, "lastTransitionTime": since}
        self._api.set_condition(node["metadata"]["name"], condition)

    def _seen(self, node: dict[str, Any], used: Mapping[str, str] | None = None) -> Seen:
        metadata, spec = node["metadata"], node.get("spec", {})
        taints = [taint for taint in spec.get("taints") or [] if taint.get("effect") in _CLOSING]
        ours = any(taint["key"] == TAINT for taint in taints)
        foreign, since = "", None
        if spec.get("unschedulable"):
            since = _set_at(metadata, "spec", "unschedulable")
            foreign = f"cordoned{_request(metadata, since)}"
        closing = [taint["key"] for taint in taints if taint["key"] in self._chosen.closing_taints]
        if closing:
            # A requested test does not open a node that a taint of others closes.
            foreign, since = f"tainted: {', '.join(closing)}", None
        worked_on = _worked_on(node, taints)
        apart = worked_on or _away(node, taints)
        admitted = (metadata.get("labels") or {}).get(LABEL) == "true"
        return Seen(
            open=not (ours or foreign or apart),
            ours=ours,
            both=True,
            foreign=one_line(foreign),
            foreign_since=since,
            apart=apart,
            worked_on=worked_on,
            used_by=(used or {}).get(metadata["name"]) or (used or {}).get(_ANY, ""),
            unsure="" if ours or foreign else "Kubernetes may start a pod on it at any moment",
            marked=admitted and _condition(node, CONDITION).get("status") == "True",
            created=pydantic.TypeAdapter(datetime.datetime).validate_python(metadata["creationTimestamp"]),
        )

    def _used_by(self, pods: Iterable[dict[str, Any]], on: str = "") -> dict[str, str]:
        """Returns {node: its users' pods, as a phrase}. ``on``: the node of all these pods, "" if they are of several.

        A pod that cannot be read counts as a user's on its node, and on every node where not even that can be read.
        """
        found: dict[str, list[str]] = defaultdict(list)
        for pod in pods:
            try:
                metadata = pod["metadata"]
                if self._is_of_a_user(metadata):
                    node = on or _node_of(pod)
                    found[node].append(f"{metadata['namespace']}/{metadata['name']}")
            except Exception as error:
                place = on
                log.warning("a pod cannot be read as Kubernetes shows it: %r", error)
                with contextlib.suppress(Exception):
                    place = place or _node_of(pod)
                found[place or _ANY].append("that Muster cannot read")
        return {node: one_line(f"pod {', '.join(sorted(names)[:5])}") for node, names in found.items()}


def _is_of_a_user(chosen: KubernetesSettings, metadata: Mapping[str, Any]) -> bool:
    namespace = metadata["namespace"]
    if any(fnmatchcase(namespace, each) for each in chosen.system_namespaces) or _of_the_node(metadata):
        return False
    ours = namespace == chosen.test_namespace and metadata["name"].startswith(TEST_PREFIX)
    return not ours


def _end_jobs(api: Api, is_of_a_user: Callable[[Mapping[str, Any]], bool], name: str) -> Iterator[str]:
    """Delete the users' pods on the node; yields each, once deleted, as "team/train-0 of Job train"."""
    api.begin()
    for pod in api.pods(name):
        metadata = pod["metadata"]
        if not is_of_a_user(metadata) or metadata.get("deletionTimestamp"):
            continue
        if api.delete_pod(metadata["namespace"], metadata["name"], metadata["uid"]):
            owners = [f" of {each['kind']} {each['name']}" for each in metadata.get("ownerReferences") or []]
            yield one_line(f"{metadata['namespace']}/{metadata['name']}{''.join(owners[:1])}")


_ANY = "*"
"""Takes the place of a pod's node that cannot be read; no node can have this name."""


def _node_of(pod: dict[str, Any]) -> str:
    node = pod.get("spec", {}).get("nodeName", "")
    if not isinstance(node, str):
        raise TypeError(f"a node's name is {type(node).__name__}")
    return node


def _name_of(node: dict[str, Any]) -> str:
    """The node's name; "" if it cannot be read, which is the name of none of our nodes."""
    try:
        return str(node["metadata"]["name"])
    except Exception:
        return ""


def _of_the_node(metadata: Mapping[str, Any]) -> bool:
    """Whether a pod belongs to the node itself: a pod of a daemon set, or a static pod."""
    owners = {owner.get("kind") for owner in metadata.get("ownerReferences") or []}
    return bool(owners & {"DaemonSet", "Node"}) or MIRROR in (metadata.get("annotations") or {})


def _condition(node: dict[str, Any], kind: str) -> dict[str, Any]:
    conditions = node.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def _worked_on(node: dict[str, Any], taints: list[dict[str, Any]]) -> str:
    """Why others may be working on the node, so that it is not free even when closed; "" if nothing shows that."""
    if node["metadata"].get("deletionTimestamp"):
        return "being deleted"
    return next((why for each in taints for begin, why in _WORKED_ON.items() if each["key"].startswith(begin)), "")


def _away(node: dict[str, Any], taints: list[dict[str, Any]]) -> str:
    if _condition(node, "Ready").get("status") != "True":
        return "not ready"
    keys = (each["key"] for each in taints)
    return next((f"tainted {key}" for key in keys if key.startswith(_SYSTEM) and key != f"{_SYSTEM}unschedulable"), "")


def _withheld(node: dict[str, Any]) -> str:
    """Why no job could have all GPUs of the node; "" if one could. A device plugin withholds GPUs that it once saw
    fail, NVIDIA's until it is restarted. Other devices are not checked: KubeVirt shows 1k ``devices.kubevirt.io/kvm``,
    and offers none of them, on each node without /dev/kvm.
    """
    capacity, left = (node.get("status", {}).get(each) or {} for each in ("capacity", "allocatable"))
    few = [
        f"{left.get(name, '0')} of {count} {name}"
        for name, count in capacity.items()
        if name.startswith(_GPUS) and left.get(name, "0") != count
    ]
    return f"its device plugin offers {', '.join(few)}: start the plugin's pod on it again" if few else ""


def _request(metadata: dict[str, Any], cordoned: datetime.datetime | None) -> str:
    """Returns what follows "cordoned" in ``Seen.foreign``: the test that is requested with it; "" if none is."""
    request = (metadata.get("annotations") or {}).get(REQUEST)
    if request is None:
        return ""
    asked = _set_at(metadata, "metadata", "annotations", REQUEST, alone=True)
    if asked is None or cordoned is None or asked < cordoned:
        again = "remove it and set it again with `kubectl annotate --field-manager=muster-verify`"
        return f"; its annotation {REQUEST} is older, or set with other fields: to request a test, {again}"
    return f": {VERIFY} {request}".rstrip()


def _set_at(metadata: dict[str, Any], *path: str, alone: bool = False) -> datetime.datetime | None:
    """Returns when the field was set, or a later time, as the API server recorded it; None if it recorded none.

    ``alone``: None also if its manager sets other fields, as the time may be theirs; "." does not count as a field.
    """
    for entry in metadata.get("managedFields") or []:
        fields: Any = entry.get("fieldsV1")
        others = 0
        for name in path:
            others += len((fields or {}).keys() - {".", f"f:{name}"})
            fields = (fields or {}).get(f"f:{name}")
        if fields is not None and not (alone and others):
            return pydantic.TypeAdapter(datetime.datetime | None).validate_python(entry.get("time"))
    return None


def _closed(node: dict[str, Any], reason: str) -> Mapping[str, Any]:
    """Returns the patch that closes a node, {} if it has our taint already and shows the reason."""
    metadata, text = node["metadata"], f"withdrawn: {reason}"
    taints = node.get("spec", {}).get("taints") or []
    closed = any(each["key"] == TAINT and each.get("effect") in _CLOSING for each in taints)
    shown = (metadata.get("annotations") or {}).get(ANNOTATION) == text and LABEL not in (metadata.get("labels") or {})
    if closed and shown:
        return {}
    ours = {"key": TAINT, "value": "true", "effect": "NoSchedule"}
    spec = {} if closed else {"spec": {"taints": [*taints, ours]}}
    return {"metadata": {"labels": {LABEL: None}, "annotations": {ANNOTATION: text}}, **spec}


def _opened(node: dict[str, Any], text: str) -> Mapping[str, Any]:
    """Returns the patch that opens a node which may be opened, cordon included; {} if it is open and shows ``text``."""
    spec, metadata = node.get("spec", {}), node["metadata"]
    taints = spec.get("taints") or []
    kept = [taint for taint in taints if taint.get("key") != TAINT]
    annotations = metadata.get("annotations") or {}
    shown = annotations.get(ANNOTATION) == text and (metadata.get("labels") or {}).get(LABEL) == "true"
    if shown and kept == taints and not spec.get("unschedulable"):
        return {}
    changed: dict[str, Any] = {ANNOTATION: text} | ({REQUEST: None} if REQUEST in annotations else {})
    opened: dict[str, Any] = {} if kept == taints else {"taints": kept or None}
    opened |= {"unschedulable": None} if spec.get("unschedulable") else {}
    return {"metadata": {"labels": {LABEL: "true"}, "annotations": changed}, **({"spec": opened} if opened else {})}


BACKEND = (KubernetesSettings, Kubernetes)
