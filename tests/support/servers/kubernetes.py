"""A stand-in of a Kubernetes API server for nodes and pods, over real HTTP, with the controller that taints cordons.

It copies the Kubernetes API conventions (optimistic locking by resourceVersion, 409; 429 with Retry-After; merge and
strategic merge patches; field managers; lists in pages, 410 for an old page token), checks each node against the
trimmed OpenAPI schema beside it, and each request against docs/examples/kubernetes_rbac.yaml.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import http.server
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import yaml

TOKEN = "token-of-muster"
CORDON_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_SCHEMA = json.loads((Path(__file__).parent / "kubernetes_node.json").read_text())
_NODES = jsonschema.validators.validator_for(_SCHEMA)(_SCHEMA, format_checker=jsonschema.FormatChecker())
_RBAC = Path(__file__).resolve().parents[3] / "docs" / "examples" / "kubernetes_rbac.yaml"
SLICES, FLAVORS = "resource.k8s.io/v1/resourceslices", "kueue.x-k8s.io/v1beta2/resourceflavors"
_OWNED = (("spec", "unschedulable"), ("metadata", "annotations", "muster.dev/verify"))
"""The fields whose managers are recorded."""
_LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")


class Refused(Exception):
    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Cluster:
    """``mood``: what happens to the next requests; empty: as usual. ``used``: granted rights that were needed.

    ``served``: the objects of API groups that not every server has.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 100
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.served: dict[str, list[dict[str, Any]]] = {}
        self.mood: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.used: set[tuple[str, str]] = set()
        self.port, self.scheme = 0, "http"
        self.granted = set(_granted())
        for name in ("n0", "n1"):
            self.create(name)

    def create(self, name: str) -> None:
        """A new object, as of a machine that joins under the name."""
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is ready"}
        created = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
        metadata = {"name": name, "creationTimestamp": created, "labels": {"nvidia.com/gpu.present": "true"}}
        self.store({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {**metadata, "annotations": {}},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
            "status": {"conditions": [ready]},
        })  # fmt: skip

    @property
    def kube_config(self) -> dict[str, Any]:
        """Two contexts; the current one has no right to anything."""
        return {
            "apiVersion": "v1", "kind": "Config", "current-context": "nobody",
            "clusters": [{"name": "c", "cluster": {"server": f"{self.scheme}://127.0.0.1:{self.port}"}}],
            "users": [{"name": "muster", "user": {"token": TOKEN}}, {"name": "nobody", "user": {"token": "x"}}],
            "contexts": [{"name": user, "context": {"cluster": "c", "user": user}} for user in ("muster", "nobody")],
        }  # fmt: skip

    def store(self, node: dict[str, Any]) -> None:
        self.version += 1
        node["metadata"]["resourceVersion"] = str(self.version)
        self.nodes[node["metadata"]["name"]] = node

    def write(self, name: str, manager: str, patch: dict[str, Any], *, status: bool = False) -> dict[str, Any]:
        """Patch as a manager does, through the same checks."""
        with self.lock:
            if name not in self.nodes:
                raise Refused(404, f'nodes "{name}" not found')
            before = self.nodes[name]
            wanted = patch.get("metadata", {}).get("resourceVersion")
            if wanted is not None and wanted != before["metadata"]["resourceVersion"]:
                raise Refused(409, f'Operation cannot be fulfilled on nodes "{name}": the object has been modified')
            # A status patch changes the status alone, and any other patch all but the status.
            part = {"status": patch.get("status", {})} if status else {k: v for k, v in patch.items() if k != "status"}
            after = _strategic(before, part) if status else _merged(before, part)
            _validate(after)
            _own(before, after, manager)
            if after != before:
                self.store(after)
                self._lifecycle(name)
            return self.nodes[name]

    def cordon(self, name: str) -> None:
        """As kubectl does, which sends no request about a node that is cordoned already."""
        if not self.nodes[name]["spec"].get("unschedulable"):
            self.write(name, "kubectl-cordon", {"spec": {"unschedulable": True}})

    def _lifecycle(self, name: str) -> None:
        """The node lifecycle controller taints cordoned nodes, in a write of its own."""
        node = copy.deepcopy(self.nodes[name])
        taints = [each for each in node["spec"].get("taints", []) if each["key"] != CORDON_TAINT["key"]]
        taints += [CORDON_TAINT] if node["spec"].get("unschedulable") else []
        if taints != node["spec"].get("taints", []):
            node["spec"]["taints"] = taints
            self.store(node)

    def pod(
        self, name: str, node: str, scheduler: str = "default-scheduler", phase: str = "Running", **metadata: Any
    ) -> None:
        about = {"name": name, "namespace": "team", "uid": f"uid-{len(self.pods)}", **metadata}
        spec = {"nodeName": node, "schedulerName": scheduler}
        self.pods.append({"metadata": about, "spec": spec, "status": {"phase": phase}})

    def deleted(self, namespace: str, name: str, preconditions: dict[str, str]) -> dict[str, Any]:
        for pod in self.pods:
            if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name):
                if preconditions.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
                    raise Refused(409, "Precondition failed: UID in precondition")
                self.pods.remove(pod)
                return pod
        raise Refused(404, f'pods "{name}" not found')

    def allow(self, verb: str, what: str, token: str) -> None:
        if token != f"Bearer {TOKEN}":
            raise Refused(401, "Unauthorized")
        if (verb, what) not in self.granted:
            raise Refused(403, f'User "muster" cannot {verb} resource "{what}"')
        self.used.add((verb, what))

    def listed(self, items: list[dict[str, Any]], query: dict[str, str]) -> dict[str, Any]:
        start, _, version = query.get("continue", "0").partition("@")
        end = int(start) + min(int(query.get("limit", 500)), 2)  # small pages, as a server may choose
        more = f"{end}@{self.version}" if end < len(items) else ""
        return {"metadata": {"resourceVersion": version, "continue": more}, "items": items[int(start) : end]}

    def answer(self, method: str, url: str, token: str, kind: str, body: bytes) -> Any:
        parts = urlsplit(url)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = parts.path.removeprefix("/api/v1/").split("/")
        with self.lock:
            self.requests.append((method, parts.path))
            if path == ["pods"] and method == "GET":
                self.allow("list", "pods", token)
                selected = [pod for pod in self.pods if _selected(pod, query.get("fieldSelector", ""))]
                return self.listed(selected, query)
            if parts.path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" and method == "POST":
                asked = json.loads(body)["spec"]["resourceAttributes"]
                what = "/".join(filter(None, [asked["resource"], asked.get("subresource")]))
                allowed = token == f"Bearer {TOKEN}" and (asked["verb"], what) in self.granted
                return {"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}
            if parts.path == "/apis/":
                served = [each.split("/") for each in self.served]
                return {"groups": [{"name": name, "preferredVersion": {"version": at}} for name, at, _ in served]}
            if (found := self.served.get(parts.path.removeprefix("/apis/"))) is not None:
                self.allow("list", path[-1], token)
                selected = [each for each in found if _selected(each, query.get("fieldSelector", ""))]
                return self.listed(selected, query)
            if path[0] == "namespaces" and path[2] == "pods" and method == "DELETE":
                self.allow("delete", "pods", token)
                return self.deleted(path[1], path[3], json.loads(body or b"{}").get("preconditions", {}))
            if path[0] != "nodes":
                raise Refused(404, "the server could not find the requested resource")
            what = "/".join(["nodes", *path[2:]])
            if method == "GET":
                self.allow("get" if len(path) > 1 else "list", what, token)
                if len(path) == 1:
                    return self.listed(list(self.nodes.values()), query)
                if path[1] not in self.nodes:
                    raise Refused(404, f'nodes "{path[1]}" not found')
                return self.nodes[path[1]]
            self.allow(method.lower(), what, token)
            wanted = "strategic-merge-patch" if what == "nodes/status" else "merge-patch"
            if kind != f"application/{wanted}+json":
                raise Refused(415, f"the stand-in takes {wanted} for {what}")
            return self.write(path[1], query["fieldManager"], json.loads(body), status=what == "nodes/status")


def _merged(before: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    after = copy.deepcopy(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = _merged(after.get(name), value)
    return after


def _strategic(before: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Conditions are merged by their type; nothing else of a status is patched here."""
    after = copy.deepcopy(before)
    assert set(patch["status"]) == {"conditions"}
    for condition in patch["status"]["conditions"]:
        kept = [each for each in after["status"]["conditions"] if each["type"] != condition["type"]]
        old = [each for each in after["status"]["conditions"] if each["type"] == condition["type"]]
        after["status"]["conditions"] = [*kept, {**(old[0] if old else {}), **condition}]
    return after


def _validate(node: dict[str, Any]) -> None:
    """By the schema, and as the API server's validation of nodes does beyond it."""
    if error := jsonschema.exceptions.best_match(_NODES.iter_errors(node)):
        raise Refused(422, f"strict decoding error: {error.message}")
    taints = node["spec"].get("taints", [])
    if len({(each["key"], each["effect"]) for each in taints}) != len(taints):
        raise Refused(422, "spec.taints: Duplicate value")
    if any(each["effect"] not in ("NoSchedule", "PreferNoSchedule", "NoExecute") for each in taints):
        raise Refused(422, "spec.taints: Unsupported value")
    for value in [*node["metadata"].get("labels", {}).values(), *(each.get("value", "") for each in taints)]:
        if len(value) > 63 or not _LABEL.fullmatch(value):
            raise Refused(422, f"Invalid value: {value!r}")
    for condition in node["status"]["conditions"]:
        if condition["status"] not in ("True", "False", "Unknown"):
            raise Refused(422, "status.conditions: Unsupported value")


def _own(before: dict[str, Any], after: dict[str, Any], manager: str) -> None:
    """An update takes the ownership of a field whose value it changes; a field that is removed has no owner."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for path in _OWNED:
        if _found(before, path) == _found(after, path):
            continue
        fields: dict[str, Any] = {}
        for name in reversed(path):
            fields = {f"f:{name}": fields}
        kept = [each for each in after["metadata"].get("managedFields", []) if each["fieldsV1"] != fields]
        if _found(after, path) is not None:
            kept.append({"manager": manager, "operation": "Update", "apiVersion": "v1", "time": now,
                         "fieldsType": "FieldsV1", "fieldsV1": fields})  # fmt: skip
        after["metadata"]["managedFields"] = kept


def _found(node: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        node = (node or {}).get(name)
    return node


def _selected(pod: dict[str, Any], selector: str) -> bool:
    for term in filter(None, selector.split(",")):
        path, unequal, value = term.partition("!=") if "!=" in term else term.partition("=")
        found: Any = pod
        for key in path.split("."):
            found = found.get(key, "")
        if (found == value) is (unequal == "!="):
            return False
    return True


@functools.cache
def _granted() -> frozenset[tuple[str, str]]:
    roles = (each for each in yaml.safe_load_all(_RBAC.read_text()) if each["kind"] == "ClusterRole")
    rules = next(roles)["rules"]
    return frozenset((verb, what) for rule in rules for what in rule["resources"] for verb in rule["verbs"])


@contextlib.contextmanager
def running(tls: ssl.SSLContext | None = None) -> Iterator[Cluster]:
    cluster = Cluster()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def send(self, status: int, body: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if cut else body)

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            mood = cluster.mood.pop(0) if cluster.mood else ""
            name = urlsplit(self.path).path.split("/")[4] if "/nodes/" in self.path else ""
            try:
                if mood == "drop":
                    return None
                if mood == "hang":
                    time.sleep(3)
                if mood == "429":
                    raise Refused(429, "too many requests", Retry_After="0")
                if mood == "429 for an hour":
                    raise Refused(429, "too many requests", Retry_After="3600")
                if mood == "500":
                    raise Refused(500, "etcdserver: request timed out")
                if mood == "409":
                    raise Refused(409, "Operation cannot be fulfilled")
                if mood == "410":
                    raise Refused(410, "The provided continue parameter is too old")
                if mood == "another writes first" and self.command == "PATCH":
                    cluster.write(name, "kubelet", {"metadata": {"annotations": {"beat": str(cluster.version)}}})
                if mood == "cordoned meanwhile":
                    cluster.cordon(name)
                token, kind = self.headers.get("Authorization", ""), self.headers.get("Content-Type", "")
                found = cluster.answer(self.command, self.path, token, kind, body)
                text = b"<html>" if mood == "babble" else json.dumps(found).encode()
                if mood == "done, and no answer":
                    return None
                self.send(200, text, {}, cut=mood == "cut")
            except Refused as refused:
                status = {"kind": "Status", "status": "Failure", "code": refused.status, "message": str(refused)}
                self.send(refused.status, json.dumps(status).encode(), refused.headers)

        do_GET = do_PATCH = do_DELETE = do_POST = do_PUT = handle_one

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    cluster.port = server.server_address[1]
    if tls:
        cluster.scheme, server.socket = "https", tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
