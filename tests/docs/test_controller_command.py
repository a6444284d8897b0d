"""docs/examples/controller_command.sh: real sudo, which keeps neither PATH nor environment."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.docs.quickstart import ROOT, replaced

FILE = ROOT / "docs" / "examples" / "controller_command.sh"
SHOWN = """#!/bin/sh
env -0 | base64 --wrap=0
echo
printf '%s\\0' "$(id -un)" "$0" "$@"
"""
COMPONENTS = """MUSTER_AIRFLOW_USERNAME=muster
MUSTER_AIRFLOW_PASSWORD=theirs
MUSTER_AUDIT_SINKS='{"disk": {"kind": "file", "path": "/var/log/my audit"}}'
"""

pytestmark = [
    pytest.mark.needs_sudo,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user without a password"),
]


@pytest.fixture
def opt() -> Iterator[Path]:
    """What stands for ``/``: the command, the environment of the components, and programs that show what they get."""
    with tempfile.TemporaryDirectory() as folder:
        opt = Path(folder)
        opt.chmod(0o755)
        (opt / "environment").write_text(COMPONENTS)
        text = replaced(
            FILE.read_text(),
            ('"$(id -un)" != airflow', '"$(id -un)" != nobody'),
            ("sudo -u airflow", "sudo -u nobody"),
            ("/etc/muster/environment", str(opt / "environment")),
            ("/opt/muster/venv/bin/", f"{opt}/venv/"),
        )
        (opt / "venv").mkdir()
        for path, content in (("muster", text), ("venv/muster", SHOWN), ("venv/airflow", SHOWN)):
            (opt / path).write_text(content)
            (opt / path).chmod(0o755)
        (opt / "airflow").symlink_to("muster")
        yield opt


def called(command: Path, *words: str, **own: str) -> tuple[Mapping[str, str], list[str]]:
    """What the program gets: its environment, and its user, name and arguments."""
    done = subprocess.run(
        [command, *words], env={"PATH": os.defpath, **own}, capture_output=True, text=True, check=True
    )
    environment, _, rest = done.stdout.partition("\n")
    decoded = subprocess.run(["base64", "-d"], input=environment, capture_output=True, text=True, check=True).stdout
    return dict(each.split("=", 1) for each in decoded.split("\0") if each), rest.split("\0")[:-1]


@pytest.mark.parametrize("name", ["muster", "airflow"])
def test_it_runs_as_the_components_user_in_their_environment(opt: Path, name: str) -> None:
    environment, got = called(opt / name, "node", "a word", "--flag=$HOME")
    assert got == ["nobody", f"{opt}/venv/{name}", "node", "a word", "--flag=$HOME"]
    assert json.loads(environment["MUSTER_AUDIT_SINKS"])["disk"]["path"] == "/var/log/my audit"
    assert (environment["MUSTER_PERSON"], environment["MUSTER_AIRFLOW_USERNAME"]) == ("root", "muster")


def test_who_acts_is_the_callers_own_and_stands_in_no_argument(opt: Path) -> None:
    secret = 'it\'s "a" $secret'
    own = {"MUSTER_PERSON": "ada", "MUSTER_AIRFLOW_USERNAME": "ada", "MUSTER_AIRFLOW_PASSWORD": secret}
    environment, _ = called(opt / "muster", "approve", **own, MUSTER_HOME="/tmp/mine")
    assert {**environment, **own} == environment
    assert "MUSTER_HOME" not in environment
    assert secret not in environment["SUDO_COMMAND"]
