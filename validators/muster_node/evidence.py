"""One piece of evidence: the output of one command, or one file, bounded in time and size, on standard output.

The last line of standard error is one JSON object: ``status`` (the command's exit status, null if it has none), ``why``
(one sentence if the piece is missing or not whole, else ""). What a command wrote before it hung is kept. Standard
library only; nothing is written on the node, whose disk may be the fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import BinaryIO

from muster_node import privilege

CHUNK = 64 * 1024


def main(command: Sequence[str], limit_s: float, bytes_max: int, *, root: bool = False, file: bool = False) -> int:
    """Print the output of ``command``, or the file that it names. ``root``: through sudo, where sudoers allows it."""
    words = list(command)
    if file:
        words = ["cat", words[0]]
    if root and os.geteuid() != 0 and privilege.granted(words):
        words = list(privilege.as_root(words))
    elif file and (why := _unfit(words[1])):
        return _end(None, why)
    status, why = _run(words, limit_s, bytes_max, sys.stdout.buffer)
    return _end(status, why)


def _unfit(path: str) -> str:
    """Why a path is not read: a device or a pipe would never end."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return f"{path}: {error.strerror}"
    return "" if stat.S_ISREG(mode) else f"{path} is not a plain file"


def _run(words: Sequence[str], limit_s: float, bytes_max: int, out: BinaryIO) -> tuple[int | None, str]:
    if shutil.which(words[0]) is None:
        return None, f"{words[0]} is not installed, or not for this user"
    try:
        process = subprocess.Popen(
            list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, env={**os.environ, "LC_ALL": "C"},
        )  # fmt: skip
    except OSError as error:
        return None, f"{words[0]} cannot be started: {error.strerror}"
    assert process.stdout is not None
    deadline, left = time.monotonic() + limit_s, bytes_max
    os.set_blocking(process.stdout.fileno(), False)
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while left > 0:
            wait = deadline - time.monotonic()
            if wait <= 0 or not ready.select(wait):
                _kill(process)
                return None, f"it did not end within {limit_s:g} s; what it had written until then is kept"
            chunk = process.stdout.read(min(CHUNK, left))
            if not chunk:
                break
            out.write(chunk)
            left -= len(chunk)
    if left <= 0:
        _kill(process)
        return None, f"it is longer than {bytes_max} bytes; its beginning is kept"
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(deadline - time.monotonic(), 0.0))
    if process.returncode is None:
        _kill(process)
        return None, f"it closed its output and did not end within {limit_s:g} s"
    return process.returncode, f"it ended with status {process.returncode}" if process.returncode else ""


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a command with its children, as far as this user may; one that hangs in the driver is left to the kernel."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(privilege.END_WAIT_S)
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    privilege.end(process.pid)


def _end(status: int | None, why: str) -> int:
    with contextlib.suppress(OSError):
        sys.stdout.buffer.flush()
    sys.stderr.write("\n" + json.dumps({"status": status, "why": why}) + "\n")
    sys.stderr.flush()
    return 0
