"""Programs that may only report observations of nodes, or answer for nodes that they repair: each has its own token,
stored as a hash.
"""

from __future__ import annotations

import collections
import fnmatch
import hashlib
import secrets
from typing import Annotated, Literal

import pydantic

from muster.errors import first_refused
from muster.model.health import BMC, SWEEP
from muster.settings import settings
from muster_criteria.health.policy import HealthAction
from muster_criteria.text import one_line

Form = Literal["muster", "alertmanager", "nvsentinel", "gpud"]


class Source(pydantic.BaseModel):
    """One entry of MUSTER_REPORT_SOURCES. ``sha256``: of the token, in hex; the token itself is at the source alone.

    ``cluster``: the scheduler whose names of nodes it uses; "": Muster's own, or hosts. ``nodes``: patterns of Muster's
    names of the nodes that it may report. ``most``: the gravest action that a report of it causes. ``per_minute``:
    reports that are read. ``repairs``: the owner (label ``repair_owner``) for whose nodes it answers; "": for none.
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


def sources() -> tuple[dict[str, Source], list[str]]:
    """Returns the sources by name, and a sentence, without the given value, about each entry that cannot be used; the
    others stay usable. Raises BadSettings.
    """
    found: dict[str, Source] = {}
    wrong: list[str] = []
    for name, given in settings().report_sources.items():
        try:
            found[name] = Source.model_validate(given)
        except pydantic.ValidationError as error:
            wrong.append(f"{name}: {first_refused(error)}; correct it")
    own = [name for name in (SWEEP, BMC) if found.pop(name, None)]
    wrong += [f"{name}: that is the controller's own source; choose another name" for name in own]
    owners: dict[str, list[str]] = collections.defaultdict(list)
    for name, source in found.items():
        owners[source.sha256].append(name)
    shared = [names for names in owners.values() if len(names) > 1]
    wrong += [f"{', '.join(names)}: they have one token; give each source its own" for names in shared]
    usable = {name: source for name, source in found.items() if len(owners[source.sha256]) == 1}
    return usable, [one_line(f"MUSTER_REPORT_SOURCES: {each}") for each in wrong]


def named(token: str, known: dict[str, Source]) -> str:
    """Returns the name of the source that has this token, "" for none. Each hash is compared, in constant time."""
    given, found = hashlib.sha256(token.encode()).hexdigest(), ""
    for name, source in known.items():
        if secrets.compare_digest(given, source.sha256):
            found = name
    return found
