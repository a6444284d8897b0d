"""`make docs` builds a site that has every page, loads nothing from outside, and finds words in the browser."""

from __future__ import annotations

import functools
import http.server
import json
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.servers import browser

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strict: a page outside the navigation, a dead link or a dead anchor fails the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_navigation_and_in_the_search(site: Path) -> None:
    pages = {str(path.relative_to(ROOT / "docs"))[:-3] for path in (ROOT / "docs").rglob("*.md")}
    listed = {
        page.removesuffix(".md") for page in re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    }
    assert listed == pages
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert {entry["location"].partition(".html")[0] for entry in found} == pages


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()


def test_nothing_is_loaded_from_outside(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    outside = {(page.name, url) for page in pages for url in LOADED.findall(page.read_text()) if "//" in url}
    assert {url for _page, url in outside if "fonts.g" in url or "cdn" in url} == set()
    assert outside == set()
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert not re.findall(r"url\([\"']?(?:https?:)?//", styles)


@pytest.mark.slow
@pytest.mark.needs_chromium
def test_the_search_finds_a_word(site: Path, tmp_path: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            with browser.chromium(tmp_path) as page:
                page.go(f"{address}/search.html?q=quarantine")
                page.wait("document.querySelectorAll('#mkdocs-search-results article').length > 2")
                assert all(url.startswith((address, "data:")) for url in page.requested)
        finally:
            server.shutdown()
