"""Requests to one Kubernetes API server by the official client: deadlines, conflicts, limits, broken answers.

Nodes are raw JSON, so that no field of a newer version is lost. No watch is used: nothing waits for a change of a node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import urllib3

from muster.errors import SchedulerDown
from muster_criteria.text import one_line

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

MANAGER = "muster"
"""The field manager under which the API server records our changes."""

DEFAULT = "default-scheduler"
"""The scheduler of pods that name no other."""

DEVICES = "resource.k8s.io"
"""The API group of Dynamic Resource Allocation."""

KUEUE = "kueue.x-k8s.io"
"""The API group of Kueue."""

MIRROR = "kubernetes.io/config.mirror"
"""The annotation of static pods, which are made from a file on their node."""

CONFLICTS_MAX = 5
PAGE = 500
_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_CONFLICT, _TOO_MANY, _NOT_FOUND, _UNAUTHORIZED = 409, 429, 404, 401

_POD: Mapping[str, Any] = {
    "metadata": {"namespace": None, "name": None, "ownerReferences": None, "annotations": {MIRROR: None}},
    "spec": {"nodeName": None, "schedulerName": None},
    "status": {"startTime": None},
}
_NODE: Mapping[str, Any] = {"metadata": None, "spec": None, "status": {"conditions": None}}
"""The fields that are kept of each object in a list of all (_POD, _NODE): a whole pod takes 50 KB of memory, and a
cluster has 60,000 of them. None: the whole field."""


@dataclasses.dataclass(frozen=True)
class Right:
    """What a login may do: a verb on a resource, or on a part of it, in one namespace or in all."""

    verb: str
    resource: str
    subresource: str = ""
    group: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f'/{self.subresource}' if self.subresource else ''}{where}"


class Changed(SchedulerDown):
    """The object was changed between its reading and our change, or exists already (409)."""


class Api:
    """One API server. ``timeout_s``: limit of one request; one method of the backend may take three times that."""

    def __init__(self, client: ApiClient, timeout_s: float, sleep: Callable[[float], None] = time.sleep) -> None:
        from kubernetes.client import ApisApi, AuthorizationV1Api, CoreV1Api, CustomObjectsApi, SchedulingV1Api

        self._authorization = AuthorizationV1Api(client)
        self._core = CoreV1Api(client)
        self._scheduling = SchedulingV1Api(client)
        self._groups = ApisApi(client)
        self._any_version = CustomObjectsApi(client)
        self._timeout_s = timeout_s
        self._sleep = sleep
        self.begin()

    def begin(self) -> None:
        """Start the deadline of a backend's method."""
        self._end = time.monotonic() + 3 * self._timeout_s

    def node(self, name: str) -> dict[str, Any] | None:
        """Returns the node, None if there is none of that name. Raises SchedulerDown."""
        found: dict[str, Any] | None = self._ask(self._core.read_node, name, absent=True)
        return found

    def existing(self, name: str) -> dict[str, Any]:
        """Returns the node. Raises SchedulerDown, also if there is none of that name."""
        node = self.node(name)
        if node is None:
            raise SchedulerDown(f"Kubernetes does not know the node {name}; see `kubectl get nodes`")
        return node

    def nodes(self) -> Iterator[dict[str, Any]]:
        """Yields ``_NODE`` of every node. Raises SchedulerDown."""
        yield from self._pages(self._core.list_node, _NODE)

    def pods(self, node: str = "") -> Iterator[dict[str, Any]]:
        """Yields the pods that have not ended: those of one node, or ``_POD`` of all. Raises SchedulerDown."""
        fields = ["status.phase!=Succeeded", "status.phase!=Failed", *([f"spec.nodeName={node}"] if node else [])]
        read = None if node else _POD
        yield from self._pages(self._core.list_pod_for_all_namespaces, read, field_selector=",".join(fields))

    def pods_of_other_schedulers(self) -> Iterator[dict[str, Any]]:
        """Yields the pods, also ended ones, that name another scheduler than the default one. Raises SchedulerDown."""
        fields = f"spec.schedulerName!={DEFAULT}"
        yield from self._pages(self._core.list_pod_for_all_namespaces, _POD, field_selector=fields)

    def pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Returns the pod, None if there is none of that name. Raises SchedulerDown."""
        found: dict[str, Any] | None = self._ask(self._core.read_namespaced_pod, name, namespace, absent=True)
        return found

    def events(self, namespace: str, name: str) -> Iterator[dict[str, Any]]:
        """Yields the events about the objects that have, or had, that name. Raises SchedulerDown."""
        fields = f"involvedObject.name={name}"
        yield from self._pages(self._core.list_namespaced_event, namespace=namespace, field_selector=fields)

    def create_pod(self, namespace: str, pod: Mapping[str, Any]) -> None:
        """Create the pod, unless there is one of its name. Raises SchedulerDown."""
        with contextlib.suppress(Changed):
            self._ask(self._core.create_namespaced_pod, namespace, pod, field_manager=MANAGER)

    def delete_pod(self, namespace: str, name: str, uid: str = "") -> bool:
        """Delete the pod, if it is there, with its own grace period. Raises SchedulerDown.

        ``uid``: delete only this one; returns False if another pod of its name, on any node, has taken its place.
        """
        body = {"preconditions": {"uid": uid}} if uid else None
        with contextlib.suppress(Changed):
            self._ask(self._core.delete_namespaced_pod, name, namespace, body=body, absent=True)
            return True
        return False

    def priority_classes(self) -> Iterator[dict[str, Any]]:
        """Yields every priority class. Raises SchedulerDown."""
        yield from self._pages(self._scheduling.list_priority_class)

    def resource_slices(self, node: str) -> Iterator[dict[str, Any]]:
        """Yields the ResourceSlices (Dynamic Resource Allocation) of the node, and those of no single node (allNodes,
        nodeSelector, perDeviceNodeSelection); none from a server without them. Raises SchedulerDown.
        """
        for name in (node, ""):
            yield from self._of_group(DEVICES, "resourceslices", field_selector=f"spec.nodeName={name}")

    def resource_flavors(self) -> Iterator[dict[str, Any]]:
        """Yields Kueue's flavors of nodes, none from a server without Kueue. Raises SchedulerDown."""
        yield from self._of_group(KUEUE, "resourceflavors")

    def _of_group(self, group: str, resource: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Yields the resource's objects, in the server's preferred version of the API group; none without the group."""
        served = self._ask(self._groups.get_api_versions)
        try:
            versions = {each["name"]: str(each["preferredVersion"]["version"]) for each in served["groups"]}
        except (KeyError, TypeError):
            raise SchedulerDown("Kubernetes sent no list of its API groups") from None
        if group in versions:
            asked = functools.partial(self._any_version.list_cluster_custom_object, group, versions[group], resource)
            yield from self._pages(asked, **fields)

    def may(self, right: Right) -> bool:
        """Whether the login has the right, by a SelfSubjectAccessReview. Raises SchedulerDown."""
        review = {
            "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {name: text for name, text in dataclasses.asdict(right).items() if text}},
        }  # fmt: skip
        answer = self._ask(self._authorization.create_self_subject_access_review, review)
        return isinstance(answer, dict) and (answer.get("status") or {}).get("allowed") is True

    def change(self, name: str, decide: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        """Patch the node with what ``decide`` returns for its present state; {} means no change.

        If the node changed in between, it is read and decided again. Raises SchedulerDown.
        """
        for _ in range(CONFLICTS_MAX):
            node = self.existing(name)
            patch = decide(node)
            if not patch:
                return
            metadata = {**patch.get("metadata", {}), "resourceVersion": node["metadata"]["resourceVersion"]}
            try:
                body = {**patch, "metadata": metadata}
                self._ask(self._core.patch_node, name, body, field_manager=MANAGER, _content_type=_MERGE)
                return
            except Changed:
                continue
        raise SchedulerDown(f"{name} changes in Kubernetes faster than Muster can change it")

    def set_condition(self, name: str, condition: Mapping[str, Any]) -> None:
        """Set one condition of the node's status; the others stay. Raises SchedulerDown."""
        body = {"status": {"conditions": [condition]}}
        for _ in range(CONFLICTS_MAX):
            try:
                self._ask(self._core.patch_node_status, name, body, field_manager=MANAGER, _content_type=_STRATEGIC)
                return
            except Changed:
                continue
        raise SchedulerDown(f"the status of {name} changes in Kubernetes faster than Muster can change it")

    def _pages(
        self, ask: Callable[..., Any], read: Mapping[str, Any] | None = None, **fields: Any
    ) -> Iterator[dict[str, Any]]:
        """Yields a list only if it is complete: an expired page token or a broken page raises SchedulerDown.

        ``read``: the fields that are kept of each object; None: all.
        """
        token: str | None = None
        found: list[dict[str, Any]] = []
        while True:
            page = self._ask(ask, limit=PAGE, _continue=token, **fields)
            if page is None or not isinstance(page.get("items"), list):
                raise SchedulerDown("Kubernetes sent no list")
            found.extend(_reduced(each, read) for each in page["items"])
            token = page.get("metadata", {}).get("continue")
            if not token:
                break
        yield from found

    def _ask(self, ask: Callable[..., Any], *args: Any, absent: bool = False, **fields: Any) -> Any:
        from kubernetes.client.exceptions import ApiException, OpenApiException

        while True:
            left = max(0.001, min(self._timeout_s, self._end - time.monotonic()))
            try:
                answer = ask(*args, **fields, _preload_content=False, _request_timeout=left)
                status, body, headers = answer.status, answer.data, answer.headers
            except ApiException as error:
                if not error.status:
                    raise SchedulerDown(f"Kubernetes did not answer: {one_line(str(error.reason))[:300]}") from None
                status, body, headers = error.status or 0, (error.body or error.reason or "").encode(), error.headers
            except (OpenApiException, urllib3.exceptions.HTTPError, OSError) as error:
                raise SchedulerDown(f"Kubernetes did not answer: {one_line(str(error))[:300]}") from None
            except ValueError:  # of a header; its text quotes the token
                raise SchedulerDown(
                    "Kubernetes was not asked: no header can hold its token; write it in one line into the Airflow "
                    "connection"
                ) from None
            if status == _CONFLICT:
                raise Changed(f"Kubernetes answered {status}: {_message(body)}")
            if status == _NOT_FOUND and absent:
                return None
            if status == _TOO_MANY:
                wait = _seconds((headers or {}).get("Retry-After"))
                if time.monotonic() + wait < self._end:
                    self._sleep(wait)
                    continue
            if not 200 <= status < 300:
                unknown = "; the API server does not know this login: its token or certificate may have ended"
                advice = unknown if status == _UNAUTHORIZED else ""
                raise SchedulerDown(f"Kubernetes answered {status}: {_message(body)}{advice}")
            try:
                return json.loads(body)
            except (ValueError, RecursionError):
                raise SchedulerDown("Kubernetes sent an answer that is no JSON") from None


def _reduced(item: Any, read: Mapping[str, Any] | None) -> Any:
    """Returns the object with only the fields of ``read``; anything but an object stays, for its reader to refuse."""
    if read is None or not isinstance(item, dict):
        return item
    return {name: _reduced(item[name], inner) for name, inner in read.items() if name in item}


def _seconds(retry_after: str | None) -> float:
    try:
        return max(0.0, float(retry_after or 1))
    except ValueError:  # a date
        return 1.0


def _message(body: bytes) -> str:
    try:
        found = json.loads(body)
        text = found.get("message", "") if isinstance(found, dict) else ""
    except (ValueError, RecursionError):
        text = body[:200].decode("utf-8", "replace")
    return one_line(str(text))[:300] or "without a message"
