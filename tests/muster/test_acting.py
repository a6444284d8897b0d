"""Under which login a command changes the records."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from muster import acting

ROOT, ADA, COMPONENTS, NAMELESS = 0, 1, 2, 4_000_000
NO_SESSION = 2**32 - 1


@pytest.mark.parametrize(
    ("user", "sudo", "session", "expected"),
    [
        (ADA, None, NO_SESSION, ADA),
        (COMPONENTS, None, ADA, COMPONENTS),
        (COMPONENTS, ADA, NO_SESSION, ADA),
        (COMPONENTS, ADA, COMPONENTS, ADA),
        (COMPONENTS, ROOT, ADA, ADA),
        (COMPONENTS, ROOT, NO_SESSION, ROOT),
        (COMPONENTS, ROOT, None, ROOT),
        (ROOT, ADA, NO_SESSION, ADA),
        (ROOT, None, ADA, ADA),
        (ROOT, None, NO_SESSION, ROOT),
        (NAMELESS, None, NO_SESSION, NAMELESS),
    ],
)
def test_the_login_is_the_one_behind_sudo(
    user: int, sudo: int | None, session: int | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose session is not set may set it: it counts for root alone."""
    for name in ("LOGNAME", "USER", "SUDO_USER"):
        monkeypatch.setenv(name, "mallory")
    monkeypatch.delenv("SUDO_UID", raising=False)
    if sudo is not None:
        monkeypatch.setenv("SUDO_UID", str(sudo))
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(acting, "_SESSION", tmp_path / "loginuid")
    if session is not None:
        (tmp_path / "loginuid").write_text(str(session))
    name = str(expected) if expected == NAMELESS else pwd.getpwuid(expected).pw_name
    assert acting.os_login() == f"os:{name}"
