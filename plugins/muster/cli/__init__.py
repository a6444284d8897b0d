"""The command line, ``muster``. An error is one sentence on stderr and exit status 1, never a traceback.

With ``--json``, it is {"error": sentence, "kind": its class} on stdout too; so is one of usage, whose status is 2.
"""

from __future__ import annotations

import json
import logging
import sys


def main() -> None:
    """Entry point of ``muster``."""
    from typer.exceptions import Abort, TyperException

    from muster.cli.app import root
    from muster.errors import MusterError

    # What it logs of a connection that broke is a traceback, and the error's sentence says it.
    paramiko = logging.getLogger("paramiko")
    paramiko.addHandler(logging.NullHandler())
    paramiko.propagate = False
    as_json = "--json" in sys.argv
    try:
        # Not standalone: errors of usage come here, to be written as our sentences.
        sys.exit(root()(prog_name="muster", standalone_mode=False) or 0)
    except TyperException as error:
        from muster.cli.terminal import usage

        sentence = usage.sentence(error, root(), sys.argv[1:])
        if as_json:
            print(json.dumps({"error": sentence, "kind": "Usage"}))  # noqa: T201
        print(f"muster: {sentence}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except Abort:
        print("muster: interrupted", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has closed it.
        sys.stderr.close()
        sys.exit(0)
    except (MusterError, OSError) as error:
        said = str(error)
        if isinstance(error, OSError):
            if error.filename is None:
                raise
            said = f"{error.filename} cannot be read or written: {error.strerror}"
        if as_json:
            print(json.dumps({"error": said, "kind": type(error).__name__}))  # noqa: T201
        for sentence in said.splitlines():
            print(f"muster: {sentence}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
