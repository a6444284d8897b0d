"""The XID policy: what each error of the GPU driver means and what is to be done. One versioned table, read strictly.

Pure: an event and a policy give a response. It knows neither nodes nor findings.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from muster_criteria.model import Action, FaultClass
from muster_criteria.policy_file import Source
from muster_criteria.written import Written, as_tuple

Kind = Literal["xid", "sxid"]


class XidSeverity(enum.StrEnum):
    """The response that an error needs, gravest first. Each step down costs the fleet less."""

    ISOLATE = "ISOLATE"
    REBOOT = "REBOOT"
    RESET = "RESET"
    MONITOR = "MONITOR"
    IGNORE = "IGNORE"


GRAVITY = {severity: place for place, severity in enumerate(XidSeverity)}
"""0 is the gravest."""


class Case(Written):
    """The response to some of a code's messages: all conditions given must hold, and the first case that fits counts.

    ``matches``: a regular expression that the text must match. ``unit``, ``status``, ``subcode``, ``fatal`` are what
    ``decode_nvlink5`` reads out of the text of XIDs 144 to 150; ``fatal`` alone also reads an SXID's.
    """

    matches: str | None = None
    unit: str | None = None
    status: Annotated[tuple[int, ...], BeforeValidator(as_tuple)] | None = None
    subcode: Annotated[tuple[int, ...], BeforeValidator(as_tuple)] | None = None
    fatal: bool | None = None
    severity: XidSeverity
    action: Action | None = None
    meaning: str = ""

    @field_validator("matches")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return pattern


class Entry(Written):
    """The policy's entry for one code, or for several with the same meaning.

    ``why`` is required where ``others`` disagree: which side is taken, and why. ``source`` names one of
    the policy's sources.
    """

    codes: Annotated[tuple[Annotated[int, Field(ge=1, le=99_999)], ...], BeforeValidator(as_tuple), Field(min_length=1)]
    kind: Kind = "xid"
    meaning: Annotated[str, Field(min_length=3)]
    severity: XidSeverity
    fault: FaultClass
    action: Action
    source: str
    why: str = ""
    others: Mapping[str, str] = Field(default_factory=dict)
    cases: Annotated[tuple[Case, ...], BeforeValidator(as_tuple)] = ()

    @model_validator(mode="after")
    def _takes_a_side(self) -> Entry:
        if self.others and not self.why:
            raise ValueError(f"code {self.codes[0]} is disputed (others), but has no reason for this side (why)")
        return self


class Unknown(Written):
    """The response to codes that the table does not have, by kind of message."""

    kind: Kind
    meaning: str
    severity: XidSeverity
    fault: FaultClass
    action: Action
    source: str
    cases: Annotated[tuple[Case, ...], BeforeValidator(as_tuple)] = ()


class Escalation(Written):
    """The same code on the same device in ``boots`` boots (two reboots did not help: 3): ``severity`` then."""

    boots: Annotated[int, Field(ge=2)]
    severity: XidSeverity
    action: Action
    from_severity: XidSeverity
    """Only codes at least this grave escalate: an application that crashes after each reboot does not."""
    source: str


class XidPolicy(Written):
    """The table. ``name`` and ``version`` are what a response cites."""

    policy: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    version: str
    title: str
    sources: dict[str, Source]
    escalation: Escalation
    unknown: Annotated[tuple[Unknown, ...], BeforeValidator(as_tuple)]
    entries: Annotated[tuple[Entry, ...], BeforeValidator(as_tuple)]

    @model_validator(mode="after")
    def _whole(self) -> XidPolicy:
        seen: set[tuple[str, int]] = set()
        for entry in self.entries:
            for code in entry.codes:
                if (entry.kind, code) in seen:
                    raise ValueError(f"{entry.kind} {code} is given twice")
                seen.add((entry.kind, code))
        used = {each.source for each in self.entries} | {each.source for each in self.unknown}
        used.add(self.escalation.source)
        if unknown := sorted(used - set(self.sources)):
            raise ValueError(f"there is no source {unknown[0]!r} (there are {', '.join(sorted(self.sources))})")
        if {each.kind for each in self.unknown} != {"xid", "sxid"}:
            raise ValueError("unknown must have an entry for xid and one for sxid")
        return self

    @property
    def cited(self) -> str:
        """The policy as a response cites it: "nvidia-xid 2026.1"."""
        return f"{self.policy} {self.version}"

    def citing(self, source: str) -> str:
        """The source as a response cites it, by the name of one of ``sources``."""
        cited = self.sources[source]
        return f"XID policy {self.cited}: {cited.text} ({cited.date.isoformat()})"

    def entry(self, kind: str, code: int) -> Entry | Unknown:
        """The table's entry for a code."""
        for entry in self.entries:
            if entry.kind == kind and code in entry.codes:
                return entry
        return next(each for each in self.unknown if each.kind == kind)


@dataclasses.dataclass(frozen=True)
class XidEvent:
    """One XID or SXID of a node. ``at``: seconds since boot, None if unknown; ``count``: how often it was logged;
    ``last``: when for the last time, None if once or unknown."""

    kind: Kind
    code: int
    device: str
    pci: str
    text: str
    at: float | None = None
    count: int = 1
    last: float | None = None

    def after(self, began: float | None) -> bool:
        """Whether it was logged (again) after ``began``; so it is taken where either time is unknown."""
        latest = self.last if self.last is not None else self.at
        return began is None or latest is None or latest > began

    @property
    def name(self) -> str:
        """ "XID 79"."""
        return f"{self.kind.upper()} {self.code}"


@dataclasses.dataclass(frozen=True)
class Response:
    """The policy's decision on an event."""

    severity: XidSeverity
    action: Action
    fault: FaultClass
    meaning: str
    source: str


@dataclasses.dataclass(frozen=True)
class NvLink5:
    """Content of the text of XIDs 144 to 150: unit names, fatal or not, link, sub-code and error status."""

    units: frozenset[str]
    fatal: bool
    link: int
    subcode: int
    status: int


_NVLINK5 = re.compile(
    r"^(?P<unit>[A-Z0-9_/]+) (?P<fatal>Fatal|Non-?fatal)\b.*?\bLink (?P<link>-?\d+) "
    r"\((?P<info>0x[0-9a-fA-F]+) (?P<status>0x[0-9a-fA-F]+)"
)
_FATAL = re.compile(r"\b(Non-?)?fatal\b", re.IGNORECASE)
_SUBCODE_SHIFT, _SUBCODE_MASK = 20, 0x3F
"""Bits 25 to 20 of the first word (NVIDIA XID catalogue, sheet "XID 144-150 Decode"), the same in both its layouts."""


def decode_nvlink5(text: str) -> NvLink5 | None:
    """The content of an NVLink 5 error's text; None if it has another form."""
    found = _NVLINK5.match(text)
    if found is None:
        return None
    return NvLink5(
        units=frozenset(found["unit"].split("/")),
        fatal=found["fatal"] == "Fatal",
        link=int(found["link"]),
        subcode=(int(found["info"], 16) >> _SUBCODE_SHIFT) & _SUBCODE_MASK,
        status=int(found["status"], 16),
    )


def response_to(event: XidEvent, policy: XidPolicy) -> Response:
    """The policy's decision on one event."""
    entry = policy.entry(event.kind, event.code)
    case = next((case for case in entry.cases if _fits(case, event.text)), None)
    source = policy.citing(entry.source)
    if case is None:
        return Response(entry.severity, entry.action, entry.fault, entry.meaning, source)
    meaning = f"{entry.meaning}: {case.meaning}" if case.meaning else entry.meaning
    return Response(case.severity, case.action or entry.action, entry.fault, meaning, source)


def _fits(case: Case, text: str) -> bool:
    if case.matches is not None and re.search(case.matches, text, re.IGNORECASE) is None:
        return False
    decoded = decode_nvlink5(text)
    if case.fatal is not None:
        fatal = _FATAL.search(text)
        if fatal is None or (fatal.group(1) is None) is not case.fatal:
            return False
    if case.unit is None and case.status is None and case.subcode is None:
        return True
    return (
        decoded is not None
        and (case.unit is None or case.unit in decoded.units)
        and (case.status is None or decoded.status in case.status)
        and (case.subcode is None or decoded.subcode in case.subcode)
    )


def returning(boots: Sequence[Iterable[XidEvent]], policy: XidPolicy) -> dict[tuple[str, str, int], int]:
    """Returns {(device or PCI address, kind, code): number of boots} of the errors that escalate.

    ``boots``: the events of each boot of one machine.
    """
    seen: dict[tuple[str, str, int], set[int]] = {}
    least = GRAVITY[policy.escalation.from_severity]
    for number, events in enumerate(boots):
        for event in events:
            if GRAVITY[response_to(event, policy).severity] <= least:
                seen.setdefault((event.pci or event.device, event.kind, event.code), set()).add(number)
    return {key: len(numbers) for key, numbers in seen.items() if len(numbers) >= policy.escalation.boots}
