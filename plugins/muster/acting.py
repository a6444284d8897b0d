"""Under which authenticated login the records are changed; each event has it with the name that a person gives.

A name may be typed (``--as``, MUSTER_PERSON); a login is what the operating system or Airflow has checked.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Iterator
from contextvars import ContextVar

_LOGIN: ContextVar[str] = ContextVar("login", default="")
_COMMAND = "os:"


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
    """Returns the login of this process's user, by its id: LOGNAME and USER are texts that anyone may set."""
    uid = os.getuid()
    try:
        return f"{_COMMAND}{pwd.getpwuid(uid).pw_name}"
    except KeyError:  # a container may run under an id without a name
        return f"{_COMMAND}{uid}"


def airflow_login(name: str) -> str:
    """Returns the login of a user of Airflow; "" without a name."""
    return f"airflow:{name}" if name else ""


def source_login(name: str) -> str:
    """Returns the login of an entry of MUSTER_REPORT_SOURCES, which its token has proved."""
    return f"source:{name}"
