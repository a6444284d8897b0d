"""docs/deploying.md installs a controller as printed: its lines run in a bare environment, with pip and with uv."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.docs.quickstart import ROOT, replaced
from tests.support.servers import postgresql

pytestmark = [pytest.mark.slow, pytest.mark.needs_postgresql, pytest.mark.early(3)]

PAGE = (ROOT / "docs" / "deploying.md").read_text()
WITHOUT_HELM = PAGE.partition("\n## Without Helm\n")[2].partition("\n## ")[0]
INSTALLATION, ENVIRONMENT, FIRST_STEPS, _RIGHTS, _COMPONENTS = re.findall(r"^```\n(.*?)^```", WITHOUT_HELM, re.M | re.S)
UNASKED = INSTALLATION.replace("createuser -P", "createuser").replace(" -g airflow ", " ")
"""The server of these tests asks for no password, and this machine has no such user."""

BACKUP = PAGE.partition("\n## Back-up and restore\n")[2].partition("\n## ")[0]
IMAGE = re.search(r"^RUN (.*?[^\\])$", PAGE, re.M | re.S)
SECRETS = {
    "AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode(),
    "AIRFLOW__API__SECRET_KEY": "secret-of-the-test",
    "AIRFLOW__API_AUTH__JWT_SECRET": "another-secret-of-the-test",
    "MUSTER_AIRFLOW_PASSWORD": "a-password-of-the-test",
}


def debians_python() -> str:
    """Debian's own interpreter where it has venv and is new enough: its pip is older than others."""
    debian = "/usr/bin/python3"
    check = "import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))"
    return debian if subprocess.run([debian, "-c", check], check=False).returncode == 0 else sys.executable


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """What stands for ``/opt``: the tracked files as a clone has them, and nothing else."""
    source = tmp_path / "opt" / "muster" / "src"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    return tmp_path / "opt"


@pytest.fixture
def server() -> Iterator[postgresql.PostgreSQL]:
    with postgresql.running(superuser="postgres") as started:
        yield started


def bash(commands: str, environment: Mapping[str, str]) -> str:
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("AIRFLOW", "MUSTER", "PYTHON", "VIRTUAL"))
    }
    # Of 500 MB little is imported here: pip need not compile the rest.
    kept["PIP_COMPILE"] = "0"
    kept["PATH"] = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if not part.startswith(sys.prefix))
    done = subprocess.run(
        ["bash", "-c", f"set -e\n{commands}"], env={**kept, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def within(place: Path, lines: str) -> str:
    """The lines with this test's folders in place of the machine's."""
    for folder in ("/opt/", "/usr/local/", "/etc/muster/"):
        lines = re.sub(rf"(?<![\w/]){folder}", f"{place.parent}{folder}", lines)
    return lines


def settings(place: Path, server: postgresql.PostgreSQL) -> None:
    """Write the page's environment with the secrets, databases and folders of this test where the command reads it."""
    shown = dict(line.split("=", 1) for line in within(place, ENVIRONMENT).strip().splitlines())
    assert {name for name, value in shown.items() if value == "…"} == set(SECRETS)
    databases = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": server.url("airflow", "airflow").replace("://", "+psycopg2://"),
        "MUSTER_DATABASE_URL": server.url("muster", "muster"),
    }
    assert set(databases) < set(shown)
    ours = {**SECRETS, **databases, "MUSTER_HOME": str(place / "muster-home")}
    shown |= {name: shlex.quote(value) for name, value in ours.items()}
    file = place.parent / "etc" / "muster" / "environment"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    file.write_text("".join(f"{name}={value}\n" for name, value in shown.items()))


def test_the_lines_as_printed_and_then_make_install_with_pip(place: Path, server: postgresql.PostgreSQL) -> None:
    environment = {"PGHOST": str(server.folder), "PGUSER": server.superuser}
    lines = replaced(
        within(place, UNASKED),
        ("git clone … ", ": "),
        ("python3 -m venv", f"{debians_python()} -m venv"),
    )
    commands = place.parent / "usr" / "local" / "bin"
    commands.mkdir(parents=True)
    bash(lines, environment)
    command, user = commands / "muster", getpass.getuser()
    ours = replaced(
        within(place, command.read_text()), ("!= airflow", f"!= {user}"), ("sudo -u airflow", f"sudo -u {user}")
    )
    command.write_text(ours)
    venv = place / "muster" / "venv" / "bin"
    bash(f"{venv}/pip check", environment)
    settings(place, server)
    path = f"PATH={commands}:$PATH\n"  # as /usr/local/bin is, and without the virtual environment's programs
    bash(path + FIRST_STEPS, {})
    listed = bash(f"{path}muster node list --json\nairflow dags list --output plain --local", {})
    assert "node_qualification" in listed.split()

    shown = re.search(r"^muster backup /backup/(.+)$", BACKUP, re.M)
    assert shown is not None
    assert "muster restore /backup/" in BACKUP
    saved = f"{place}/{shown[1]}"
    createdb = "createdb -E UTF8 -T template0 -O muster muster2"
    assert f"`{createdb}`" in BACKUP
    bash(f"{path}muster backup {saved}\n{createdb}", environment)
    moved = {"MUSTER_DATABASE_URL": server.url("muster2", "muster"), "MUSTER_HOME": str(place / "another-home")}
    bash(f"{path}muster restore {saved}\nmuster node list", moved)

    assert IMAGE is not None
    image = IMAGE[1].replace("/opt/muster", f"{place}/muster/src").replace("/opt/airflow", f"{place}/image")
    bash(f"PATH={venv}:$PATH\n{image}", environment)
    assert (place / "image" / "dags" / "node_qualification.py").exists()

    # Where uv cannot, `make install` takes pip; what the controller's lock shares with the whole one is there already.
    source = place / "muster" / "src"
    (source / ".venv").symlink_to(place / "muster" / "venv")
    bash(f"cd {source} && make install UV_INSTALL=false && .venv/bin/pip check && .venv/bin/mypy --version", {})
    assert str(source) in bash(f"{venv}/python -c 'import muster_demo; print(muster_demo.__file__)'", {})


def test_uv_installs_the_same(place: Path, server: postgresql.PostgreSQL) -> None:
    pip, uv = "/opt/muster/venv/bin/pip install", "uv pip install --python /opt/muster/venv/bin/python"
    assert uv in WITHOUT_HELM.replace("\n", " ")
    lines = UNASKED.replace(pip, f"{sys.prefix}/bin/{uv} --quiet --system-certs")
    lines = replaced(within(place, lines), ("git clone … ", ": "))
    (place.parent / "usr" / "local" / "bin").mkdir(parents=True)
    bash(lines, {"PGHOST": str(server.folder), "PGUSER": server.superuser})
    assert "Usage" in bash(f"{place}/muster/venv/bin/muster --help", {})
