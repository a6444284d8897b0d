"""docs/examples/controller_command.sh: real sudo, by the rules of docs/deploying.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from muster import acting
from tests.docs.quickstart import ROOT, replaced
from tests.muster_node.agent.test_privilege import USER, as_user

FILE = ROOT / "docs" / "examples" / "controller_command.sh"
RULES = re.search(r"^Defaults!/usr/local/bin/muster .*\nada .*\n", (ROOT / "docs" / "deploying.md").read_text(), re.M)
COMPONENTS_USER = "daemon"
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
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user rights by sudo"),
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
            ('"$(id -un)" != airflow', f'"$(id -un)" != {COMPONENTS_USER}'),
            ("sudo -u airflow", f"sudo -n -u {COMPONENTS_USER}"),
            ("/etc/muster/environment", str(opt / "environment")),
            ("/opt/muster/venv/bin/", f"{opt}/venv/"),
        )
        (opt / "venv").mkdir()
        for path, content in (("muster", text), ("venv/muster", SHOWN), ("venv/airflow", SHOWN)):
            (opt / path).write_text(content)
            (opt / path).chmod(0o755)
        (opt / "airflow").symlink_to("muster")
        yield opt


def by_operator(command: Path, code: str) -> str:
    """What the code prints for one who has the right to ``command`` that deploying.md gives to ``muster``."""
    assert RULES is not None
    rules = replaced(RULES[0], ("\nada ALL=(airflow) ", f"\n{USER} ALL=({COMPONENTS_USER}) NOPASSWD: "))
    rules = rules.replace("/usr/local/bin/muster", str(command))
    return as_user(command.parent / "sudoers", f"ALL=(root) PASSWD: /bin/false\n{rules}", code)


def called(command: Path, *words: str, **own: str) -> tuple[Mapping[str, str], list[str]]:
    """What the program gets from an operator: its environment, and its user, name and arguments."""
    environ = {"PATH": os.defpath, **own}
    code = f"import subprocess\nprint(subprocess.check_output({[str(command), *words]!r}, env={environ!r}, text=True))"
    environment, _, rest = by_operator(command, code).partition("\n")
    decoded = subprocess.run(["base64", "-d"], input=environment, capture_output=True, text=True, check=True).stdout
    return dict(each.split("=", 1) for each in decoded.split("\0") if each), rest.split("\0")[:-1]


@pytest.mark.parametrize("name", ["muster", "airflow"])
def test_it_runs_as_the_components_user_in_their_environment(opt: Path, name: str) -> None:
    environment, got = called(opt / name, "node", "a word", "--flag=$HOME")
    assert got == [COMPONENTS_USER, f"{opt}/venv/{name}", "node", "a word", "--flag=$HOME"]
    assert json.loads(environment["MUSTER_AUDIT_SINKS"])["disk"]["path"] == "/var/log/my audit"
    assert (environment["MUSTER_PERSON"], environment["MUSTER_AIRFLOW_USERNAME"]) == (USER, "muster")


def test_who_acts_is_the_callers_own_and_stands_in_no_argument(opt: Path) -> None:
    secret = 'it\'s "a" $secret'
    own = {"MUSTER_PERSON": "ada", "MUSTER_AIRFLOW_USERNAME": "ada", "MUSTER_AIRFLOW_PASSWORD": secret}
    environment, _ = called(opt / "muster", "approve", **own, MUSTER_HOME="/tmp/mine")
    assert {**environment, **own} == environment
    assert "MUSTER_HOME" not in environment
    assert secret not in environment["SUDO_COMMAND"]


def test_the_login_is_the_callers_whatever_they_set(opt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, (user, *_) = called(opt / "muster", SUDO_UID="0", SUDO_USER="root", MUSTER_PERSON="root")
    monkeypatch.setattr(os, "environ", environment)
    assert (user, acting.os_login()) == (COMPONENTS_USER, f"os:{USER}")


def test_no_other_variable_reaches_the_components_user(opt: Path) -> None:
    """As PYTHONPATH it would be code as that user."""
    code = f"""
import os, subprocess
os.environ["PYTHONPATH"] = os.environ["MUSTER_PERSON"] = "/tmp/mine"
for kept in ((), ("--preserve-env=PYTHONPATH",)):
    words = ["sudo", "-n", "-u", "{COMPONENTS_USER}", *kept, "{opt}/muster"]
    print(subprocess.run(words, capture_output=True).returncode, end=" ")
"""
    assert by_operator(opt / "muster", code) == "0 1 "
