"""``muster numbers``: what was counted last, and nothing is counted for it."""

from __future__ import annotations

import json
from collections.abc import Callable

from muster import store
from muster_reports.digest import tables
from tests.muster import numbers

Muster = Callable[..., "tuple[int, str, str]"]


def test_it_shows_what_was_counted_last(muster: Muster, sqlite_db: str) -> None:
    assert "peer_statistics" in muster("numbers")[1]
    assert json.loads(muster("numbers", "--json")[1]) == {}
    numbers.broken_fleet()
    store.numbers.make()
    out = muster("numbers")[1]
    for section in tables.tables(store.numbers.kept()[0]):
        assert section.title in out
        for row in section.rows:
            assert "\t".join(row) in out
    assert json.loads(muster("numbers", "--json", "--simulated")[1])["simulated"] is True
