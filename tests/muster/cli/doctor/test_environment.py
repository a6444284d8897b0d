"""``muster doctor`` on variables of the environment: names that nothing reads, no recipient, a token that expires."""

from __future__ import annotations

import base64
import datetime
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.cli.doctor import doctor, environment
from muster.cli.doctor.checks import Mark
from muster.settings import Settings, settings

Muster = Callable[..., "tuple[int, str, str]"]

ROOT = Path(__file__).parents[4]
READ = re.compile(
    r"""environ(?:\.get\(|\.setdefault\(|\[)\s*"(MUSTER_\w+)"|^\w+ = "(MUSTER_\w+)"|\$\{(MUSTER_\w+)""", re.M
)
HOUR = datetime.timedelta(hours=1)


def test_a_variable_that_nothing_reads_is_named_with_the_one_that_was_meant(
    muster: Muster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MUSTER_BMC_RACK7", "MUSTER_PRELOAD", "MUSTER_WORK", "MUSTER_API_SERVER_SERVICE_HOST"):
        monkeypatch.setenv(name, "x")
    assert list(environment.variables()) == []
    monkeypatch.setenv("MUSTER_MAILTO", "hunter2")
    monkeypatch.setenv("MUSTER_XYZ", "hunter2")
    (found,) = environment.variables()
    assert found.mark is Mark.ADVICE
    assert "MUSTER_MAILTO (did you mean MUSTER_MAIL_TO?), MUSTER_XYZ" in found.message
    out = muster("settings")[1]
    assert "MUSTER_MAILTO" in out
    assert "hunter2" not in out + found.message


@pytest.mark.parametrize(("more", "mark"), [({}, Mark.MISSING), ({"notices": True}, Mark.ADVICE)])
def test_rules_of_some_nodes_by_which_no_question_reaches_a_person_are_missing_one(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, bool], mark: Mark
) -> None:
    rule = {"name": "team", "notifier": "a.b", "labels": {"team": "a"}, **more}
    monkeypatch.setenv("MUSTER_MAIL_RULES", json.dumps([rule]))
    assert doctor.mail(settings()).mark is mark


def test_no_variable_that_something_reads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = [ROOT / name for name in ("plugins", "validators", "reports", "docs/examples")]
    files = [path for room in rooms for path in room.rglob("*") if path.suffix in (".py", ".sh")]
    names = {next(filter(None, found)) for path in files for found in READ.findall(path.read_text())}
    assert len(names) >= 8
    for name in names | {f"MUSTER_{field.upper()}" for field in Settings.model_fields}:
        monkeypatch.setenv(name, "x")
    assert list(environment.variables()) == []


@pytest.mark.parametrize(
    ("left", "mark"), [(-HOUR, Mark.MISSING), (23 * HOUR, Mark.ADVICE), (24 * 365 * HOUR, Mark.OK), (None, None)]
)
def test_a_token_that_has_expired_is_missing(
    left: datetime.timedelta | None, mark: Mark | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = {"exp": (datetime.datetime.now(datetime.UTC) + left).timestamp()} if left is not None else {}
    claims = base64.urlsafe_b64encode(json.dumps({"sub": "ada", **end}).encode()).decode().rstrip("=")
    monkeypatch.setenv("MUSTER_AIRFLOW_TOKEN", f"e30.{claims}.c2ln")
    assert [check.mark for check in environment.token(settings())] == [mark] * (mark is not None)
    monkeypatch.setenv("MUSTER_AIRFLOW_USERNAME", "ada")  # which renews it
    assert list(environment.token(settings())) == []


@pytest.mark.parametrize(
    "given", ["", "t", "a.b.c", "a.!.c", "a.W10.c", "a.eyJleHAiOiAieCJ9.c", "a.eyJleHAiOiAxZTk5fQ.c"]
)
def test_a_token_that_is_no_jwt_has_no_end(given: str) -> None:
    assert environment.expiry(given) is None


@pytest.mark.parametrize("setting", ["archive", "topology", "metrics_token_file"])
def test_a_file_of_the_settings_that_cannot_be_used_is_missing(tmp_path: Path, setting: str) -> None:
    (tmp_path / "file").touch()
    lldp = tmp_path / "lldp"
    lldp.mkdir()
    sound = {"home": tmp_path / "home", "archive": tmp_path / "new", "topology": lldp,
             "metrics_token_file": tmp_path / "file"}  # fmt: skip
    assert not list(environment.files(Settings(**sound)))
    (wrong,) = environment.files(Settings(**{**sound, setting: tmp_path / "file" / "below"}))
    assert wrong.mark is Mark.MISSING
    assert str(tmp_path / "file" / "below") in wrong.message
