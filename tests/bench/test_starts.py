"""Every bench starts: its modules load in an interpreter of their own, in the order in which the command loads them."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import tests.bench

NAMES = sorted(each.name for each in pkgutil.iter_modules(tests.bench.__path__) if not each.name.startswith("test_"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_bench_loads(name: str) -> None:
    subprocess.run([sys.executable, "-c", f"import tests.bench.{name}"], check=True)
