"""The command line, ``muster``. An error is one sentence on stderr and exit status 1, never a traceback.

With ``--json``, it is {"error": sentence, "kind": its class} on stdout too; so is one of usage, whose status is 2.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Entry point of ``muster``."""
    from typer.exceptions import TyperException

    from muster.cli.app import app
    from muster.errors import MusterError

    as_json = "--json" in sys.argv
    try:
        # Not standalone: usage errors come here, to be written as JSON.
        sys.exit(app(prog_name="muster", standalone_mode=not as_json) or 0)
    except TyperException as error:
        print(json.dumps({"error": error.format_message(), "kind": "Usage"}))  # noqa: T201
        print(f"muster: {error.format_message()}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except MusterError as error:
        if as_json:
            print(json.dumps({"error": str(error), "kind": type(error).__name__}))  # noqa: T201
        for sentence in str(error).splitlines():
            print(f"muster: {sentence}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has closed it.
        sys.stderr.close()
        sys.exit(0)
