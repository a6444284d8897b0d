"""A pytest plugin: a service that tests need and that is missing fails the session by name.

``ALLOW_MISSING=openssh-server,postgresql`` leaves out the tests that need these packages; the summary then lists them.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster_demo import slurm
from tests.support.servers import kubernetes_server

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
    "needs_slurm": ("slurm-wlm", lambda: not slurm.missing(Path("/tmp")), "apt-get install slurm-wlm munge"),
    "needs_kubernetes": (
        "kube-apiserver",
        lambda: not kubernetes_server.missing(),
        f"tests/support/servers/kubernetes_server.sh {kubernetes_server.FOLDER}",
    ),
    "needs_prometheus": ("prometheus", lambda: shutil.which("promtool") is not None, "apt-get install prometheus"),
    "needs_chromium": ("chromium", lambda: shutil.which("chromium") is not None, "apt-get install chromium"),
    "needs_torch": ("torch", _has_torch, "python -m muster_demo.pytorch --here"),
}
"""Marker: (package, whether it is installed, how to install it)."""

LEFT_OUT = pytest.StashKey[dict[str, int]]()
COMPLAINTS = pytest.StashKey[list[str]]()


def allowed_missing() -> frozenset[str]:
    """The packages that ALLOW_MISSING names. Raises UsageError for a name that is not in SERVICES."""
    words = frozenset(word for word in os.environ.get("ALLOW_MISSING", "").replace(",", " ").split() if word)
    known = {package for package, _is_installed, _how in SERVICES.values()}
    if words - known:
        raise pytest.UsageError(
            f"ALLOW_MISSING names {', '.join(sorted(words - known))}; only {', '.join(sorted(known))} may be missing"
        )
    return words


def pytest_configure() -> None:
    """Refuse a misspelt permission before anything runs."""
    allowed_missing()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests whose service may be missing; run none if a service is missing without permission."""
    allowed = allowed_missing()
    left_out: dict[str, int] = {}
    complaints = []
    dropped: list[pytest.Item] = []
    for marker, (package, is_installed, how) in SERVICES.items():
        needing = [item for item in items if item.get_closest_marker(marker)]
        if not needing or is_installed():
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


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a process of pytest-xdist found; the reporting process collects no tests itself."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[LEFT_OUT] = output.get("left_out", {})
    node.config.stash[COMPLAINTS] = output.get("complaints", [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session if a service is missing without permission."""
    left_out, complaints = session.config.stash.get(LEFT_OUT, {}), session.config.stash.get(COMPLAINTS, [])
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output.update(left_out=left_out, complaints=complaints)
    elif complaints:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List what was left out and what is missing."""
    for complaint in config.stash.get(COMPLAINTS, []):
        terminalreporter.section("NOTHING WAS TESTED", red=True, bold=True)
        terminalreporter.write_line(complaint)
    for package, count in config.stash.get(LEFT_OUT, {}).items():
        terminalreporter.section("NOT TESTED", red=True, bold=True)
        terminalreporter.write_line(f"{package} is missing (allowed by ALLOW_MISSING): {count} tests were left out")
