"""A policy is a versioned table in a file of its own: of XIDs, of the kernel's messages, of health between tests."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, ValidationError

from muster_criteria import yaml_file
from muster_criteria.written import Written
from muster_criteria.yaml_file import BadYaml

BYTES_MAX = 200_000

Policy = TypeVar("Policy", bound=Written)


class BadPolicy(Exception):
    """A policy that cannot be used; the message is one sentence with the place and the problem."""


class Source(Written):
    """The origin of entries, and the date on which they were taken from there."""

    text: Annotated[str, Field(min_length=8)]
    date: datetime.date


def parse(kind: type[Policy], text: bytes, where: str) -> Policy:
    """Read a policy. Raises BadPolicy, one sentence that names ``where`` and the key, for the first thing wrong."""
    try:
        return kind.model_validate(yaml_file.load(text, BYTES_MAX))
    except BadYaml as error:
        raise BadPolicy(f"{where}: {error}.") from None
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        first = problems[0]
        key = ".".join(str(part) for part in first["loc"]) or "the table"
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        message = first["msg"].removeprefix("Value error, ")
        raise BadPolicy(f"{where}: {key}: {message[0].lower() + message[1:]}{more}.") from None


def find(name: str, folders: Sequence[Path]) -> Path:
    """The file of a policy, in the first folder that has one. Raises BadPolicy that lists those there are."""
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,62}", name):
        for folder in folders:
            if (path := Path(folder) / "policies" / f"{name}.yaml").is_file():
                return path
    known = sorted({path.stem for folder in folders for path in (Path(folder) / "policies").glob("*.yaml")})
    raise BadPolicy(f"there is no policy {name!r}: known are {', '.join(known) or 'none'}.")
