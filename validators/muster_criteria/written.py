"""The base of everything that is read from YAML, and reading it with one sentence for the first thing that is wrong."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from muster_criteria import yaml_file
from muster_criteria.text import refusal
from muster_criteria.yaml_file import BadYaml


class Written(BaseModel):
    """Base of everything read from YAML: frozen, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Kind = TypeVar("Kind", bound=Written)


def one_or_more(value: object) -> object:
    """One text or number as a tuple of it."""
    return (value,) if isinstance(value, str | int) else value


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_compiles)]
"""A regular expression."""


def problem_of(error: ValidationError) -> tuple[tuple[str, ...], str, str]:
    """The first thing that is wrong: the keys to it, what it is, and " (2 more)" where other things are wrong too."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    keys = tuple(str(part) for part in problems[0]["loc"])
    more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
    return keys, refusal(problems[0]["msg"]), more


def read(kind: type[Kind], text: bytes, bytes_max: int, where: str, refused: type[Exception]) -> Kind:
    """What a file's text holds. Raises ``refused``, with one sentence that names ``where`` and the key."""
    try:
        return kind.model_validate(yaml_file.load(text, bytes_max))
    except BadYaml as error:
        raise refused(f"{where} {error}.") from None
    except ValidationError as error:
        keys, message, more = problem_of(error)
        raise refused(f"{where}: {'.'.join(keys) or 'the file'}: {message[0].lower() + message[1:]}{more}.") from None
