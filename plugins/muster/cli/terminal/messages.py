"""``--json`` for commands that print sentences."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
from collections.abc import Callable
from typing import Any

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson
from muster.errors import Interrupted, MusterError


def messages(command: Callable[..., None]) -> Callable[..., None]:
    """Adds ``--json`` to a command that prints sentences: {"messages": [one string a line]}, also before an error."""

    @functools.wraps(command)
    def with_json(*args: Any, json: bool = False, **options: Any) -> None:
        if not json:
            command(*args, **options)
            return
        lines, status = io.StringIO(), 0
        with contextlib.redirect_stdout(lines):
            try:
                command(*args, **options)
            except typer.Exit as end:
                status = end.exit_code
            except (MusterError, OSError, KeyboardInterrupt) as error:
                failed = Interrupted("interrupted") if isinstance(error, KeyboardInterrupt) else error
                for line in lines.getvalue().splitlines():
                    failed.add_note(line)  # what was done before it, which `main` prints with the error
                raise failed from None
        show.as_json({"messages": lines.getvalue().splitlines()})
        raise typer.Exit(status)

    # typer reads a command's options from its signature and annotations.
    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    with_json.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    with_json.__annotations__ = {**inspect.get_annotations(command, eval_str=True), "json": AsJson}
    return with_json
