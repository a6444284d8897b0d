"""docs/benchmarks.md is what the stored measurements render to."""

from __future__ import annotations

from tests.bench.page import PAGE, render


def test_page_is_rendered_from_the_stored_measurements() -> None:
    assert PAGE.read_text() == render(), "`make figures` renders the page"
