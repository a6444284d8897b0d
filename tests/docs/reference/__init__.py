"""What docs/reference is generated from: one module a page, each with ``page() -> str``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.docs.reference import cli, metrics, probes, rest, rules, settings

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "commands.md": cli.page,
    "settings.md": settings.page,
    "metrics.md": metrics.page,
    "api.md": rest.page,
    "probes.md": probes.page,
    "rules.md": rules.page,
}
