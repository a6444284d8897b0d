"""Rules for all tests: needed services, the end of a run, and the order of files."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Generator

import hypothesis
import pytest

from tests.support import airflow_home  # noqa: F401  # sets the environment before a test file imports Airflow

HANGS_S = 3000
"""After this, a slow test has hung, also on a slow machine; the limit of the others stands in pyproject.toml."""

pytest_plugins = [f"tests.support.plugins.{name}" for name in ("services_needed", "run_end", "secrets_forgotten")]


def pytest_configure() -> None:
    """Remove the user's own settings from the tests' environment, and time limits from Hypothesis's examples."""
    hypothesis.settings.register_profile(
        "muster", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("muster")
    for name in [name for name in os.environ if name.startswith("MUSTER_")]:
        del os.environ[name]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the test files without the garbage collector, which never again goes through what they made.

    Nothing that is imported is garbage, and looking for it took a fifth of the CPU time of collecting tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # As a test leaves little garbage, looking for it after each 700 objects took a fifteenth of the tests' CPU.
        gc.set_threshold(50_000, 20, 100)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order files by the number in their marker ``early``, so that no process starts a long file last.

    A slow test may take ``HANGS_S``, unless it names a limit of its own.
    """
    place = {item.path: math.inf for item in items}
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(HANGS_S))
        if marker := item.get_closest_marker("early"):
            place[item.path] = min(place[item.path], marker.args[0])
    items.sort(key=lambda item: place[item.path])
