"""The report as a file that stands alone."""

from __future__ import annotations

import base64
import re

import pytest

from muster_reports.model import RunReport
from muster_reports.page import render_page


@pytest.mark.parametrize("name", ["cpu_pass", "hot_gpu", "hostile", "empty"])
def test_a_page_carries_its_pictures_and_loads_nothing(name: str, samples: dict[str, RunReport]) -> None:
    html = render_page(samples[name])
    sources = re.findall(r'<img src="([^"]*)"', html)
    assert len(sources) == {"cpu_pass": 2, "hot_gpu": 3, "hostile": 3, "empty": 0}[name]
    for source in sources:
        kind, _, data = source.partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG")
    assert "default-src 'none'" in html
    assert "<script" not in html
    assert "cid:" not in html
    assert ("{{ 7*7 }}" in html) == (name == "hostile")


def test_a_page_shows_what_the_mail_cuts(samples: dict[str, RunReport]) -> None:
    html = render_page(samples["long_lists"])
    assert "memory_mismatches_of_pattern_059" in html
    assert "and 400 more in the exported result" in html
