"""What docs/examples/muster_slurm.sudoers allows: real sudo."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
from pathlib import Path

import pytest

from muster.admission.backends.slurm import backend as slurm
from tests.muster_node.agent.test_privilege import ROOT, USER, as_user

SCONTROL, SCANCEL = "/usr/bin/scontrol", "/usr/bin/scancel"
NODE = (SCONTROL, "update", "NodeName=n1")
ALLOWED = (
    (*NODE, "State=DRAIN", "Reason=muster: burn_in: gpu3 is slow (480 TFLOPS)", "Extra=muster: withdrawn 2026-11-25"),
    (*NODE, "State=UNDRAIN"),
    (*NODE, "State=RESUME"),
    (*NODE, "Extra=muster: PASS 2026-11-25 certificate 00ff", "AvailableFeatures=ib,muster"),
    (SCONTROL, "update", f"NodeName={slurm._NO_NODE}", "Extra=-"),
)
JOBS = ((SCANCEL, slurm.NO_JOB), (SCANCEL, "36_3"), (SCANCEL, "36+1"))
"""Allowed by the line for ``end_corrupted_jobs`` alone."""
REFUSED = (
    (SCONTROL, "update", "PartitionName=users", "State=DOWN"),
    (SCONTROL, "update", "JobId=4711", "Priority=1"),
    (*NODE, "State=DRAIN", "JobId=4711", "Priority=1"),
    (*NODE, "State=DRAIN", "Reason=muster: x", "JobId=4711"),
    (*NODE, "State=POWER_DOWN"),
    (SCONTROL, "update", "NodeName=n[1-100]", "State=DRAIN", "Reason=muster: all"),
    (SCONTROL, "update", "NodeName=n1,n2", "State=UNDRAIN"),
    (SCONTROL, "update", "NodeName=ALL", "State=DRAIN", "Reason=muster: all"),
    (SCONTROL, "update", "NodeName=all", "State=UNDRAIN"),
    (SCONTROL, "shutdown"),
    (SCANCEL,),
    (SCANCEL, "--user=ada"),
    (SCANCEL, "4711", "4712"),
    (SCANCEL, "36_[1-3]"),
)


@pytest.mark.needs_sudo
@pytest.mark.needs_slurm
@pytest.mark.parametrize("ends_jobs", [False, True])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user rights by sudo")
def test_the_file_allows_changes_of_single_nodes_and_nothing_else(tmp_path: Path, ends_jobs: bool) -> None:
    file = (ROOT / "docs" / "examples" / "muster_slurm.sudoers").read_text()
    grant = "# muster ALL=(root) NOPASSWD: MUSTER_SLURM_JOBS"
    assert grant in file
    file = file.replace(grant, grant[2:] if ends_jobs else "").replace("\nmuster ALL", f"\n{USER} ALL")
    rules = tmp_path / "all"
    rules.write_text(file)
    subprocess.run(["visudo", "-cf", str(rules)], check=True, capture_output=True)
    assert shutil.which("scontrol") == SCONTROL
    asked = [["sudo", "-n", "-l", *command] for command in (*ALLOWED, *JOBS, *REFUSED)]
    code = f"import subprocess\nprint([not subprocess.run(each, capture_output=True).returncode for each in {asked!r}])"
    printed = as_user(tmp_path / "sudoers", f"ALL=(root) PASSWD: /bin/false\n{file}", code)
    assert printed.strip() == str([True] * len(ALLOWED) + [ends_jobs] * len(JOBS) + [False] * len(REFUSED))


@pytest.mark.needs_sudo
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user rights by sudo")
def test_sudo_keeps_the_clusters_that_the_file_names_and_no_other(tmp_path: Path) -> None:
    """A program in the place of both commands prints it. A slurm.conf of the user's would load the user's plugins."""
    shown = tmp_path / "shown"
    shown.write_text('#!/bin/sh\necho "$SLURM_CONF"\n')
    shown.chmod(0o755)
    tmp_path.chmod(0o755)
    file = (ROOT / "docs" / "examples" / "muster_slurm.sudoers").read_text()
    line = '# Defaults!MUSTER_SLURM,MUSTER_SLURM_JOBS env_keep += "SLURM_CONF=/etc/slurm/beta.conf"'
    assert line in file
    file = file.replace("# muster ALL", "muster ALL").replace("\nmuster ALL", f"\n{USER} ALL")
    file = file.replace(SCONTROL, str(shown)).replace(SCANCEL, str(shown))
    code = f"""
import os, subprocess
for conf in ("/etc/slurm/beta.conf", "/tmp/mine.conf"):
    os.environ["SLURM_CONF"] = conf
    for kept in ((), ("--preserve-env=SLURM_CONF",)):
        for words in (("update", "NodeName=n1", "State=UNDRAIN"), ("1",)):
            done = subprocess.run(["sudo", "-n", *kept, "{shown}", *words], capture_output=True, text=True)
            print(done.stdout.strip() if done.returncode == 0 else "refused", end=" ")
"""

    def kept(rules: str) -> list[str]:
        return as_user(tmp_path / "sudoers", f"ALL=(root) PASSWD: /bin/false\n{rules}", code).split(" ")[:-1]

    dropped_or_refused = ["", "", "refused", "refused"]
    assert kept(file.replace(line, line[2:])) == ["/etc/slurm/beta.conf"] * 4 + dropped_or_refused
    assert kept(file) == dropped_or_refused * 2


@pytest.mark.needs_sudo
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user rights by sudo")
def test_a_command_under_sudo_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """Its process belongs to root: the controller's user may not kill it, and does not wait for it either."""
    tmp_path.chmod(0o755)
    slow, ended = tmp_path / "slow", tmp_path / "ended"
    slow.write_text(f"#!/bin/sh\nsleep 6\necho >{ended}\n")
    slow.chmod(0o755)
    code = f"""
import pathlib, sys
sys.path[:0] = {[str(ROOT / "plugins"), str(ROOT / "validators"), *site.getsitepackages()]!r}
from muster.admission.runner import Runner
from muster.errors import SchedulerDown
try:
    Runner(0.5).run("sudo", "-n", "{slow}")
except SchedulerDown as error:
    print("0.5 s" in str(error), pathlib.Path("{ended}").exists())
"""
    assert as_user(tmp_path / "sudoers", f"ALL=(root) NOPASSWD: {slow}", code).strip() == "True False"
