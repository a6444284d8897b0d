"""A policy for device events: what each means and what is to be done. One versioned table, read strictly.

Pure: an event and a policy give a response. It knows neither nodes nor findings. A kind of event ("xid", "kernel") is a
name that nodes give it; a new kind needs a policy that names it, and nothing else.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from muster_criteria.model import Action, FaultClass
from muster_criteria.policy_file import Table
from muster_criteria.written import Pattern, Written, one_or_more

KERNEL = "kernel"
"""The kind of messages without a code, and the name of the policy that judges them where a SKU names none."""

UNKNOWN = "unknown"
"""The name under which messages without a code are reported that no entry knows."""

WITHIN_DAYS_MAX = 366.0
"""Longest window: an event that comes back later does not show whether restarts helped."""

_PREFIX = re.compile(r"^(?:<\d+>)?\s*\[\s*[\d.]+\]\s?")


class EventSeverity(enum.StrEnum):
    """The response that an event needs, gravest first. Each step down costs the fleet less."""

    ISOLATE = "ISOLATE"
    REBOOT = "REBOOT"
    RESET = "RESET"
    MONITOR = "MONITOR"
    IGNORE = "IGNORE"


GRAVITY = {severity: place for place, severity in enumerate(EventSeverity)}
"""0 is the gravest."""


Text = Annotated[str, Field(min_length=3)]
Matching = Annotated[Pattern, Field(min_length=3)]
Kind = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,15}$")]
When = Literal["always", "during"]


class TextField(Written):
    """A part of events' texts that cases ask for: the group of ``matches``.

    A hexadecimal one is a number, of which ``bits`` (lowest and highest) may be taken. ``separator``: it is a list.
    """

    matches: Matching
    bits: tuple[int, int] | None = None
    separator: str = ""

    def read(self, text: str) -> frozenset[str | int]:
        """What the text has there; empty where it has another form."""
        found = re.search(self.matches, text, re.IGNORECASE)
        if found is None:
            return frozenset()
        value = found.group(1).lower()
        if value.startswith("0x"):
            low, high = self.bits or (0, 31)
            return frozenset({int(value, 16) >> low & (1 << high - low + 1) - 1})
        return frozenset(value.split(self.separator) if self.separator else [value])


class Case(Written):
    """The response to some of an entry's messages: all conditions given must hold, and the first case that fits counts.

    ``matches``: a regular expression that the text must match. ``where``: for fields of the policy, the values of which
    it must have one.
    """

    matches: Matching | None = None
    where: Mapping[str, Annotated[tuple[str | int, ...], BeforeValidator(one_or_more)]] = Field(default_factory=dict)
    severity: EventSeverity
    action: Action | None = None
    meaning: str = ""


Cases = tuple[Case, ...]


class Entry(Written):
    """The entry for messages of ``kind`` with one of ``codes``, or in whose text one of ``matches`` is found.

    The first entry that fits counts. ``name``: of one without codes. ``when``: "always", or "during" if only messages
    of the stage itself matter. ``why`` is required where ``others`` disagree: which side is taken, and why. ``source``
    names one of the policy's sources. ``examples``: lines of a log that must be read as this entry; without codes at
    least one, so that a pattern that never matches is refused when the table is read.
    """

    kind: Kind
    name: Annotated[str, Field(pattern=r"^([a-z][a-z0-9-]{1,40})?$")] = ""
    codes: tuple[Annotated[int, Field(ge=1, le=99_999)], ...] = ()
    matches: tuple[Matching, ...] = ()
    meaning: Text
    severity: EventSeverity
    fault: FaultClass
    action: Action
    source: str
    when: When = "always"
    why: str = ""
    others: Mapping[str, str] = Field(default_factory=dict)
    examples: tuple[Text, ...] = ()
    cases: Cases = ()
    _pattern: re.Pattern[str] = PrivateAttr()

    @model_validator(mode="after")
    def _whole(self) -> Entry:
        called = self.name or (f"code {self.codes[0]}" if self.codes else "an entry")
        if bool(self.codes) is bool(self.matches):
            raise ValueError(f"{called} needs codes or matches, and not both")
        if self.matches and not (self.name and self.examples):
            raise ValueError(f"{called} is found by its text, so it needs a name and an example")
        if self.others and not self.why:
            raise ValueError(f"{called} is disputed (others), but has no reason for this side (why)")
        self._pattern = re.compile("|".join(f"(?:{each})" for each in self.matches), re.IGNORECASE)
        return self

    def fits(self, code: int | None, text: str) -> bool:
        """Whether a message of its kind is one of these."""
        return code in self.codes if self.codes else self._pattern.search(text) is not None


class Unknown(Written):
    """The response to messages of a kind that the table does not have.

    ``priority``: only those that the kernel logs as this grave (0 gravest, 3 error) or graver.
    """

    kind: Kind
    meaning: Text
    severity: EventSeverity
    fault: FaultClass
    action: Action
    source: str
    when: When = "always"
    priority: Annotated[int, Field(ge=0, le=7)] | None = None
    cases: Cases = ()


class Escalation(Written):
    """The ``severity`` of an event that came back on one device in ``boots`` boots (3: two reboots did not help).
    ``within_days``: only what was recorded in so many days counts; by default as many as those in which the repair
    policy counts restarts. ``from_severity``: only events at least this grave escalate: an application that crashes
    after each reboot does not.
    """

    boots: Annotated[int, Field(ge=2)]
    within_days: Annotated[float, Field(gt=0, le=WITHIN_DAYS_MAX)] = 7.0
    severity: EventSeverity
    action: Action
    from_severity: EventSeverity
    source: str

    @property
    def within(self) -> datetime.timedelta:
        """``within_days`` as a duration."""
        return datetime.timedelta(days=self.within_days)


class EventPolicy(Table):
    """The table. ``kinds``: the kinds of events that it judges; entries that name none have the first."""

    MARK = "kinds"

    kinds: Annotated[tuple[Kind, ...], Field(min_length=1)]
    fields: dict[str, TextField] = Field(default_factory=dict)
    escalation: Escalation | None = None
    unknown: tuple[Unknown, ...]
    entries: tuple[Entry, ...]

    @model_validator(mode="before")
    @classmethod
    def _named_kinds(cls, raw: Any) -> Any:
        kinds = raw.get("kinds") if isinstance(raw, dict) else None
        if not kinds or not isinstance(entries := raw.get("entries"), list):
            return raw
        first = kinds if isinstance(kinds, str) else kinds[0]
        return raw | {"entries": [{"kind": first} | each if isinstance(each, dict) else each for each in entries]}

    @model_validator(mode="after")
    def _whole(self) -> EventPolicy:
        seen: set[tuple[str, int | str]] = set()
        for entry in self.entries:
            for code in entry.codes or (entry.name,):
                if (entry.kind, code) in seen or code == UNKNOWN:
                    raise ValueError(f"{entry.kind} {code} is given twice, or is not allowed")
                seen.add((entry.kind, code))
        used = {each.source for each in self.entries} | {each.source for each in self.unknown}
        used |= {self.escalation.source} if self.escalation else set()
        self.check_sources(used)
        listed = ", ".join(self.kinds)
        if [each.kind for each in self.unknown] != list(self.kinds):
            raise ValueError(f"unknown must have one entry for each of {listed}, in that order")
        if other := sorted({each.kind for each in self.entries} - set(self.kinds)):
            raise ValueError(f"there is an entry for {other[0]}, which is none of the kinds {listed}")
        cases = [case for each in self.entries for case in each.cases]
        cases += [case for each in self.unknown for case in each.cases]
        if odd := sorted({field for case in cases for field in case.where} - set(self.fields)):
            raise ValueError(f"there is no field {odd[0]!r} (there are {', '.join(sorted(self.fields)) or 'none'})")
        for entry in self.entries:
            for example in entry.examples:
                self._check_example(entry, example)
        return self

    def _check_example(self, entry: Entry, example: str) -> None:
        text = " | ".join(_PREFIX.sub("", line) for line in example.splitlines())
        read = self.entry(entry.kind, None, text)
        if entry.matches and read is not entry:
            name = read.name if isinstance(read, Entry) else UNKNOWN
            raise ValueError(f"{entry.name}: the example {example[:80]!r} is read as {name}")

    def citing(self, source: str) -> str:
        """The source as a response cites it, by the name of one of ``sources``."""
        cited = self.sources[source]
        return f"policy {self.cited}: {cited.text} ({cited.date.isoformat()})"

    def entry(self, kind: str, code: int | None, text: str = "") -> Entry | Unknown:
        """The table's entry for a message of one of its kinds."""
        for entry in self.entries:
            if entry.kind == kind and entry.fits(code, text):
                return entry
        return next(each for each in self.unknown if each.kind == kind)


@dataclasses.dataclass(frozen=True)
class DeviceEvent:
    """One message of a node, or ``count`` equal ones. ``code``: the driver's, None for a message with only a text.

    ``pci``: the address in it, "" without one; ``priority``: the kernel's, 0 (gravest) to 7, None where unknown;
    ``at`` and ``last``: seconds since boot of the first and last of them, None where unknown.
    """

    kind: str
    device: str
    pci: str
    text: str
    code: int | None = None
    priority: int | None = None
    at: float | None = None
    last: float | None = None
    count: int = 1

    def after(self, began: float | None) -> bool:
        """Whether it was logged (again) after ``began``; True if either time is unknown."""
        latest = self.last if self.last is not None else self.at
        return began is None or latest is None or latest > began


@dataclasses.dataclass(frozen=True)
class Response:
    """The policy's decision on an event. ``name``: its code, the entry's name, or ``UNKNOWN``."""

    name: str
    severity: EventSeverity
    action: Action
    fault: FaultClass
    meaning: str
    source: str


def policy_of(policies: Iterable[EventPolicy], kind: str) -> EventPolicy | None:
    """The policy that judges a kind of events; None if none of them does."""
    return next((each for each in policies if kind in each.kinds), None)


def response_to(event: DeviceEvent, policy: EventPolicy, during: bool = True) -> Response:
    """The policy's decision on one event, of a stage (``during``) or from before it."""
    entry = policy.entry(event.kind, event.code, event.text)
    named = str(event.code) if event.code is not None else entry.name if isinstance(entry, Entry) else UNKNOWN
    case = next((case for case in entry.cases if _fits(case, event.text, policy.fields)), None)
    severity = case.severity if case else entry.severity
    action = (case and case.action) or entry.action
    meaning = f"{entry.meaning}: {case.meaning}" if case and case.meaning else entry.meaning
    if not _counts(event, entry, during):
        severity = EventSeverity.IGNORE
    return Response(named, severity, action, entry.fault, meaning, policy.citing(entry.source))


def _counts(event: DeviceEvent, entry: Entry | Unknown, during: bool) -> bool:
    if entry.when == "during" and not during:
        return False
    least = entry.priority if isinstance(entry, Unknown) else None
    return least is None or (event.priority is not None and event.priority <= least)


def _fits(case: Case, text: str, fields: Mapping[str, TextField]) -> bool:
    if case.matches is not None and re.search(case.matches, text, re.IGNORECASE) is None:
        return False
    return all(
        not fields[name].read(text).isdisjoint(each.lower() if isinstance(each, str) else each for each in values)
        for name, values in case.where.items()
    )


Key = tuple[str, str, str]
"""Part, kind and name of an event that came back."""


def key_of(event: DeviceEvent, response: Response) -> Key:
    """What makes it the same event in another boot; ``pci`` names the part where it is known."""
    return event.pci or event.device, event.kind, response.name


def returning(boots: Sequence[Iterable[DeviceEvent]], policy: EventPolicy) -> dict[Key, int]:
    """Returns {key: number of boots} of the events that escalate. ``boots``: the events of each boot of one machine."""
    if (last := policy.escalation) is None:
        return {}
    seen: dict[Key, set[int]] = {}
    for number, events in enumerate(boots):
        for event in (each for each in events if each.kind in policy.kinds):
            response = response_to(event, policy)
            if GRAVITY[response.severity] <= GRAVITY[last.from_severity]:
                seen.setdefault(key_of(event, response), set()).add(number)
    return {key: len(numbers) for key, numbers in seen.items() if len(numbers) >= last.boots}
