"""docs/quickstart.md works as written: its commands, run in order by bash, lead to a verdict on a host."""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster_demo.services import Supervisor, free_port
from tests.support import orphans, sshd

pytestmark = [pytest.mark.slow, pytest.mark.needs_sshd, pytest.mark.needs_torch, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```\n(.*?)^```", re.M | re.S)
HOST = "gpu-0001.example.org"
STANDALONE = "airflow standalone\n"
DOCTOR_S = 180.0


@pytest.fixture
def host(tmp_path: Path) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path / "host") as started:
        yield started
        sshd.kill_jobs(started.home / ".muster")


def blocks(host: sshd.Sshd) -> list[str]:
    """The page's blocks of commands, with what a reader replaces replaced: login, key, host, SKU and level."""
    text = "\n".join(BLOCK.findall((ROOT / "docs" / "quickstart.md").read_text()))
    address = f"127.0.0.1 --name {HOST} --port {host.port}"
    for shown, ours in (
        ("git clone … muster && cd muster\nmake install\nsource .venv/bin/activate\n", ""),
        ("--conn-login root", f"--conn-login {getpass.getuser()}"),
        ("/home/me/.ssh/id_ed25519", str(host.key_file)),
        (f"muster node add {HOST} --sku h100-sxm-8", f"muster node add {address} --sku cpu-generic"),
        ("/opt/torch", sys.prefix),
        ("--level short", "--level demo --force --force-reason 'the tests run here'"),
    ):
        assert text.count(shown) == 1, f"the page shows {shown!r} no more"
        text = text.replace(shown, ours)
    before, _, after = text.partition(STANDALONE)
    settings, _, before = before.partition("\n\n")
    doctor, _, after = after.lstrip().partition("\n")
    assert doctor == "muster doctor"
    return [settings, before, after]


def test_the_page_leads_to_a_verdict(host: sshd.Sshd, tmp_path: Path) -> None:
    settings, before, after = blocks(host)
    port = free_port()
    ours = {name: text for name, text in os.environ.items() if not name.startswith(("AIRFLOW", "MUSTER"))}
    environment = {
        **ours, "HOME": str(tmp_path), "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
        "AIRFLOW__API__PORT": str(port), "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{port}/execution/",
        "MUSTER_AIRFLOW_URL": f"http://localhost:{port}",
    }  # fmt: skip

    def bash(commands: str) -> subprocess.CompletedProcess[str]:
        script = f"set -e\n{settings}\n{commands}"
        return subprocess.run(
            ["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    prepared = bash(before)
    assert prepared.returncode == 0, prepared.stdout + prepared.stderr
    supervisor = Supervisor(tmp_path / "logs")
    supervisor.start("standalone", ["bash", "-c", f"cd {ROOT}\n{settings}\n{STANDALONE}"], environment)
    try:
        end = time.monotonic() + DOCTOR_S
        while (checked := bash("muster doctor")).returncode:
            assert time.monotonic() < end, checked.stdout + checked.stderr
        tested = bash(after)
        assert tested.returncode == 0, tested.stdout + tested.stderr
        shown = json.loads(bash(f"muster runs show {HOST}__first-try --json").stdout)
    finally:
        supervisor.stop()
        orphans.end(tmp_path / "muster" / "airflow")
    assert shown["verdict"] in ("PASS", "WARN", "PROVISIONAL"), shown
