"""The command line, ``muster``. An error is one sentence on stderr and exit status 1, never a traceback.

With ``--json``, it is {"error": sentence, "kind": its class} on stdout too, with the "messages" of what the command did
before, if any; so is one of usage, whose status is 2, and an interruption, whose status is 130.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import sys
from typing import Any

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""errno values which, in an error without a file name, mean that the output cannot be written."""


def main() -> None:
    """Entry point of ``muster``."""
    from typer.exceptions import Abort, TyperException

    from muster.cli.app import root
    from muster.cli.terminal import pipes
    from muster.errors import INTERRUPTED, Interrupted, MusterError
    from muster_criteria.text import refusal

    pipes.outlive_readers()
    # It logs a traceback for a broken connection, which the error's own sentence reports already.
    paramiko = logging.getLogger("paramiko")
    paramiko.addHandler(logging.NullHandler())
    paramiko.propagate = False
    as_json = "--json" in sys.argv
    try:
        _check_text(sys.argv)
        status = root()(prog_name="muster", standalone_mode=False) or 0
        if status == INTERRUPTED:
            raise Interrupted("interrupted")
        sys.exit(status)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else _command(sys.argv[1:])
        error.message = refusal(error.message)
        sentence = f"{' '.join(error.format_message().split()).rstrip('.')}; see `{command} --help`"
        if as_json:
            print(json.dumps({"error": sentence, "kind": "Usage"}))  # noqa: T201
        print(f"muster: {sentence}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except Abort:
        print("muster: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except (MusterError, OSError) as error:
        said = str(error)
        if isinstance(error, OSError):
            if error.filename is None and error.errno not in _NO_ROOM:
                raise
            from muster import ownership

            said = f"{error.filename} cannot be read or written by the user {ownership.me()}: {error.strerror}"
            if error.filename is None:
                said = f"the output cannot be written: {error.strerror}"
                _give_up_output()
        if as_json:
            done = {"messages": error.__notes__} if hasattr(error, "__notes__") else {}
            print(json.dumps({"error": said, "kind": type(error).__name__, **done}))  # noqa: T201
        for sentence in said.splitlines():
            print(f"muster: {sentence}", file=sys.stderr)  # noqa: T201
        sys.exit(INTERRUPTED if isinstance(error, Interrupted) else 1)


def _command(words: list[str]) -> str:
    """Returns the command that the words name, since some usage errors do not say to which they belong."""
    from muster.cli.app import root

    command: Any = root()
    path = ["muster"]
    for word in words:
        if word in getattr(command, "commands", ()):
            command = command.commands[word]
            path.append(word)
    return " ".join(path)


def _check_text(words: list[str]) -> None:
    """Raise MusterError for an argument that is no text: no record and no message could hold it."""
    from muster.errors import MusterError

    for place, word in enumerate(words[1:], start=1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise MusterError(f"argument {place} is not UTF-8: write it in this encoding") from None


def _give_up_output() -> None:
    """Send standard output to /dev/null, since Python would try to write it once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
