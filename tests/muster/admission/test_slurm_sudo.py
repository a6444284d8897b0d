"""What docs/examples/muster_slurm.sudoers allows: real sudo."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from muster.admission.backends import slurm
from tests.muster_node.agent.test_privilege import ROOT, USER, as_user

SCONTROL, SCANCEL = "/usr/bin/scontrol", "/usr/bin/scancel"
NODE = (SCONTROL, "update", "NodeName=n1")
ALLOWED = (
    (*NODE, "State=DRAIN", "Reason=muster: burn_in: gpu3 is slow (480 TFLOPS)", "Extra=muster: withdrawn 2026-11-25"),
    (*NODE, "State=UNDRAIN"),
    (*NODE, "Extra=muster: PASS 2026-11-25 certificate 00ff", "AvailableFeatures=ib,muster"),
    (SCONTROL, "update", f"NodeName={slurm._NO_NODE}", "Extra=-"),
    (SCANCEL, "4711"),
)
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
    (SCANCEL, "--user=ada"),
    (SCANCEL, "4711", "4712"),
)


@pytest.mark.needs_sudo
@pytest.mark.needs_slurm
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user rights by sudo")
def test_the_file_allows_changes_of_single_nodes_and_nothing_else(tmp_path: Path) -> None:
    file = (ROOT / "docs" / "examples" / "muster_slurm.sudoers").read_text().replace("\nmuster ALL", f"\n{USER} ALL")
    rules = tmp_path / "all"
    rules.write_text(file)
    subprocess.run(["visudo", "-cf", str(rules)], check=True, capture_output=True)
    assert shutil.which("scontrol") == SCONTROL
    asked = [["sudo", "-n", "-l", *command] for command in (*ALLOWED, *REFUSED)]
    code = f"import subprocess\nprint([not subprocess.run(each, capture_output=True).returncode for each in {asked!r}])"
    printed = as_user(tmp_path / "sudoers", f"ALL=(root) PASSWD: /bin/false\n{file}", code)
    assert printed.strip() == str([True] * len(ALLOWED) + [False] * len(REFUSED))
