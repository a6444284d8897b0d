"""The forms in which other programs report: Muster's own, Alertmanager's webhook, events of NVSentinel and of gpud.

Sources: Alertmanager's webhook version 4; ``HealthEvents`` of data-models/protobufs/health_event.proto
(NVIDIA/NVSentinel@264bfab) as JSON; ``GPUdComponentEvents`` of api/v1/types.go (leptonai/gpud@02dd495). None of the
three programs was run.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import pydantic

from muster.errors import first_refused
from muster.integration.report_sources import Form
from muster_criteria.device_events.policy import EventSeverity
from muster_criteria.health.readings import Reading
from muster_criteria.text import one_line

NODES_MAX = 20_000
UNISOLATED = "unisolated"
"""A check: one of a few nodes failed a job, and it was not found out in time which."""
SUSPECTS_MAX = 8
"""The most suspects of such a failure: testing more would cost more than narrowing them down."""
PROBLEM_MAX = 300
"""The most characters of the answer about an unusable report, which quotes the sender's keys."""
PART_MAX = 200
_SINCE = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NODE_LABELS = ("node", "nodename", "hostname", "Hostname", "instance")
_NO_PART = ("alertname", "severity")
_OF_GPUD = {"fatal": "ISOLATE", "critical": "RESET", "warning": "MONITOR"}
_GRAVEST_FIRST = tuple(_OF_GPUD.values())
_OF_ALERTS = {"critical": "ISOLATE", "error": "RESET", "warning": "MONITOR", "info": None, "none": None, "": None}
"""By the label ``severity``. Any other value, such as "page", is a fleet's own and is not assumed harmless."""
_DRIVER_ERROR = re.compile(r"S?X[Ii][Dd]|(?<![a-z])s?xid")
"""Matches in a check's name: SysLogsXIDError is about XIDs, SysLogsSXIDError about SXIDs."""
_NAME_MAX = 70
_OTHER = re.compile(r"[^A-Za-z0-9_.:/-]+")

Check = Annotated[str, pydantic.Field(pattern=r"^[a-z0-9][A-Za-z0-9_.:/-]{0,79}$")]
Text = Annotated[str, pydantic.Field(max_length=1000)]
Name = Annotated[str, pydantic.Field(max_length=200)]


class Reported(pydantic.BaseModel):
    """One observation in Muster's own form. ``node``, or ``nodes`` that show the same. ``bad``: of a state, whether it
    is bad now; left out for an event. ``severity``: as policies for device events have it; an XID's is the
    SKU's to give. ``at``: when an event was; one that is not later than the last of its check and part repeats it.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    check: Check
    node: Name = ""
    nodes: Annotated[tuple[Name, ...], pydantic.Field(max_length=NODES_MAX)] = ()
    device: Annotated[str, pydantic.Field(pattern=r"^[a-z0-9][A-Za-z0-9:._/-]{0,59}$")] = "node"
    part: Annotated[str, pydantic.Field(max_length=PART_MAX)] = ""
    value: Text = ""
    count: Annotated[int, pydantic.Field(ge=1, le=1_000_000)] = 1
    bad: bool | None = None
    severity: EventSeverity | None = None
    boot_id: Annotated[str, pydantic.Field(max_length=64), pydantic.AfterValidator(one_line)] = ""
    at: Annotated[pydantic.AwareDatetime, pydantic.Field(ge=_SINCE)] | None = None

    @pydantic.model_validator(mode="after")
    def _names_nodes(self) -> Reported:
        if not self.node and not self.nodes:
            raise ValueError("name a node")
        if self.check == UNISOLATED and not 2 <= len(self.names) <= SUSPECTS_MAX:
            raise ValueError(f"{UNISOLATED} names 2 to {SUSPECTS_MAX} nodes, one of which failed a job: narrow it down")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes, each once."""
        return tuple(dict.fromkeys((*((self.node,) if self.node else ()), *self.nodes)))

    def seen_of(self, name: str) -> Reading:
        """As it is recorded of the node that the source calls ``name``."""
        severity, value = str(self.severity or ""), self.value
        if self.check == UNISOLATED:
            others = ", ".join(each for each in self.names if each != name)
            value = f"it or {others}{f': {value}' if value else ''}"
        return Reading(self.check, self.device, value, self.count, severity, None, self.bad, self.part, self.at)


def read(form: Form, body: Any, node: str = "") -> Iterator[Reported | str]:
    """Yields the reports of a body; for one that cannot be used, a sentence. ``node``: of a form that names none."""
    for given in _given(form, body, node):
        try:
            yield Reported.model_validate(given)
        except pydantic.ValidationError as error:
            yield one_line(first_refused(error, whole="a report"))[:PROBLEM_MAX]


def _given(form: Form, body: Any, node: str) -> Iterator[Any]:
    if form == "alertmanager":
        yield from map(_alert, _list(body, "alerts"))
    elif form == "nvsentinel":
        for event in _list(body, "events"):
            yield from _sentinel(event)
    elif form == "gpud":
        for component in _list(body, "components"):
            events = [_gpud(str(_of(component, "component")), event, node) for event in _list(component, "events")]
            yield from _apart(events)
    else:
        yield from _list(body, "reports")


def _list(body: Any, name: str) -> list[Any]:
    """The list under a name, or the body itself: several, or one."""
    found = body.get(name, [body]) if isinstance(body, dict) else body
    return found if isinstance(found, list) else [] if found is None else [found]


def _of(value: Any, *names: str) -> Any:
    """The first value under one of these names, "" for none."""
    known = value if isinstance(value, dict) else {}
    return next((known[name] for name in names if known.get(name) not in (None, "")), "")


def _named(kind: str, name: Any) -> str:
    # A name that ends in "/" would stand for all names that begin with it.
    return f"{kind}/{_OTHER.sub('-', str(name))[:_NAME_MAX]}".rstrip("/")


def _alert(alert: Any) -> dict[str, Any]:
    labels, notes = _of(alert, "labels"), _of(alert, "annotations")
    severity = _OF_ALERTS.get(str(_of(labels, "severity")).strip().lower(), "RESET")
    known = labels if isinstance(labels, dict) else {}
    # Other labels tell alerts of one name and node apart: one that ends must not end another.
    part = " ".join(f"{key} {known[key]}" for key in sorted(known, key=str) if key not in (*_NODE_LABELS, *_NO_PART))
    return {
        "check": _named("alert", _of(labels, "alertname")),
        "node": re.sub(r":\d+$", "", str(_of(labels, *_NODE_LABELS))).strip("[]"),
        "part": part if len(part) <= PART_MAX else str(_of(alert, "fingerprint"))[:PART_MAX],
        "value": str(_of(notes, "summary", "description", "message"))[:1000],
        "severity": severity,
        "bad": _of(alert, "status") != "resolved",
    }


def _sentinel(event: Any) -> Iterator[dict[str, Any]]:
    """A report for each of its codes: an XID or SXID is an event, any other code a state of its own, which goes on when
    another one of the same check and part ends. A healthy event without a code ends them all.
    """
    name = str(_of(event, "checkName", "check_name"))
    codes = _of(event, "errorCode", "error_code")
    healthy, fatal = _of(event, "isHealthy", "is_healthy") is True, bool(_of(event, "isFatal", "is_fatal"))
    entities = _of(event, "entitiesImpacted", "entities_impacted")
    parts = " ".join(f"{_of(each, 'entityType', 'entity_type')} {_of(each, 'entityValue', 'entity_value')}"
                     for each in (entities if isinstance(entities, list) else []))  # fmt: skip
    given = sorted({str(code) for code in codes}) if isinstance(codes, list) else [str(codes or "")]
    driver = _DRIVER_ERROR.search(name)
    kind = driver[0].lower() if driver and not healthy else ""
    for code in given or [""]:
        is_event = bool(kind) and code.isdecimal()
        check = f"{kind}/{code}" if is_event else _named("event", f"{name[: _NAME_MAX - 1 - len(code)]}/{code}")
        yield {
            "check": f"{check}/" if healthy and name and not code else check,
            "node": str(_of(event, "nodeName", "node_name")),
            "part": parts[:PART_MAX],
            "value": str(_of(event, "message"))[:1000],
            # STORE_ONLY: NVSentinel itself would not act on it.
            "severity": "ISOLATE" if fatal and _of(event, "processingStrategy") != "STORE_ONLY" else "MONITOR",
            "bad": None if is_event else not healthy,
        }


def _apart(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields the events in order, with those of one check and moment merged: times are whole seconds and errors of
    several GPUs share a name, so that a later window would repeat them.
    """
    in_order = sorted(events, key=lambda event: (event["at"] or _SINCE, event["check"]))
    for (at, _), same in itertools.groupby(in_order, key=lambda event: (event["at"], event["check"])):
        alike = list(same)
        if at is None:
            yield from alike
            continue
        severities = [each["severity"] for each in alike if each["severity"]]
        value = "; ".join(sorted({each["value"] for each in alike}))[:1000]
        yield {**alike[0], "value": value, "severity": min(severities, key=_GRAVEST_FIRST.index, default=None)}


def _gpud(component: str, event: Any, node: str) -> dict[str, Any]:
    severity = _OF_GPUD.get(str(_of(event, "type")).lower())
    at = None
    with contextlib.suppress(ValueError):
        at = datetime.datetime.fromisoformat(str(_of(event, "time")))
    return {
        "check": _named("event", f"{component}/{_of(event, 'name')}"),
        "node": node,
        "at": at if at and at.tzinfo and at > _SINCE else None,
        "value": str(_of(event, "message"))[:1000],
        "severity": severity,
    }
