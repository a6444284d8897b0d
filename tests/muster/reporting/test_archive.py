"""The archive of full reports: written whole, kept for its time, and no condition for a mail."""

from __future__ import annotations

import dataclasses
import datetime
import os
from pathlib import Path

import pytest

from muster.reporting import archive, bundles
from tests.muster_reports.conftest import empty, hostile
from tests.muster_reports.largest import eight_gpus


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSTER_ARCHIVE", str(tmp_path / "archive"))
    return tmp_path / "archive"


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_report_is_one_file_that_shows_what_its_mail_cuts(folder: Path) -> None:
    path = Path(archive.keep(eight_gpus()))
    assert files(folder) == [path]
    page = path.read_text()
    assert "fabric_rate_of_pattern_39" in page
    assert "@media print" in page
    assert "cid:" not in page


def test_rendered_again_a_report_replaces_its_file(folder: Path) -> None:
    path = archive.keep(empty())
    assert archive.keep(empty()) == path
    assert files(folder) == [Path(path)]


def test_a_hostile_name_stays_in_the_folder(folder: Path) -> None:
    path = Path(archive.keep(hostile()))
    assert path.parent.parent == folder
    assert files(folder) == [path]


def test_a_folder_that_cannot_be_written_costs_no_mail(folder: Path) -> None:
    folder.write_text("a file is in the way")
    assert archive.keep(empty()) == ""


def test_old_reports_go_and_other_files_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (Path(archive.keep(dataclasses.replace(empty(), run_id=run))) for run in ("old", "new"))
    other = old.with_name("notes.html")
    other.touch()
    now = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
    for path, days in ((old, 31), (new, 29), (other, 900)):
        os.utime(path, times=(0, (now - datetime.timedelta(days=days)).timestamp()))
    monkeypatch.setenv("MUSTER_RETENTION_ARCHIVE_DAYS", "30")
    assert archive.expire(now) == 1
    assert files(folder) == sorted([new, other])


def test_the_bundle_of_an_open_incident_stays_and_its_draft_goes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cited, draft, over = (
        folder / "2026-01" / f"{name}{bundles.SUFFIX}" for name in ("a_incident-1", ".a", "a_incident-2")
    )
    cited.parent.mkdir(parents=True)
    for path in (cited, draft, over):
        path.touch()
        os.utime(path, times=(0, 0))
    monkeypatch.setenv("MUSTER_RETENTION_ARCHIVE_DAYS", "30")
    assert archive.expire(datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC), [f"/moved/since/{cited.name}"]) == 2
    assert files(folder) == [cited]
