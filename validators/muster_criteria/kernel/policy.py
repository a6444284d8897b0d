"""The policy for the kernel's messages: what each kind means and what to do. One versioned table, read strictly.

Pure: an event and a policy give a response. A new kind of message is one entry, with an example of it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from muster_criteria.model import Action, FaultClass
from muster_criteria.policy_file import Source
from muster_criteria.written import Written, as_tuple
from muster_criteria.xid.policy import XidSeverity

DEFAULT = "kernel"
"""The policy of a SKU file that names none."""

UNKNOWN = "unknown"
"""The name under which messages are reported that no entry knows."""

_PREFIX = re.compile(r"^(?:<\d+>)?\s*\[\s*[\d.]+\]\s?")

Text = Annotated[str, Field(min_length=3)]


class Entry(Written):
    """One kind of message. The first entry of the table whose pattern is found in the text counts.

    ``when``: "always", or "during" if only messages of the stage itself matter. ``examples``: lines of a log that must
    be read as this entry; at least one, so that a pattern that never matches is refused when the table is read.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{1,40}$")]
    matches: Annotated[tuple[Text, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    meaning: Text
    severity: XidSeverity
    fault: FaultClass
    action: Action
    source: str
    when: Literal["always", "during"] = "always"
    why: str = ""
    examples: Annotated[tuple[Text, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    _pattern: re.Pattern[str] = PrivateAttr()

    @model_validator(mode="after")
    def _compiles(self) -> Entry:
        try:
            self._pattern = re.compile("|".join(f"(?:{each})" for each in self.matches), re.IGNORECASE)
        except re.error as error:
            raise ValueError(f"{self.name}: not a regular expression: {error}") from None
        return self

    def fits(self, text: str) -> bool:
        """Whether a message is of this kind."""
        return self._pattern.search(text) is not None


class Unknown(Written):
    """The response to messages that no entry knows, of ``priority`` (0 gravest, 3 error) and graver, in a stage."""

    priority: Annotated[int, Field(ge=0, le=7)]
    meaning: Text
    severity: XidSeverity
    fault: FaultClass
    action: Action
    source: str


class KernelPolicy(Written):
    """The table. ``policy`` and ``version`` are what a response cites."""

    policy: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{0,62}$")]
    version: str
    title: str
    sources: dict[str, Source]
    unknown: Unknown
    entries: Annotated[tuple[Entry, ...], BeforeValidator(as_tuple)]

    @model_validator(mode="after")
    def _whole(self) -> KernelPolicy:
        names = [each.name for each in self.entries]
        if twice := next((name for name in names if names.count(name) > 1 or name == UNKNOWN), ""):
            raise ValueError(f"the name {twice} is given twice, or is not allowed")
        used = {self.unknown.source, *(each.source for each in self.entries)}
        if missing := sorted(used - set(self.sources)):
            raise ValueError(f"there is no source {missing[0]!r} (there are {', '.join(sorted(self.sources))})")
        for entry in self.entries:
            for example in entry.examples:
                self._check_example(entry, example)
        return self

    def _check_example(self, entry: Entry, example: str) -> None:
        text = " | ".join(_PREFIX.sub("", line) for line in example.splitlines())
        read = self.entry(text)
        if read is not entry:
            raise ValueError(f"{entry.name}: the example {example[:80]!r} is read as {read.name if read else UNKNOWN}")

    @property
    def cited(self) -> str:
        """The policy as a response cites it: "kernel 2026.1"."""
        return f"{self.policy} {self.version}"

    def citing(self, source: str) -> str:
        """The source as a response cites it, by the name of one of ``sources``."""
        cited = self.sources[source]
        return f"kernel policy {self.cited}: {cited.text} ({cited.date.isoformat()})"

    def entry(self, text: str) -> Entry | None:
        """The entry for a message; None if the table has none."""
        return next((each for each in self.entries if each.fits(text)), None)


@dataclasses.dataclass(frozen=True)
class KernelEvent:
    """One message or record of a node's kernel.

    ``pci``: the address in it, "" without one; ``priority``: 0 (gravest) to 7, ``first`` and ``last``: seconds since
    boot, None where unknown; ``count``: how often it was logged.
    """

    device: str
    pci: str
    text: str
    priority: int | None = None
    first: float | None = None
    last: float | None = None
    count: int = 1

    def after(self, began: float | None) -> bool:
        """Whether it was logged (again) after ``began``; so it is taken where either time is unknown."""
        return began is None or self.last is None or self.last > began


@dataclasses.dataclass(frozen=True)
class Response:
    """The policy's decision on an event. ``name``: the entry's, or ``UNKNOWN``."""

    name: str
    severity: XidSeverity
    action: Action
    fault: FaultClass
    meaning: str
    source: str


def response_to(event: KernelEvent, during: bool, policy: KernelPolicy) -> Response:
    """The policy's decision on one event of a stage (``during``), or from before it."""
    entry = policy.entry(event.text)
    if entry is not None:
        severity = entry.severity if during or entry.when == "always" else XidSeverity.IGNORE
        source = policy.citing(entry.source)
        return Response(entry.name, severity, entry.action, entry.fault, entry.meaning, source)
    unknown = policy.unknown
    grave = event.priority is not None and event.priority <= unknown.priority
    severity = unknown.severity if during and grave else XidSeverity.IGNORE
    return Response(UNKNOWN, severity, unknown.action, unknown.fault, unknown.meaning, policy.citing(unknown.source))
