"""What docs/examples/muster-repair.sudoers allows: real sudo, with empty programs in place of the vendors' tools."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from muster.remote import repairing
from muster_criteria.repair.evidence import load
from muster_criteria.sku_files.skus import SHIPPED
from muster_node import privilege
from tests.muster_node.agent.test_privilege import ROOT, USER, as_user

FILE = (ROOT / "docs" / "examples" / "muster-repair.sudoers").read_text()
GRANT = "# nodetest ALL=(root) TIMEOUT=120 NOPASSWD: MUSTER_REPAIRS"
REPAIRS = (
    ("nvidia-smi", "--gpu-reset", "-i", "1650423000003"),
    ("nvidia-smi", "--gpu-reset", "-i", "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"),
    ("modprobe", "-r", *repairing.MODULES),
    ("modprobe", "nvidia"),
    ("systemctl", "reboot"),
)
REFUSED = (
    ("nvidia-smi", "--gpu-reset", "-i", "0"),
    ("nvidia-smi", "--gpu-reset", "-i", "1650423000003", "-i", "1650423000004"),
    ("nvidia-smi", "--gpu-reset"),
    ("nvidia-smi", "-pm", "0"),
    ("modprobe", "mine"),
    ("systemctl", "reboot", "--force"),
    ("systemctl", "stop", "slurmd"),
    ("cat", "/etc/shadow"),
    ("nvidia-bug-report.sh", "--output-file", "/etc/passwd"),
)


def test_a_refusal_by_sudo_is_recognised_whatever_the_nodes_locale(tmp_path: Path) -> None:
    sudo = '[ "$LC_ALL" = C ] && echo "sudo: a password is required" || echo "sudo: Ein Passwort ist notwendig"; exit 1'
    for name, text in (("id", "echo 1000"), ("sudo", sudo)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.UTF-8"}
    command = ["sh", "-c", repairing.AS_ROOT, "muster", "systemctl", "reboot"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout
    assert repairing.REFUSED.search(said)


@pytest.mark.needs_sudo
@pytest.mark.parametrize("repairs", [False, True])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user rights by sudo")
def test_the_file_grants_its_evidence_and_no_repair_until_its_last_line_does(tmp_path: Path, repairs: bool) -> None:
    steps = [step for profile in load([SHIPPED]) for step in profile.steps if step.root]
    listed = re.findall(r"/usr/s?bin/([\w.-]+)", FILE)
    evidence = [("cat", step.file) if step.file else tuple(step.command) for step in steps]
    ours = [each for each in evidence if each not in privilege.COMMANDS]
    assert FILE.rstrip().endswith(GRANT)
    rules = FILE.replace(GRANT, GRANT[2:] if repairs else "").replace("nodetest", USER)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in {*listed}:
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
        rules = re.sub(rf"/usr/s?bin/{re.escape(name)}(?= )", str(tools / name), rules)
    (tmp_path / "rules").write_text(rules)
    subprocess.run(["visudo", "-cf", str(tmp_path / "rules")], check=True, capture_output=True)
    asked = [["sudo", "-n", "-l", str(tools / name), *args] for name, *args in (*ours, *REPAIRS, *REFUSED)]
    code = f"import subprocess\nprint([not subprocess.run(each, capture_output=True).returncode for each in {asked!r}])"
    printed = as_user(tmp_path / "sudoers", f"ALL=(root) PASSWD: /bin/false\n{rules}", code)
    assert printed.strip() == str([True] * len(ours) + [repairs] * len(REPAIRS) + [False] * len(REFUSED))
    assert len(ours) >= 8
