"""Errors of usage as our sentences: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from typer.exceptions import TyperException

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WANTED = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "date": "a day such as 2026-11-26",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "one of {expected}",
    "enum": "one of {expected}",
}
"""By the beginning of pydantic's type of an error: what the value has to be."""
_NO_COMMAND = re.compile(r"^No such command '(.*?)'\.", re.DOTALL)
_SURPLUS = re.compile(r"^Got unexpected extra argument\S* \((.*)\)$", re.DOTALL)


def sentence(error: TyperException, command: Any, words: Sequence[str]) -> str:
    """Returns the error of ``command``, called with ``words``, as one sentence that ends with the help to read."""
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else _path(command, words)
    return f"{_what(error, context, path)}; see `{path} --help`"


def _path(command: Any, words: Iterable[str]) -> str:
    """The command that the words name: some errors do not say of which they are."""
    path = ["muster"]
    for word in words:
        if word in getattr(command, "commands", ()):
            command = command.commands[word]
            path.append(word)
    return " ".join(path)


def _what(error: TyperException, context: Any, path: str) -> str:
    kind, parameter = type(error).__name__, _parameter(error)
    command = _NO_COMMAND.match(error.message)
    surplus = _SURPLUS.match(error.message)
    if kind == "NoArgsIsHelpError":
        return f"`{path}` needs a command"
    if kind == "NoSuchOption":
        option = str(getattr(error, "option_name", ""))
        known = (name for each in context.command.params for name in each.opts) if context is not None else ()
        return f"`{path}` has no option {option}{_closest(option, known)}"
    if command:
        name = command.group(1)
        return f"`{path}` has no command {name}{_closest(name, getattr(context.command, 'commands', ()))}"
    if surplus:
        return f"`{path}` takes no further argument: {surplus.group(1)}"
    if kind == "MissingParameter":
        return f"`{path}` needs {parameter}"
    if kind == "BadOptionUsage":
        option = str(getattr(error, "option_name", ""))
        takes = "takes no value" if "does not take" in error.message else "needs a value"
        return f"{option} of `{path}` {takes}"
    if parameter:
        return f"{parameter} of `{path}` {_wrong_value(error)}"
    return error.format_message().rstrip(".")


def _parameter(error: TyperException) -> str:
    """The option or argument that the error is about, as one writes it; "" for none."""
    found: Any = getattr(error, "param", None)
    if found is None:
        return ""
    if found.param_type_name == "option":
        return str(found.opts[-1])
    return str(found.get_error_hint()).strip("'").upper()


def _wrong_value(error: TyperException) -> str:
    """What the value is and has to be, by the type's own check."""
    checked = getattr(error.__cause__, "errors", None)
    problems = checked() if callable(checked) else ()
    for problem in problems:
        for begin, wanted in WANTED.items():
            if problem["type"].startswith(begin):
                return f"is {problem['input']!r}, and has to be {wanted.format(**problem.get('ctx', {}))}"
    message = error.message.rstrip(".")
    return f"cannot be used: {message[:1].lower()}{message[1:]}"


def _closest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (do you mean {near[0]}?)" if near else ""
