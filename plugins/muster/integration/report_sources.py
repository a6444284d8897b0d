"""Programs that may report observations of nodes, or answer for nodes that they repair, and do nothing else: each has a
token of its own, kept as a hash.
"""

from __future__ import annotations

import fnmatch
import hashlib
import secrets
from typing import Annotated, Literal

import pydantic

from muster.errors import BadSettings, first_refused
from muster.settings import settings
from muster_criteria.health.policy import HealthAction

Form = Literal["muster", "alertmanager", "nvsentinel", "gpud"]


class Source(pydantic.BaseModel):
    """One entry of MUSTER_REPORT_SOURCES. ``sha256``: of the token, in hex; the token itself is at the source alone.

    ``cluster``: the scheduler whose names of nodes it uses; "": Muster's own. ``nodes``: patterns of the names that it
    may report. ``most``: the gravest action that a report of it causes. ``per_minute``: reports that are accepted.
    ``repairs``: the owner, as the label ``repair_owner`` names it, for whose nodes it answers; "": for none.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    sha256: Annotated[str, pydantic.Field(pattern=r"^[0-9a-f]{64}$")]
    form: Form = "muster"
    cluster: str = ""
    nodes: tuple[str, ...] = ("*",)
    most: HealthAction = HealthAction.TEST_SOONER
    repairs: str = ""
    per_minute: Annotated[int, pydantic.Field(ge=1, le=100_000)] = 600

    def may_report(self, name: str) -> bool:
        """Whether it may report this node."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.nodes)


def sources() -> dict[str, Source]:
    """Returns the sources by name. Raises BadSettings, without what was given, for one that cannot be used."""
    found: dict[str, Source] = {}
    hashes: dict[str, str] = {}
    for name, given in settings().report_sources.items():
        try:
            source = Source.model_validate(given)
        except pydantic.ValidationError as error:
            raise BadSettings(f"MUSTER_REPORT_SOURCES: {name}: {first_refused(error)}; correct it") from None
        if (other := hashes.setdefault(source.sha256, name)) != name:
            raise BadSettings(f"MUSTER_REPORT_SOURCES: {name} has the token of {other}: give each source its own")
        found[name] = source
    return found


def named(token: str, known: dict[str, Source]) -> str:
    """Returns the name of the source that has this token, "" for none. Each hash is compared, in constant time."""
    given, found = hashlib.sha256(token.encode()).hexdigest(), ""
    for name, source in known.items():
        if secrets.compare_digest(given, source.sha256):
            found = name
    return found
