"""The page of the numbers that managers ask for."""

from __future__ import annotations

from fastapi.testclient import TestClient

from muster import store
from muster_reports.digest import tables
from tests.muster import numbers
from tests.muster.web.conftest import page


def test_the_page_shows_what_was_counted_last_and_marks_what_is_simulated(client: TestClient) -> None:
    assert "peer_statistics" in page(client, "/numbers")
    assert "/numbers" in page(client, "/")
    numbers.broken_fleet()
    store.numbers.make()
    text = page(client, "/numbers")
    for section in tables.tables(store.numbers.kept()[0]):
        assert section.title in text
        assert all(cell in text for row in section.rows for cell in row)
    assert text.count('class="sim"') == 1
