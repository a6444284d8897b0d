"""A test as a Kubernetes pod: of lowest priority, requesting all free resources of its node; users' pods preempt it.

The pod only holds the node: the node side runs on the host, over SSH, as in any test. When the pod is deleted, kubelet
sends SIGTERM to its container, which sees the host's processes and passes the signal on to the node side. AppArmor
and SELinux do not let a confined process signal processes of the host, so the container is unconfined.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import operator
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import ROUND_DOWN, Decimal
from typing import Any

from muster.admission.backend import LIMIT_MINUTES
from muster.admission.backends.kubernetes.api import DEFAULT, DEVICES, KUEUE, Api, Right
from muster.errors import BadScheduler, JobEnded, LeftAlone, SchedulerDown
from muster_criteria.text import one_line

START_S = 20.0
"""A pod that is not scheduled within this time (s) is deleted: the scheduler looks at each new pod at once."""

PULL_S = 180.0
"""Additional time (s) for a scheduled pod to pull its image."""

GRACE_S = 5
"""Kubelet kills the container after this time (s). The node side ends within 2 s, and is killed after 3 s."""

END_S = 3.0 * GRACE_S
"""A deleted pod is gone after this time (s), unless its kubelet does not answer."""

EVENT_S = 3.0
"""How long (s) to wait for the event that says why a pod was deleted: it is stored shortly after a preemption."""

EXAMPLE = "docs/examples/kubernetes_idle_tests.yaml"
_WITHOUT = "remove test_image from the cluster's settings, so that a test closes its node"

# The pattern does not match the text of itself, so the shell that runs the script is not signalled.
_HOLD = """
node_side='agents/[0-9a-f]{64}[.]pyz.? run '
give_back() {
  pkill -TERM -f "$node_side"
  n=0; while pgrep -f "$node_side" >/dev/null && [ $n -lt 30 ]; do sleep 0.1; n=$((n + 1)); done
  pkill -KILL -f "$node_side"
  kill "$!"
  exit 0
}
trap give_back TERM INT
while :; do sleep 3600 & wait "$!"; done
"""

_CONTAINER = "hold"
_REQUESTED = "muster.dev/requested"

_NOT_REQUESTED = ("pods", "ephemeral-storage", "attachable-volumes-")


@dataclasses.dataclass(frozen=True)
class PodTests:
    """Test pods in ``namespace``, of ``image``, which needs sh, sleep, pgrep and pkill (as busybox has).

    ``is_of_a_user``: whether the pod with this metadata is a user's.
    """

    api: Api
    is_of_a_user: Callable[[Mapping[str, Any]], bool]
    image: str
    namespace: str
    priority_class: str

    def rights(self) -> list[Right]:
        """The rights that our login needs; the file EXAMPLE grants them."""
        pods = [Right(verb, "pods", namespace=self.namespace) for verb in ("get", "create", "delete")]
        events = Right("list", "events", namespace=self.namespace)
        listed = (("priorityclasses", "scheduling.k8s.io"), ("resourceslices", DEVICES), ("resourceflavors", KUEUE))
        return [*pods, events, *(Right("list", resource, group=group) for resource, group in listed)]

    def check(self, nodes: Collection[str], minutes: int) -> None:
        """Raise BadScheduler unless, as far as is known, every pod of a user takes a node from ours; SchedulerDown.

        Kubernetes lets a pod run for any number of minutes.
        """
        self.api.begin()
        self._check_classes()
        for node in nodes:
            for devices in self.api.resource_slices(node):
                own = devices["spec"].get("nodeName")
                if not own and not offers(devices["spec"], self.api.existing(node)["metadata"]):
                    continue
                whose = "it has" if own else "several nodes share"
                raise BadScheduler(
                    f"pods that claim a device of {node} would start during its idle test, and not preempt it: {whose} "
                    f"ResourceSlices of {devices['spec']['driver']}; {_WITHOUT}"
                )
        # Kueue counts what any pod outside its topologies holds, whatever its priority, and does not let a workload
        # through to the scheduler, which would preempt the pod: kubernetes-sigs/kueue#9992.
        for flavor in self.api.resource_flavors():
            spec = flavor.get("spec") or {}
            topology, its_labels = spec.get("topologyName"), (spec.get("nodeLabels") or {}).items()
            if topology and any(its_labels <= self._labels(node).items() for node in nodes):
                raise BadScheduler(
                    f"users' pods would wait for idle tests: Kueue places those of its ResourceFlavor "
                    f"{flavor['metadata']['name']} by the topology {topology}, and does not preempt tests; {_WITHOUT}"
                )
        # The default scheduler alone preempts across schedulers' queues: volcano-sh/volcano#4039.
        for pod in self.api.pods_of_other_schedulers():
            if self.is_of_a_user(pod["metadata"]):
                name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                raise BadScheduler(
                    f"pod {name} would wait for idle tests: its scheduler {pod['spec']['schedulerName']} does not "
                    f"preempt them; {_WITHOUT}"
                )

    def _labels(self, node: str) -> dict[str, Any]:
        return self.api.existing(node)["metadata"].get("labels") or {}

    def _check_classes(self) -> None:
        """Raise BadScheduler unless every pod of another priority class may preempt ours; SchedulerDown."""
        classes = {each["metadata"]["name"]: each for each in self.api.priority_classes()}
        values = {name: int(each["value"]) for name, each in classes.items()}
        if self.priority_class not in values:
            raise BadScheduler(f"there is no PriorityClass {self.priority_class} for idle tests; see {EXAMPLE}")
        ours = values.pop(self.priority_class)
        # Pods without a class have priority 0, or that of the global default, which is among these.
        lowest = min([*values.items(), ("of pods without a class", 0)], key=lambda item: item[1])
        if lowest[1] <= ours:
            raise BadScheduler(
                f"PriorityClass {self.priority_class} is not preemptible by every pod: its value {ours} is not below "
                f"{lowest[1]} ({lowest[0]}); give it the lowest value of all ({EXAMPLE})"
            )
        patient = [name for name in values if classes[name].get("preemptionPolicy") == "Never"]
        if patient:
            raise BadScheduler(
                f"pods of PriorityClass {patient[0]} would wait for idle tests: its preemptionPolicy is Never; "
                f"{_WITHOUT}, or change the class"
            )

    def begin(self, node: str, job: str, minutes: int) -> None:
        """Create the pod, unless it is there, and wait until it runs. Raises LeftAlone, BadScheduler, SchedulerDown."""
        self.check([node], minutes)
        if (made := self._find(job)) is None:
            self.api.create_pod(self.namespace, self._pod(job, self.api.existing(node), self.api.pods(node), minutes))
            made = self._find(job)
        # Also check a pod that is there already: the call that created it may have ended before it checked it.
        if made is not None and (changed := self._changed(made)):
            with contextlib.suppress(SchedulerDown):  # housekeeping, or the node's next test, ends it
                self.api.delete_pod(self.namespace, job)
            raise BadScheduler(
                f"a webhook or a policy of the cluster changes the test pod {self.namespace}/{job}: {changed}; "
                f"keep it off this namespace, or {_WITHOUT}"
            )
        submitted = time.monotonic()
        while not _runs(pod := self._find(job)):
            waits = pod is not None and pod.get("status", {}).get("phase") == "Pending" and not _ends(pod)
            placed = bool((pod or {}).get("spec", {}).get("nodeName"))
            if not waits or time.monotonic() - submitted > (PULL_S if placed else START_S):
                self.api.delete_pod(self.namespace, job)
                why = _why_it_waits(pod or {})
                if waits and placed:
                    raise SchedulerDown(f"the test pod {self.namespace}/{job} does not start on {node}: {why}")
                raise LeftAlone(f"{node} is not tested: Kubernetes did not start the test on it: {why}")
            time.sleep(0.2)

    def step(self, job: str) -> tuple[str, ...] | None:
        """Returns () while the pod runs, since the node side runs outside it; None if it was preempted.

        Raises JobEnded, SchedulerDown.
        """
        ended = time.monotonic()
        while not _runs(pod := self._find(job)):
            if _preempted(pod) or self._was_preempted(job):
                return None
            if time.monotonic() - ended > EVENT_S:
                shown = one_line(str((pod or {}).get("status", {}).get("reason") or "it was deleted"))
                raise JobEnded(
                    f"the test pod {self.namespace}/{job} ended, and no pod of a user took its node: {shown}"
                )
            time.sleep(0.2)
        return ()

    def _was_preempted(self, job: str) -> bool:
        """Whether the latest event about the job's pods says so: a repeated test gives its pod the same name."""
        said = (
            (str(each["metadata"].get("creationTimestamp") or ""), each["reason"] == "Preempted")
            for each in self.api.events(self.namespace, job)
            if each.get("reason") in ("Scheduled", "Preempted")
        )
        return max(said, default=("", False))[1]

    def end(self, job: str) -> None:
        """Delete the pod, if it is there, and wait until it is gone: it ends every node side on its node."""
        self.api.begin()
        self.api.delete_pod(self.namespace, job)
        deleted = time.monotonic()
        while (pod := self._find(job)) is not None:
            # Do not wait for each pod of a rack that lost its power: nothing else is carried out meanwhile.
            if max(time.monotonic() - deleted, _overdue_s(pod)) > END_S:
                raise SchedulerDown(f"the test pod {self.namespace}/{job} does not end: see the kubelet of its node")
            time.sleep(0.2)

    def _find(self, job: str) -> dict[str, Any] | None:
        self.api.begin()
        return self.api.pod(self.namespace, job)

    def _pod(
        self, job: str, node: Mapping[str, Any], present: Iterable[Mapping[str, Any]], minutes: int
    ) -> dict[str, Any]:
        """Returns the pod's manifest for a node. ``present``: the pods that are on it."""
        name = node["metadata"]["name"]
        this_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [this_node]}}
        # Tolerate the present taints, such as those of GPU nodes; one that closes the node later is not tolerated.
        tolerations = [
            {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}
            for taint in node.get("spec", {}).get("taints") or []
        ]
        rest = resources_left(node, present)
        container = {
            "name": _CONTAINER,
            "image": self.image,
            "command": ["sh", "-c", _HOLD],
            "resources": {"requests": rest, "limits": rest},
            "securityContext": {
                "runAsUser": 0,
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"], "add": ["KILL"]},
                "appArmorProfile": {"type": "Unconfined"},
                "seLinuxOptions": {"type": "spc_t"},
            },
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": job,
                "labels": {"app.kubernetes.io/managed-by": "muster"},
                # Servers before 1.30 know no appArmorProfile, and drop it; later ones want both to say the same.
                "annotations": {
                    f"container.apparmor.security.beta.kubernetes.io/{_CONTAINER}": "unconfined",
                    _REQUESTED: json.dumps(rest),
                },
            },
            "spec": {
                **self._holding(),
                "affinity": {"nodeAffinity": required},
                "tolerations": tolerations,
                "restartPolicy": "Never",
                "activeDeadlineSeconds": max(LIMIT_MINUTES, minutes) * 60,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "containers": [container],
            },
        }

    def _holding(self) -> dict[str, Any]:
        """The fields by which the pod, with its requests, holds its node and gives it back."""
        return {
            "priorityClassName": self.priority_class,
            "hostPID": True,
            "terminationGracePeriodSeconds": GRACE_S,
            "schedulerName": DEFAULT,
        }

    def _changed(self, pod: Mapping[str, Any]) -> str:
        """Returns which fields of ``_holding``, and which requests, differ from those that were asked for."""
        spec = pod["spec"]
        found = [f"{name} {spec.get(name)!r}" for name, asked in self._holding().items() if spec.get(name) != asked]
        container: Mapping[str, Any] = next((each for each in spec["containers"] if each["name"] == _CONTAINER), {})
        requests = (container.get("resources") or {}).get("requests") or {}
        asked = (pod["metadata"].get("annotations") or {}).get(_REQUESTED)
        found += [f"request of {name} {requests.get(name)!r}" for name, amount in json.loads(asked or "{}").items()
                  if _quantity(requests.get(name, 0)) != _quantity(amount)]  # fmt: skip
        return ", ".join(found if asked else [*found, f"annotation {_REQUESTED} {asked!r}"])


def offers(devices: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a ResourceSlice's spec, or one of its devices, is for a node, given by its metadata. True also if the
    spec names its nodes in a way that is not known here.
    """
    if devices.get("perDeviceNodeSelection") and devices.get("devices"):
        return any(offers(each.get("basic", each), node) for each in devices["devices"])
    if name := devices.get("nodeName"):
        return bool(name == node["name"])
    terms = (devices.get("nodeSelector") or {}).get("nodeSelectorTerms")
    return not terms or any(_matches(term, node) for term in terms)


def _matches(term: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    labels = node.get("labels") or {}
    kinds = ("matchExpressions", labels), ("matchFields", {"metadata.name": node["name"]})
    asked = [(each, known.get(each["key"])) for kind, known in kinds for each in term.get(kind) or ()]
    return all(_meets(value, each["operator"], each.get("values") or ()) for each, value in asked)


def _meets(value: str | None, operator_: str, values: Sequence[str]) -> bool:
    match operator_:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return True  # Gt, Lt: taken to match, so that the test is refused


def resources_left(node: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns {resource: quantity} of the allocatable resources that the pods on a node leave free, without empty ones.

    Raises SchedulerDown for a quantity that cannot be read.
    """
    used: dict[str, Decimal] = defaultdict(Decimal)
    for pod in pods:
        for name, amount in _requests(pod["spec"]).items():
            used[name] += amount
    left = {}
    for name, quantity in (node.get("status", {}).get("allocatable") or {}).items():
        if name.startswith(_NOT_REQUESTED):
            continue
        rest = (_quantity(quantity) - used[name]).quantize(Decimal("0.001" if name == "cpu" else "1"), ROUND_DOWN)
        if rest > 0:
            left[name] = str(rest)
    return left


def _quantity(shown: Any) -> Decimal:
    from kubernetes.utils.quantity import parse_quantity

    try:
        return Decimal(parse_quantity(shown))
    except ValueError as error:
        raise SchedulerDown(f"Kubernetes shows a quantity that cannot be read: {one_line(str(error))}") from None


def _requests(spec: Mapping[str, Any]) -> dict[str, Decimal]:
    """Returns what a pod requests, as the scheduler counts it (PodRequests of component-helpers)."""

    def of(part: Mapping[str, Any]) -> dict[str, Decimal]:
        requests = (part.get("resources") or {}).get("requests") or {}
        return {name: _quantity(quantity) for name, quantity in requests.items()}

    sidecars: dict[str, Decimal] = {}
    starting: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or []:
        needed = _each(operator.add, sidecars, of(container))
        starting = _each(max, starting, needed)
        # A sidecar continues to run with all that start after it; other init containers end before the next one starts.
        if container.get("restartPolicy") == "Always":
            sidecars = needed
    running = sidecars
    for container in spec.get("containers") or []:
        running = _each(operator.add, running, of(container))
    # What is requested for the whole pod replaces its containers' requests.
    total = {**_each(max, running, starting), **of(spec)}
    overhead = (spec.get("overhead") or {}).items()
    return _each(operator.add, total, {name: _quantity(amount) for name, amount in overhead})


def _each(
    joined: Callable[[Decimal, Decimal], Decimal], one: Mapping[str, Decimal], other: Mapping[str, Decimal]
) -> dict[str, Decimal]:
    none = Decimal(0)
    return {name: joined(one.get(name, none), other.get(name, none)) for name in one.keys() | other.keys()}


def _ends(pod: Mapping[str, Any]) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _overdue_s(pod: Mapping[str, Any]) -> float:
    """For how many seconds the pod should have been gone."""
    due = pod["metadata"].get("deletionTimestamp")
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(due)).total_seconds() if due else 0.0


def _runs(pod: Mapping[str, Any] | None) -> bool:
    return pod is not None and pod.get("status", {}).get("phase") == "Running" and not _ends(pod)


def _preempted(pod: Mapping[str, Any] | None) -> bool:
    """Whether a pod that is still ending shows that it was preempted (Kubernetes 1.26 and later)."""
    conditions = (pod or {}).get("status", {}).get("conditions") or []
    return any((each.get("type"), each.get("reason")) == ("DisruptionTarget", "PreemptionByScheduler")
               for each in conditions)  # fmt: skip


def _why_it_waits(pod: Mapping[str, Any]) -> str:
    status = pod.get("status", {})
    states = [each.get("state", {}).get("waiting") or {} for each in status.get("containerStatuses") or []]
    shown = [status, *states, *(each for each in status.get("conditions") or [] if each.get("status") == "False")]
    found: Mapping[str, Any] = next((each for each in shown if each.get("message") or each.get("reason")), {})
    return one_line(str(found.get("message") or found.get("reason") or "it shows no reason"))[:300]
