"""Whose the controller's files are when a person makes them: those of the user who runs the components."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster import ownership, store
from muster.errors import ControllerFault
from muster.model.repairs import Fault, Incident
from muster.remote.job.zipapp import build_agent
from muster.reporting import bundles
from muster.settings import settings

OTHER_UID = 65534
BY_ROOT = f"""
import os
from tests.muster.test_ownership import make
from muster import store
from muster.reporting import archive
from tests.muster_reports.conftest import empty
made = make()
store.engine.upgrade()
archive.keep(empty())
store.engine.dispose()
os.setgroups([])
os.setgid({OTHER_UID})
os.setuid({OTHER_UID})
store.certificates.check_signing_key()
store.signing.signing_key(create=False)
store.engine.upgrade()
assert os.access(made, os.W_OK)
assert archive.keep(empty()), "the month's folder"
"""


def make() -> Path:
    """The key, the node side and the folder of this month's evidence; returns the latter."""
    store.signing.new_key()
    build_agent(settings().home / "agents")
    return room()


def room() -> Path:
    now = datetime.datetime.now(datetime.UTC)
    return bundles.room(Incident(1, "n1", Fault("gpu_reset"), "XID 95", now, False))


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A MUSTER_HOME that others can reach."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        home = Path(folder) / "muster"
        home.mkdir()
        monkeypatch.setenv("MUSTER_HOME", str(home))
        yield home


def test_what_root_makes_is_given_to_the_owner_of_muster_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, given = home.stat(), set[str]()

    def chown(path: Path, uid: int, gid: int) -> None:
        assert (uid, gid) == (owner.st_uid, owner.st_gid)
        given.add(path.name)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", chown)
    month = make()
    assert {"agents", "reports", month.name} <= given
    assert any(name.startswith(".certificate.key") for name in given), "before it has its name"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_the_components_can_use_what_root_made(home: Path) -> None:
    os.chown(home, OTHER_UID, OTHER_UID)
    done = subprocess.run([sys.executable, "-c", BY_ROOT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {each.stat().st_uid for each in home.rglob("*")} == {OTHER_UID}


def test_a_user_who_is_not_the_controllers_makes_no_key(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "foreign", lambda: "airflow")
    with pytest.raises(ControllerFault, match="airflow"):
        store.signing.new_key()
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(
    ("owner", "us", "named"), [(12345, 12345, ""), (12345, 0, ""), (12345, 1, "#12345"), (0, 1, "")]
)
def test_a_user_is_named_where_the_key_would_be_anothers(
    home: Path, monkeypatch: pytest.MonkeyPatch, owner: int, us: int, named: str
) -> None:
    seen = os.stat_result((*home.stat()[:4], owner, *home.stat()[5:]))
    monkeypatch.setattr(Path, "stat", lambda *_, **__: seen)
    monkeypatch.setattr(os, "geteuid", lambda: us)
    assert ownership.foreign() == named


def test_evidence_is_not_begun_where_it_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ControllerFault):
        room()
