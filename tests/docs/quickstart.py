"""The quickstart as a reader follows it: its commands, with what a reader replaces replaced, and what they start."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from muster_demo.services import Supervisor, free_port
from muster_demo.stack import healthy
from tests.support import orphans
from tests.support.servers import sshd
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```\n(.*?)^```", re.M | re.S)
HOST, NAME = "gpu-0001.example.org", "gpu-0001"
STANDALONE = "airflow standalone\n"
DOCTOR_S, DOCTOR_PAUSE_S = 420.0, 3.0
"""How long a healthy Airflow's doctor is asked, and the time between: it takes CPU from a start that it waits for."""

FORCED = "--level demo --force --force-reason 'the tests run here'"

Bash = Callable[[str], "subprocess.CompletedProcess[str]"]


@dataclasses.dataclass(frozen=True)
class Quickstart:
    """The page's commands: what each shell sources, those before ``airflow standalone``, and those after it."""

    settings: str
    before: str
    after: str


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """Returns the text with each first string, which it holds once, replaced by its second."""
    for shown, ours in pairs:
        assert text.count(shown) == 1, f"the page shows {shown!r} no more"
        text = text.replace(shown, ours)
    return text


def quickstart(host: sshd.Sshd) -> Quickstart:
    """Returns docs/quickstart.md for this host: login, key, address, SKU and level are its own."""
    address = f"127.0.0.1 --name {NAME} --port {host.port}"
    text = replaced(
        "\n".join(BLOCK.findall((ROOT / "docs" / "quickstart.md").read_text())),
        ("git clone … muster && cd muster\nmake install\n", ""),
        ("install -m 600 docs/examples/quickstart.env quickstart.env\n\nsource .venv/bin/activate\n", ""),
        ("source quickstart.env", "source docs/examples/quickstart.env"),
        ("--conn-login root", f"--conn-login {getpass.getuser()}"),
        ("/home/me/.ssh/id_ed25519", str(host.key_file)),
        (f"muster node add {HOST} --name {NAME} --sku h100-sxm-8", f"muster node add {address} --sku cpu-generic"),
        ("/opt/torch", sys.prefix),
        ("--level short", FORCED),
    )
    before, _, after = text.partition(STANDALONE)
    settings, _, before = before.partition("\n\n")
    doctor, _, after = after.lstrip().partition("\n")
    assert doctor == "muster doctor"
    return Quickstart(settings, before, after)


def run(bash: Bash, commands: str) -> str:
    """Returns what the commands write to standard output; each must succeed."""
    done = bash(commands)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def controller(home: Path, page: Quickstart, environment: Mapping[str, str] = os.environ) -> Iterator[Bash]:
    """A controller as the page sets it up, of which ``muster doctor`` misses nothing; yields the reader's shell."""
    port = free_port()
    ours = {name: text for name, text in environment.items() if not name.startswith(("AIRFLOW", "MUSTER"))}
    environment = {
        **ours, "HOME": str(home), "PATH": f"{sys.prefix}/bin:{ours['PATH']}",
        "AIRFLOW__API__PORT": str(port), "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{port}/execution/",
        "MUSTER_AIRFLOW_URL": f"http://localhost:{port}", "MUSTER_POLL_SECONDS": "0.5",
        # No DAG changes: reading all of them every 30 s, as Airflow does by default, takes a third of a core.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
    }  # fmt: skip

    def bash(commands: str) -> subprocess.CompletedProcess[str]:
        script: Sequence[str] = ["bash", "-c", f"set -e\n{page.settings}\n{commands}"]
        return subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    run(bash, page.before)
    supervisor = Supervisor(home / "logs")
    standalone = f"cd {ROOT}\n{page.settings}\n{STANDALONE}"
    supervisor.start("standalone", ["bash", "-c", standalone], environment)
    try:
        until(lambda: healthy(environment["MUSTER_AIRFLOW_URL"]), limit_s=DOCTOR_S, step_s=1.0)
        end = time.monotonic() + DOCTOR_S
        while (checked := bash("muster doctor")).returncode:
            assert time.monotonic() < end, checked.stdout + checked.stderr
            time.sleep(DOCTOR_PAUSE_S)
        yield bash
    finally:
        supervisor.stop()
        orphans.end(home / ".local" / "share" / "muster" / "airflow")
