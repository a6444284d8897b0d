"""Any scheduler whose own program receives webhooks: one signed message for each change of a node.

Messages are those of Standard Webhooks (standardwebhooks.com), so a receiver verifies them with any of its libraries.
They are delivered at least once; a repetition has the same ``webhook-id``. A later change of a node has a higher
``sequence``, so a receiver ignores a lower one than it has seen.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import hmac
import json
import time
from collections.abc import Collection, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import pydantic

from muster import redaction, store
from muster.admission import records_only
from muster.admission.backend import AdmissionBackend, Mark, Seen, each_alone
from muster.errors import BadScheduler, LeftAlone, SchedulerDown, first_refused
from muster.remote.connection import http_request
from muster.settings import settings
from muster_criteria.text import one_line

OURS = "muster"
"""Value of ``closed_by`` in the receiver's state if Muster closed the node."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SECRET = "whsec_"
_SECRET_BYTES_MIN = 24
_ACCEPTED, _CONFLICT = 202, 409


class WebhookSettings(pydantic.BaseModel):
    """One receiver. ``connection``: the Airflow connection whose password is the secret, whsec_ and base64.

    ``state_url``: shows the nodes' present state; empty if the receiver does not offer that. Addresses contain no
    login: messages are signed instead.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    kind: Literal["webhook"]
    url: str
    connection: str
    state_url: str = ""
    cluster: str = ""

    @pydantic.field_validator("url", "state_url")
    @classmethod
    def _encrypted(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            usable = not url or bool(httpx.URL(url).host)
        except (ValueError, httpx.InvalidURL):
            usable = False
        if not usable:
            raise ValueError("it is no address")
        if parts.username or parts.password:
            raise ValueError("it has a login in it, and secrets are not kept here: messages are signed instead")
        if url and not (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)):
            raise ValueError("give an https:// address; http:// is for this machine only")
        return url


class _Node(pydantic.BaseModel):
    """A node in the receiver's state."""

    name: str
    open: bool
    closed_by: str = ""
    reason: str = ""
    closed_at: pydantic.AwareDatetime | None = None
    apart: str = ""
    used_by: str = ""

    def seen(self) -> Seen:
        """Returns the node as ``Seen``."""
        ours = not self.open and self.closed_by == OURS
        foreign = "" if self.open or ours else f"closed by {self.closed_by or 'somebody'}: {self.reason}"
        unsure = "its scheduler may start a job on it at any moment" if self.open else ""
        apart = one_line(self.apart)
        return Seen(
            self.open and not apart, ours, one_line(foreign), self.closed_at, apart, apart, one_line(self.used_by),
            unsure,
        )  # fmt: skip


class _State(pydantic.BaseModel):
    """Nodes that are not validated yet: one that cannot be read must not stop the others."""

    nodes: list[Any]

    def by_name(self) -> dict[str, list[dict[str, Any]]]:
        """{name: its nodes}: several if they differ; nodes without a name are left out."""
        found: dict[str, list[dict[str, Any]]] = {}
        for each in self.nodes:
            name = each.get("name") if isinstance(each, dict) else None
            if isinstance(name, str) and each not in found.setdefault(name, []):
                found[name].append(each)
        return found


def _seen(shown: list[dict[str, Any]]) -> Seen:
    if len(shown) > 1:
        raise ValueError(f"{len(shown)} times, and not alike")
    return _Node.model_validate(shown[0]).seen()


class Webhook(AdmissionBackend):
    """One receiver. If it offers no state, a node is taken to be as its last confirmed change left it."""

    def __init__(self, chosen: WebhookSettings) -> None:
        self._chosen = chosen

    def look(self, names: Collection[str]) -> Mapping[str, Seen]:
        """The nodes in the receiver's state; from a receiver without one, all names. Raises SchedulerDown."""
        if self._chosen.state_url:
            wanted = set(names)
            return {name: node for name, node in self._state().items() if name in wanted}
        ours = store.schedulers.named(self._chosen.cluster, names)
        nodes, places = store.nodes.named(ours.values()), store.schedulers.places_of(ours.values())
        # A receiver without state knows any name: the first change shows whether it accepts this one.
        return {
            name: records_only.seen(nodes[node], places[node].admitted)
            if (node := ours.get(name)) in places and node in nodes
            else Seen(open=False, ours=True)
            for name in names
        }

    def admit(self, name: str, mark: Mark, wanted_at: datetime.datetime | None = None) -> str:
        """Send the admission. Raises LeftAlone if somebody else closed the node, it is apart, or 409 is the answer."""
        seen = self._node(name)
        if seen is not None and (why := seen.stays_closed(mark)):
            raise LeftAlone(f"{name} is not admitted in {self._chosen.cluster}: {why}")
        shown = {"verdict": mark.verdict, "date": str(mark.date), "certificate": mark.certificate}
        self._send("node.admit", name, shown, wanted_at)
        self._confirm(name, "admission", is_open=True)
        return ""

    def withdraw(
        self, name: str, reason: str, wanted_at: datetime.datetime | None = None, *, for_good: bool = False
    ) -> None:
        """Send the withdrawal, unless somebody else closed the node and it stays. Raises LeftAlone, SchedulerDown."""
        seen = self._node(name)
        if seen is not None and seen.apart:
            raise LeftAlone(f"{name} is not closed in {self._chosen.cluster}: it is {seen.apart}")
        if seen is not None and not seen.open and not seen.ours and not for_good:
            return
        self._send("node.withdraw", name, {"reason": one_line(reason)}, wanted_at)
        self._confirm(name, "withdrawal", is_open=False)

    def _node(self, name: str) -> Seen | None:
        """The node in the receiver's state, None where it offers none. Raises SchedulerDown if it lacks the node."""
        if not self._chosen.state_url:
            return None
        try:
            return self._state(name)[name]
        except KeyError:
            raise SchedulerDown(f"{self._chosen.cluster} does not know the node {name}") from None

    def _confirm(self, name: str, change: str, *, is_open: bool) -> None:
        seen = self._node(name)
        if seen is not None and not seen.apart and seen.open is not is_open:
            shown = "open" if seen.open else "closed"
            raise SchedulerDown(f"{self._chosen.cluster} confirmed the {change} of {name}, and shows it {shown}")

    def _state(self, name: str = "") -> dict[str, Seen]:
        # A receiver may ignore the parameter and answer with all nodes.
        url = httpx.URL(self._chosen.state_url).copy_merge_params({"node": name} if name else {})
        status, body = self._request("GET", str(url), "state", b"")
        if status != httpx.codes.OK:
            raise SchedulerDown(f"{redaction.of_text(self._chosen.state_url)} answered {status}: {_quoted(body)}")
        try:
            return each_alone(_State.model_validate_json(body).by_name(), _seen)
        except pydantic.ValidationError as error:
            where = redaction.of_text(self._chosen.state_url)
            raise SchedulerDown(f"{where} sent no list of nodes: {first_refused(error)}") from None

    def _send(self, kind: str, name: str, data: Mapping[str, Any], wanted_at: datetime.datetime | None) -> None:
        moment = wanted_at or datetime.datetime.now(datetime.UTC)
        sequence = (moment - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(microseconds=1)
        named = {"cluster": self._chosen.cluster, "node": name, "sequence": sequence}
        body = json.dumps({"type": kind, "timestamp": moment.isoformat(), "data": named | dict(data)}).encode()
        key = hashlib.sha256("\0".join([self._chosen.cluster, name, str(sequence)]).encode()).hexdigest()[:32]
        status, answer = self._request("POST", self._chosen.url, key, body)
        if status == _CONFLICT:
            raise LeftAlone(f"{self._chosen.cluster} leaves {name} as it is: {_quoted(answer)}")
        if status == _ACCEPTED and not self._chosen.state_url:
            raise SchedulerDown(f"{self._chosen.cluster} has accepted the change of {name} and not carried it out yet")
        if not httpx.codes.is_success(status):
            raise SchedulerDown(f"{redaction.of_text(self._chosen.url)} answered {status}: {_quoted(answer)}")

    def _request(self, method: str, url: str, message: str, body: bytes) -> tuple[int, bytes]:
        """Returns status and body of the answer. Raises SchedulerDown, BadScheduler. Redirects are not followed."""
        headers = signed(self._secret(), message, int(time.time()), body)
        headers |= {"content-type": "application/json", "accept-encoding": "identity"}
        limit, shown = settings().scheduler_timeout_s, redaction.of_text(url)
        try:
            return http_request.send(
                method, url, body=body, headers=headers, limit_s=limit, bytes_max=ANSWER_BYTES_MAX
            )  # fmt: skip
        except (OverflowError, TimeoutError):
            raise SchedulerDown(f"{shown} sent more than Muster reads, or took longer than {limit:g} s") from None
        except httpx.HTTPError as error:
            raise SchedulerDown(f"{shown} did not answer: {type(error).__name__} {error}") from None

    def _secret(self) -> bytes:
        from muster.integration import logins

        text = logins.password(self._chosen.connection, f"the secret of {self._chosen.cluster}")
        try:
            secret = base64.b64decode(text.removeprefix(_SECRET), validate=True)
        except binascii.Error:
            secret = b""
        if not text.startswith(_SECRET) or len(secret) < _SECRET_BYTES_MIN:
            raise BadScheduler(
                f"the password of the Airflow connection {self._chosen.connection} is no webhook secret: give "
                f"{_SECRET} and at least {_SECRET_BYTES_MIN} random bytes in base64"
            )
        return secret


def signed(secret: bytes, message: str, moment: int, body: bytes) -> dict[str, str]:
    """Returns the headers of a message that is sent at ``moment`` (seconds since 1970). Pure."""
    content = f"{message}.{moment}.".encode() + body
    signature = base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()
    return {"webhook-id": message, "webhook-timestamp": str(moment), "webhook-signature": f"v1,{signature}"}


def _quoted(body: bytes) -> str:
    return one_line(body[:200].decode("utf-8", "replace")) or "without a reason"


BACKEND = (WebhookSettings, Webhook)
