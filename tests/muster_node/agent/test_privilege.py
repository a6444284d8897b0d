"""As root the node side runs five commands that only read, and it does not wait for what it may not kill: real sudo."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster_node import privilege
from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
NODE_SIDE = ROOT / "validators" / "muster_node"
USER = "nobody"
AS_USER = f"""
set -e
mount --bind "$1" /etc/sudoers
exec setpriv --reuid={USER} --regid=nogroup --clear-groups --inh-caps=-all,+dac_read_search \
    --ambient-caps=-all,+dac_read_search {sys.executable} -c "$2"
"""
"""Only in a mount namespace of its own is ``$1`` the sudoers file. The capability lets the user read this checkout."""


def test_only_one_module_names_sudo() -> None:
    """So that every command that runs as root stands in ``privilege``."""
    naming = {
        str(path.relative_to(NODE_SIDE))
        for path in NODE_SIDE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value == "sudo"
    }
    assert naming == {"privilege.py"}


def test_each_command_only_reads() -> None:
    assert {command[0] for command in privilege.COMMANDS} == {"cat", "dmesg", "ipmitool"}
    assert privilege.smart_log("nvme0")[:2] == ("nvme", "smart-log")


def as_user(sudoers: Path, rule: str, code: str) -> str:
    """What the code prints when a user runs it whose rights by sudo are this one rule."""
    sudoers.write_text(f"{USER} {rule}\n")
    sudoers.chmod(0o440)
    command = ["unshare", "--mount", "bash", "-c", AS_USER, "bash", str(sudoers), code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "validators"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


LEFT = """
from muster_node import privilege, processes
def command_of(pid):
    try:
        return open(f"/proc/{pid}/cmdline").read()
    except OSError:  # another process of this machine, which ended meanwhile
        return ""
def left():
    return [pid for pid in processes.table() if command_of(pid).endswith(\"{command}\")]
"""


@pytest.mark.needs_sudo
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user rights by sudo")
def test_a_command_that_takes_too_long_is_ended_with_what_sudo_runs(tmp_path: Path) -> None:
    code = (
        LEFT.replace("{command}", "sleep\\0003600.25\\0")
        + """
print(privilege.output_within(privilege.as_root(("sleep", "3600.25")), 1.0), left())
"""
    )
    printed = as_user(tmp_path / "sudoers", "ALL=(root) NOPASSWD: /usr/bin/sleep 3600.25", code)
    assert printed.strip() == "None []"


@pytest.mark.needs_sudo
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user rights by sudo")
def test_what_ignores_that_is_ended_by_sudos_own_limit(tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn"
    stubborn.write_text("#!/bin/bash\ntrap '' TERM\nwhile :; do sleep 0.2; done\n")
    stubborn.chmod(0o755)
    code = (
        LEFT.replace("{command}", f"{stubborn}\\0")
        + f"""
print(privilege.output_within(privilege.as_root(("{stubborn}",)), 1.0))
for pid in left():
    privilege.end(pid)
print(*left())
"""
    )
    rule = f"ALL=(root) TIMEOUT=4 NOPASSWD: {stubborn}"
    ended, running = as_user(tmp_path / "sudoers", rule, code).splitlines()
    assert ended == "None"
    assert running, "nobody but sudo can end it"
    until(lambda: not any(Path("/proc", pid).exists() for pid in running.split()))


@pytest.mark.needs_sudo
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user rights by sudo")
def test_the_sudoers_file_grants_its_reads_and_nothing_else(tmp_path: Path) -> None:
    file = (ROOT / "docs" / "examples" / "muster.sudoers").read_text().replace("nodetest", USER)
    assert f"\n{USER} ALL=(root) TIMEOUT=90 NOPASSWD: MUSTER_READS\n" in file
    code = """
from muster_node import privilege
print([privilege.granted(command) for command in (*privilege.COMMANDS, ("kill", "1"), ("dmesg", "--clear"))])
"""
    rules = tmp_path / "all"
    rules.write_text(file)
    subprocess.run(["visudo", "-cf", str(rules)], check=True, capture_output=True)
    printed = as_user(tmp_path / "sudoers", f"ALL=(root) PASSWD: /bin/false\n{file}", code)
    installed = [Path("/usr/bin", command[0]).exists() for command in privilege.COMMANDS]
    assert printed.strip() == str([*installed, False, False])
