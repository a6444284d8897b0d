"""``muster backup`` names the file that it made, also where the event about it cannot be written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from muster import store
from muster.errors import DatabaseNotReady

Muster = Callable[..., "tuple[int, str, str]"]


@pytest.mark.usefixtures("sqlite_db")
def test_a_backup_of_records_that_take_no_writes_is_named(
    muster: Muster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as a standby's."""

    def refuse(*_: object) -> None:
        raise DatabaseNotReady("read-only")

    monkeypatch.setattr(store.audit, "command", refuse)
    status, out, _ = muster("backup", str(tmp_path / "b"))
    assert (status, str(tmp_path / "b") in out, (tmp_path / "b").exists()) == (1, True, True)
