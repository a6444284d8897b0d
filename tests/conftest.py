"""Services that tests need: one that is missing fails the session by name, unless ALLOW_MISSING names it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

SBIN = "/usr/sbin:/usr/local/sbin"


def _has_sshd() -> bool:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:{SBIN}") is not None


def _has_postgresql() -> bool:
    """Debian keeps initdb and postgres out of PATH, in a folder for each version."""
    debian = any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return debian or shutil.which("initdb") is not None


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


SERVICES: dict[str, tuple[str, Callable[[], bool], str]] = {
    "needs_sshd": ("openssh-server", _has_sshd, "apt-get install openssh-server"),
    "needs_postgresql": ("postgresql", _has_postgresql, "apt-get install postgresql"),
    "needs_redis": ("redis-server", lambda: shutil.which("redis-server") is not None, "apt-get install redis-server"),
    "needs_podman": ("podman", lambda: shutil.which("podman") is not None, "apt-get install podman runc"),
    "needs_torch": ("torch", _has_torch, "python -m muster.demo.pytorch --here"),
}
"""Marker: (package, whether it is there, how to get it)."""


def allowed_missing() -> frozenset[str]:
    """The packages that ALLOW_MISSING names. Raises UsageError on a word that is none of ours."""
    words = frozenset(word for word in os.environ.get("ALLOW_MISSING", "").replace(",", " ").split() if word)
    known = {package for package, _there, _how in SERVICES.values()}
    if words - known:
        raise pytest.UsageError(
            f"ALLOW_MISSING names {', '.join(sorted(words - known))}; only {', '.join(sorted(known))} may be missing"
        )
    return words


def pytest_configure() -> None:
    """No test sees the settings of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        del os.environ[name]


LEFT_OUT = pytest.StashKey[dict[str, int]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests whose service is missing by permission; fail the session if one is missing without."""
    allowed = allowed_missing()
    left_out: dict[str, int] = {}
    complaints = []
    kept = items
    for marker, (package, is_there, how) in SERVICES.items():
        needing = [item for item in items if item.get_closest_marker(marker)]
        if not needing or is_there():
            continue
        if package not in allowed:
            complaints.append(
                f"{len(needing)} tests need {package}, which is not installed: {how}, or ALLOW_MISSING={package}"
            )
            continue
        left_out[package] = len(needing)
        kept = [item for item in kept if item not in needing]
    if complaints:
        raise pytest.UsageError(*complaints)
    config.stash[LEFT_OUT] = left_out
    dropped = [item for item in items if item not in kept]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say loudly what was left out."""
    for package, count in config.stash.get(LEFT_OUT, {}).items():
        terminalreporter.section("NOT TESTED", red=True, bold=True)
        terminalreporter.write_line(f"{package} is missing (allowed by ALLOW_MISSING): {count} tests were left out")
