"""Which tests run, and in which order.

A service that tests need and that is missing fails the session by name, unless ALLOW_MISSING names it. The files that
take minutes come first, so that no process is left with one of them while the others have nothing to do any more.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    "needs_torch": ("torch", _has_torch, "python -m muster_demo.pytorch --here"),
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
    """No test sees the settings of whoever runs it; a misspelt permission is refused before anything runs."""
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        del os.environ[name]
    allowed_missing()


LEFT_OUT = pytest.StashKey[dict[str, int]]()
COMPLAINTS = pytest.StashKey[list[str]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Early files first. Leave out tests whose service is missing by permission; run none if one is without."""
    _early_files_first(items)
    allowed = allowed_missing()
    left_out: dict[str, int] = {}
    complaints = []
    dropped: list[pytest.Item] = []
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
        dropped += [item for item in needing if item not in dropped]
    config.stash[LEFT_OUT], config.stash[COMPLAINTS] = left_out, complaints
    if complaints:
        dropped = list(items)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


def _early_files_first(items: list[pytest.Item]) -> None:
    """Order files by what their marker ``early`` says, and keep the order of all else."""
    place = {item.path: math.inf for item in items}
    for item in items:
        if marker := item.get_closest_marker("early"):
            place[item.path] = min(place[item.path], marker.args[0])
    items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Where tests run in several processes (pytest-xdist), each of them has looked; the one that reports has not."""
    told = getattr(node, "workeroutput", {})
    node.config.stash[LEFT_OUT] = told.get("left_out", {})
    node.config.stash[COMPLAINTS] = told.get("complaints", [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A service that is missing without permission fails the session."""
    left_out, complaints = session.config.stash.get(LEFT_OUT, {}), session.config.stash.get(COMPLAINTS, [])
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output.update(left_out=left_out, complaints=complaints)
    elif complaints:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say loudly what was left out, and what must be there."""
    for complaint in config.stash.get(COMPLAINTS, []):
        terminalreporter.section("NOTHING WAS TESTED", red=True, bold=True)
        terminalreporter.write_line(complaint)
    for package, count in config.stash.get(LEFT_OUT, {}).items():
        terminalreporter.section("NOT TESTED", red=True, bold=True)
        terminalreporter.write_line(f"{package} is missing (allowed by ALLOW_MISSING): {count} tests were left out")
