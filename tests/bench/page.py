"""``python -m tests.bench.page``: renders docs/benchmarks.md from the records in ``tests/bench/figures``.

The page's text is the template ``tests/bench/figures/benchmarks.md.j2``, in which each figure is a field of a record.
A field that no record has raises ``jinja2.UndefinedError``.
"""

from __future__ import annotations

import json
from typing import Any

import jinja2

from tests.bench.record import FIGURES

PAGE = FIGURES.parents[2] / "docs" / "benchmarks.md"


def records() -> dict[str, dict[str, Any]]:
    """Every stored measurement by name; dashes become underscores, as Jinja2's names need."""
    return {path.stem.replace("-", "_"): json.loads(path.read_text()) for path in sorted(FIGURES.glob("*.json"))}


def rows(record: dict[str, Any], name: str) -> str:
    """The Markdown table of a record's output whose first heading is ``name``."""
    found: list[str] = record["tables"]
    begin = next(at for at, line in enumerate(found) if line.startswith(f"| {name} |"))
    end = next((at for at in range(begin, len(found)) if not found[at].startswith("|")), len(found))
    return "\n".join(found[begin:end])


def minutes(value: float | None) -> str:
    """Minutes as ``4 min 52 s``; a dash where they were not recorded."""
    if value is None:
        return "–"
    whole, seconds = divmod(round(value * 60), 60)
    return f"{whole} min {seconds} s" if whole else f"{seconds} s"


def seed(record: dict[str, Any]) -> str:
    """The seed that the record's command names."""
    return str(record["command"].partition("--seed ")[2].split()[0])


def render() -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FIGURES), undefined=jinja2.StrictUndefined, keep_trailing_newline=True,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "minutes": minutes,
        "percent": lambda share: f"{100 * share:.1f} %",
        "thousandth": lambda share: f"{1000 * share:.2f}",
        "rows": rows,
        "seed": seed,
        "thousands": lambda number: f"{number:,.0f}",
    }
    stored = records()
    return environment.get_template("benchmarks.md.j2").render(stored, measurements=stored)


if __name__ == "__main__":
    PAGE.write_text(render())
