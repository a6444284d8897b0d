"""Set-up for the tests: what is missing is left out and named by `make test`, and refused by .ci/run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.plugins.services_needed import MARKERS, SCRIPT

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.early(16)
HIDDEN = {"apt-get", "podman", "redis-server", "promtool", "chromium"}


@pytest.fixture
def bare(tmp_path):
    """The environment of a user without these services and without Debian's installer."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            place = commands / program.name
            if program.name not in HIDDEN and not place.is_symlink():
                place.symlink_to(program)
    kept = {name: value for name, value in os.environ.items() if "XDIST" not in name and not name.startswith("PYTEST")}
    kept.pop("ALLOW_MISSING", None)
    return {**kept, "PATH": str(commands)}


def run(bare, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=bare, capture_output=True, text=True, check=False, timeout=240)


def test_the_script_knows_the_service_of_each_marker() -> None:
    known = subprocess.run(["bash", str(SCRIPT), "names"], capture_output=True, text=True, check=True).stdout.split()
    assert set(known) == set(MARKERS.values()) - {"torch"}


def test_what_is_not_on_the_machine_is_missing(bare) -> None:
    assert {"redis-server", "prometheus", "chromium", "podman"} <= set(
        run(bare, "bash", str(SCRIPT), "missing").stdout.split()
    )


def test_where_it_cannot_install_it_says_what_is_missing_and_succeeds(bare) -> None:
    ended = run(bare, "bash", str(SCRIPT), "install")
    assert ended.returncode == 0
    assert "podman runc" in ended.stdout


def test_ci_goes_without_nothing(bare) -> None:
    ended = run(bare, "bash", ".ci/run")
    assert ended.returncode == 1
    assert "prometheus: apt-get install prometheus" in ended.stderr
    assert "ruff" not in ended.stdout


@pytest.mark.skipif(not Path(sys.prefix, ".test-torch").exists(), reason="this environment is not one that make made")
def test_make_test_leaves_out_what_is_missing_and_ends_green(bare) -> None:
    ended = run(
        bare, "make", "test", "PROCESSES=0", "ARGS=tests/deploy/test_alerts.py tests/deploy/test_helm_values.py"
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "prometheus is missing:" in ended.stdout
    assert " passed" in ended.stdout
