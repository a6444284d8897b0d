"""A pytest plugin: a service that tests need and that is missing fails the session by name.

``ALLOW_MISSING=openssh-server,postgresql`` leaves out the tests that need these; ``ALLOW_MISSING=all``, which
`make test` sets, leaves out the tests of whatever is missing. The summary then names each. ``services.sh`` lists the
services, how one sees that they are installed, and how to install them.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "services.sh"
KUBERNETES = Path(os.environ.get("MUSTER_TEST_KUBERNETES") or Path.home() / ".cache" / "muster-tests" / "kubernetes")
"""Where the script builds its servers."""
MARKERS = {
    "needs_sshd": "openssh-server",
    "needs_postgresql": "postgresql",
    "needs_redis": "redis-server",
    "needs_podman": "podman",
    "needs_slurm": "slurm-wlm",
    "needs_kubernetes": "kube-apiserver",
    "needs_prometheus": "prometheus",
    "needs_chromium": "chromium",
    "needs_sudo": "sudo",
    "needs_iproute2": "iproute2",
    "needs_faketime": "faketime",
    "needs_torch": "torch",
}
"""Marker: what the test needs."""
ALL = "all"


def _script(*words: str) -> list[str]:
    environment = {**os.environ, "MUSTER_TEST_KUBERNETES": str(KUBERNETES)}
    ran = subprocess.run(
        ["bash", str(SCRIPT), *words], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return ran.stdout.splitlines()


@functools.cache
def missing() -> frozenset[str]:
    """What tests need and this machine does not have."""
    torch = {"torch"} if importlib.util.find_spec("torch") is None else set()
    return frozenset(_script("missing")) | torch


def how_to_install(name: str) -> str:
    """The command that installs it."""
    return "python -m muster_demo.pytorch --here" if name == "torch" else _script("how", name)[0]


LEFT_OUT = pytest.StashKey[dict[str, int]]()
COMPLAINTS = pytest.StashKey[list[str]]()


def allowed_missing() -> frozenset[str]:
    """What ALLOW_MISSING names. Raises UsageError for a name that is not in MARKERS."""
    words = frozenset(word for word in os.environ.get("ALLOW_MISSING", "").replace(",", " ").split() if word)
    known = frozenset(MARKERS.values())
    if unknown := words - known - {ALL}:
        raise pytest.UsageError(
            f"ALLOW_MISSING names {', '.join(sorted(unknown))}; it may name {', '.join(sorted(known))}, or be {ALL}"
        )
    return known if ALL in words else words


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
    for marker, name in MARKERS.items():
        needing = [item for item in items if item.get_closest_marker(marker)]
        if not needing or name not in missing():
            continue
        if name not in allowed:
            how = how_to_install(name)
            complaints.append(
                f"{len(needing)} tests need {name}, which is not installed: {how}, or ALLOW_MISSING={name}"
            )
            continue
        left_out[name] = len(needing)
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
    if complaints := config.stash.get(COMPLAINTS, []):
        terminalreporter.section("NOTHING WAS TESTED", red=True, bold=True)
        for complaint in complaints:
            terminalreporter.write_line(complaint)
    if left_out := config.stash.get(LEFT_OUT, {}):
        terminalreporter.section("NOT TESTED", red=True, bold=True)
        for name, count in left_out.items():
            terminalreporter.write_line(f"{name} is missing: {count} tests were left out ({how_to_install(name)})")
