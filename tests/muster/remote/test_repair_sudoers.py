"""What docs/examples/muster-repair.sudoers allows, and what sudo refuses: stand-ins for vendors' tools."""

from __future__ import annotations

import ast
import datetime
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.model.nodes import Node
from muster.model.repairs import Fault, Outcome
from muster.model.states import State
from muster.remote import repairing
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.remote.repairing import Done
from muster_criteria.repair.evidence import load
from muster_criteria.repair.ladder import Rung
from muster_criteria.sku_files.skus import SHIPPED
from muster_node import privilege
from tests.muster_node.agent.test_privilege import ROOT, USER, as_user
from tests.support.servers import sshd

FILE = (ROOT / "docs" / "examples" / "muster-repair.sudoers").read_text()
GRANT = "# nodetest ALL=(root) TIMEOUT=120 NOPASSWD: MUSTER_REPAIRS"
REPAIRS = (
    ("nvidia-smi", "--gpu-reset", "-i", "1650423000003"),
    ("nvidia-smi", "--gpu-reset", "-i", "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"),
    ("systemctl", "reboot"),
)
REFUSED = (
    ("nvidia-smi", "--gpu-reset", "-i", "0"),
    ("nvidia-smi", "--gpu-reset", "-i", "1650423000003", "-i", "1650423000004"),
    ("nvidia-smi", "--gpu-reset"),
    ("nvidia-smi", "-pm", "0"),
    ("modprobe", "nvidia"),
    ("systemctl", "reboot", "--force"),
    ("systemctl", "stop", "slurmd"),
    ("cat", "/etc/shadow"),
    ("nvidia-bug-report.sh", "--output-file", "/etc/passwd"),
)


SENTENCES = (
    # sudo 1.9: plugins/sudoers/sudoers.c, auth/sudo_auth.c, auth/pam.c, logging.c; src/sudo.c
    "sudo: sorry, you must have a tty to run sudo",
    "sudo: a password is required",
    "sudo: Ein Passwort ist notwendig",
    "sudo: account validation failure, is your account locked?",
    "Sorry, user nodetest is not allowed to execute '/usr/bin/systemctl reboot' as root on n1.",
    "nodetest is not in the sudoers file.",
    'sudo: The "no new privileges" flag is set, which prevents sudo from running as root.',
    # sudo-rs: src/common/error.rs, src/pam/error.rs
    "sudo-rs: interactive authentication is required",
    "sudo: I'm sorry nodetest. I'm afraid I can't do that",
    "sudo-rs: Account validation failure, is your account locked?",
    "",
)
PASSWORD = tuple(each for each in SENTENCES if "Passwor" in each or "password is" in each or "interactive" in each)


@pytest.fixture
def node_without_rights(tmp_path: Path) -> Iterator[tuple[sshd.Sshd, Path]]:
    """A node whose user is not root, and the file whose first line its sudo says, whether it lists or runs."""
    said, tools = tmp_path / "said", tmp_path / "tools"
    tools.mkdir()
    sudo = f'[ "$2" != -l ] || [ ! -e {tmp_path}/lists ] || exit 0; cat {said} >&2; exit 1'
    for name, text in (("id", "echo 1000"), ("sudo", sudo)):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    with sshd.running(tmp_path / "node", {"PATH": f"{tools}:/usr/bin:/bin"}) as server:
        yield server, said


@pytest.mark.needs_sshd
@pytest.mark.parametrize("lists", [False, True], ids=["does not list it", "lists it"])
@pytest.mark.parametrize("rung", [Rung.RESET_GPU, Rung.REBOOT])
def test_what_sudo_refuses_costs_no_attempt_whatever_it_says(
    node_without_rights: tuple[sshd.Sshd, Path], rung: Rung, lists: bool
) -> None:
    server, said = node_without_rights
    there, who = server.node(), Credentials(key_file=str(server.key_file))
    node = Node(
        there.name, there.host, there.port, there.user or "", " ".join(there.host_key.split()[:2]), "h100-sxm-8",
        State.QUARANTINE, {}, there.work_dir, "", "", {}, simulated=False, added_at=datetime.datetime.now(datetime.UTC),
    )  # fmt: skip
    if lists:
        said.with_name("lists").touch()
    outcomes = {}
    for sentence in PASSWORD if lists else SENTENCES:
        said.write_text(f"{sentence}\n")
        fault = Fault("gpu_memory", "gpu3", "gpu 1650423000003")
        done = repairing.carry_out(rung, node, fault, lambda each: ssh.connect(each, who))
        outcomes[sentence] = done.outcome if isinstance(done, Done) else done
    assert outcomes == dict.fromkeys(outcomes, Outcome.TRANSIENT)
    assert len(outcomes) >= 3


@pytest.mark.parametrize(
    "sentence", ["sudo: a password is required", "sudo-rs: interactive authentication is required"]
)
def test_a_listing_that_wants_a_password_refuses_no_command_that_needs_none(tmp_path: Path, sentence: str) -> None:
    """As with ``Defaults listpw=always``."""
    sudo = f'[ "$2" != -l ] || {{ echo "{sentence}" >&2; exit 1; }}; shift; exec "$@"'
    for name, text in (("id", "echo 1000"), ("sudo", sudo)):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    asked = ["sh", "-c", repairing.AS_ROOT, "muster", "echo", "ran"]
    done = subprocess.run(asked, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"ran\n")


@pytest.mark.needs_sudo
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give another user rights by sudo")
@pytest.mark.parametrize(
    ("rule", "begun"),
    [
        ("ALL=(root) NOPASSWD: /usr/bin/false\nDefaults listpw=always", True),
        ("ALL=(root) NOPASSWD: /usr/bin/false", True),
        ("ALL=(root) PASSWD: ALL\ndaemon ALL=(root) NOPASSWD: /usr/bin/true", False),
        ("ALL=(root) NOPASSWD: /usr/bin/false\nDefaults requiretty", False),
        ("ALL=(root) NOPASSWD: /usr/bin/true", False),
    ],
)
def test_sudos_own_refusals_are_recognised(tmp_path: Path, rule: str, begun: bool) -> None:
    code = f"""import subprocess
done = subprocess.run(["setsid", "-w", "sh", "-c", {repairing.AS_ROOT!r}, "muster", "false"], capture_output=True)
print((done.returncode, done.stdout, done.stderr))"""
    answer = ssh.Completed(*ast.literal_eval(as_user(tmp_path / "sudoers", rule, code)))
    assert repairing._not_begun(answer) is not begun


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
