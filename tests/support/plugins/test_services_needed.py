"""A missing service is never a silent skip: the session fails and names it, or the summary lists what was left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.early(16)
ROOT = Path(__file__).parents[3]
CONFTEST = """
from tests.support.plugins import services_needed

pytest_plugins = ["tests.support.plugins.services_needed"]
services_needed.missing = lambda: frozenset({"openssh-server"})
"""
TESTS = """
import pytest

@pytest.mark.needs_sshd
def test_with_sshd():
    raise AssertionError("must not run")

def test_without():
    pass
"""


@pytest.fixture
def session(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    needs_sshd: x\n")

    outer = {name: value for name, value in os.environ.items() if "XDIST" not in name}

    def run(allow: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-p", "no:cacheprovider", *arguments, str(tmp_path)],
            # Importing the plugins that it does not need would take twice as long as the run.
            env={**outer, "ALLOW_MISSING": allow, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize(("allow", "processes"), [("postgresql", "0"), ("", "2")])
def test_a_missing_service_that_is_not_allowed_fails_the_session_by_name(session, allow, processes) -> None:
    ended = session(allow, "-n", processes)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "NOTHING WAS TESTED" in ended.stdout
    assert "1 tests need openssh-server, which is not installed: apt-get install openssh-server" in ended.stdout
    assert "passed" not in ended.stdout


@pytest.mark.parametrize(("allow", "processes"), [("openssh-server,postgresql", "0"), ("all", "2")])
def test_an_allowed_missing_service_is_left_out_and_summarised(session, allow, processes) -> None:
    ended = session(allow, "-n", processes)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout
    assert "NOT TESTED" in ended.stdout
    assert "openssh-server is missing: 1 tests were left out" in ended.stdout


def test_a_misspelt_package_is_refused(session) -> None:
    ended = session("opensh-server")
    assert ended.returncode != 0
    assert "ALLOW_MISSING names opensh-server" in ended.stderr


def test_a_service_that_no_chosen_test_needs_is_not_required(session) -> None:
    assert session("", "-k", "without").returncode == 0
