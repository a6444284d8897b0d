"""The command line, ``muster``. An error is one sentence on stderr and exit status 1, never a traceback.

With ``--json``, it is {"error": sentence} on stdout too.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Entry point of ``muster``."""
    from muster.cli.app import app
    from muster.errors import MusterError

    try:
        app(prog_name="muster")
    except MusterError as error:
        if "--json" in sys.argv:
            print(json.dumps({"error": str(error)}))  # noqa: T201
        for sentence in str(error).splitlines():
            print(f"muster: {sentence}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has closed it.
        sys.stderr.close()
        sys.exit(0)
