"""A policy is a versioned table in a file of its own: of XIDs, of the kernel's messages, of health between tests."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import Field, model_validator

from muster_criteria.written import Kind, Written, read

BYTES_MAX = 200_000
NAME = r"^[a-z0-9][a-z0-9.-]{0,62}$"


class BadPolicy(Exception):
    """A policy that cannot be used; the message is one sentence with the place and the problem."""


class Source(Written):
    """The origin of entries, and the date on which they were taken from there."""

    text: Annotated[str, Field(min_length=8)]
    date: datetime.date


class Table(Written):
    """The base of a policy. ``policy`` and ``version`` are what a decision cites; ``sources``: by name. ``MARK``: the
    key that tables of this kind have, and no others.
    """

    MARK: ClassVar[str]

    policy: Annotated[str, Field(pattern=NAME)]
    version: str
    title: str
    sources: dict[str, Source]

    @property
    def cited(self) -> str:
        """The policy as a decision cites it: "health 2026.1"."""
        return f"{self.policy} {self.version}"

    @model_validator(mode="before")
    @classmethod
    def _of_this_kind(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and cls.MARK not in raw:
            raise ValueError(f"it is a policy of another kind: it has no key {cls.MARK!r}")
        return raw

    def check_sources(self, named: Iterable[str]) -> None:
        """Raises ValueError where one of those named is none of ``sources``."""
        if missing := sorted(set(named) - set(self.sources)):
            raise ValueError(f"there is no source {missing[0]!r} (there are {', '.join(sorted(self.sources))})")


Policy = TypeVar("Policy", bound=Table)


def parse(kind: type[Kind], text: bytes, where: str) -> Kind:
    """Read a policy. Raises BadPolicy, one sentence that names ``where`` and the key, for the first thing wrong."""
    return read(kind, text, BYTES_MAX, where, BadPolicy)


def find(kind: type[Table], name: str, folders: Sequence[Path]) -> Path:
    """The file of a policy, in the first folder that has one. Raises BadPolicy that lists those of its kind."""
    if re.fullmatch(NAME, name):
        for folder in folders:
            if (path := Path(folder) / "policies" / f"{name}.yaml").is_file():
                return path
    files = (path for folder in folders for path in (Path(folder) / "policies").glob("*.yaml"))
    mark = re.compile(rf"^{kind.MARK}:".encode(), re.M)
    known = sorted({path.stem for path in files if mark.search(path.read_bytes())})
    raise BadPolicy(f"there is no policy {name!r}: known are {', '.join(known) or 'none'}.")
