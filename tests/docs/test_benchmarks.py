"""docs/benchmarks.md and docs/lab-book.csv are what the stored measurements render to; `make figures` renders them."""

from __future__ import annotations

import csv

from tests.bench.page import LAB_BOOK, PAGE, lab_book, records, render


def test_page_is_rendered_from_the_stored_measurements() -> None:
    assert PAGE.read_text() == render()


def test_the_lab_book_holds_every_measurement() -> None:
    assert LAB_BOOK.read_text() == lab_book()
    rows = list(csv.DictReader(LAB_BOOK.read_text().splitlines()))
    assert {row["measurement"] for row in rows} == set(records())
    assert next(row["value"] for row in rows if (row["measurement"], row["figure"]) == ("judge", "nodes")) == "10000"
