"""The authenticated login under which the records are changed; each event has it next to the name a person gives.

A name may be typed (``--as``, MUSTER_PERSON); a login is what the operating system or Airflow has checked.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

_LOGIN: ContextVar[str] = ContextVar("login", default="")
_COMMAND = "os:"
_SESSION = Path("/proc/self/loginuid")
_NO_SESSION = 2**32 - 1


def current() -> str:
    """Returns the login: "os:NAME" on the command line, "airflow:NAME" for an answer in Airflow, "source:NAME" for one
    of an outside system, "" for a program of ours.
    """
    return _LOGIN.get()


@contextlib.contextmanager
def under(login: str) -> Iterator[None]:
    """Record what the block changes under this login."""
    token = _LOGIN.set(login)
    try:
        yield
    finally:
        _LOGIN.reset(token)


def by_command() -> bool:
    """Whether a person's command line changes the records."""
    return current().startswith(_COMMAND)


def os_login() -> str:
    """Returns the login of this process's user, or of the one who started it by sudo; for root, of the session.

    All are found by id, since anyone may set LOGNAME and USER. sudo always sets SUDO_UID itself; without sudo, the user
    of this process may set it, who can write the records by other means too.
    """
    caller = os.environ.get("SUDO_UID", "")
    uid = int(caller) if caller.isdecimal() else os.getuid()
    if uid == 0:
        uid = _session()
    try:
        return f"{_COMMAND}{pwd.getpwuid(uid).pw_name}"
    except KeyError:  # a container may run under an id without a name
        return f"{_COMMAND}{uid}"


def _session() -> int:
    """The id of the user who logged in, which sudo does not change; root's if unknown. Used for root alone: while it is
    not set, any process may set its own.
    """
    try:
        uid = int(_SESSION.read_text())
    except OSError:  # a kernel without audit
        return 0
    return 0 if uid == _NO_SESSION else uid


def airflow_login(name: str) -> str:
    """Returns the login of a user of Airflow; "" without a name."""
    return f"airflow:{name}" if name else ""


def source_login(name: str) -> str:
    """Returns the login of an entry of MUSTER_REPORT_SOURCES, which its token has proved."""
    return f"source:{name}"
