"""``python -m tests.bench.page``: renders docs/benchmarks.md and docs/lab-book.csv from ``tests/bench/figures``.

The page's text is the template ``tests/bench/figures/benchmarks.md.j2``, in which each figure is a field of a record.
A field that no record has raises ``jinja2.UndefinedError``. The lab book has one line for each figure of each record.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import jinja2

from tests.bench import bars
from tests.bench.record import FIGURES

PAGE = FIGURES.parents[2] / "docs" / "benchmarks.md"
LAB_BOOK = PAGE.with_name("lab-book.csv")
ABOUT = ("command", "date", "commit", "machine", "load", "wall_minutes", "cpu_minutes")


def records() -> dict[str, dict[str, Any]]:
    """Every stored measurement by name; dashes become underscores, as Jinja2's names need."""
    return {path.stem.replace("-", "_"): json.loads(path.read_text()) for path in sorted(FIGURES.glob("*.json"))}


def minutes(value: float | None) -> str:
    """Minutes as ``4 min 52 s``; a dash where they were not recorded."""
    if value is None:
        return "–"
    whole, seconds = divmod(round(value * 60), 60)
    return f"{whole} min {seconds} s" if whole else f"{seconds} s"


def seed(record: dict[str, Any]) -> str:
    """The seed that the record's command names."""
    return str(record["command"].partition("--seed ")[2].split()[0])


def edges(stored: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of the fuzz bench, one for each edge."""
    return [record for name, record in stored.items() if name.startswith("fuzz_")]


def defects(stored: dict[str, dict[str, Any]]) -> int:
    """How many defects these found."""
    kinds = ("tracebacks", "unbounded_reads", "injections", "false_passes")
    return sum(record["figures"][kind] for record in edges(stored) for kind in kinds)


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of every figure within a record's figures."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from flat(below, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for place, below in enumerate(value):
            yield from flat(below, f"{name}.{place}")
    else:
        yield name, value


def lab_book() -> str:
    """Every stored figure as CSV. A table of the bench's output is one figure for each of its lines."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(("measurement", "figure", "value", *ABOUT))
    for name, record in records().items():
        about = [record.get(field, "") for field in ABOUT]
        tables = {"table": [line for line in record.get("tables", []) if line.strip()]}
        for figure, value in flat({**(record["figures"] or {"status": record.get("status", "")}), **tables}):
            write((name, figure, value, *about))
    return out.getvalue()


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
        "seed": seed,
        "thousands": lambda number: f"{number:,.0f}",
    }
    environment.globals["bars"] = bars
    stored = records()
    return environment.get_template("benchmarks.md.j2").render(
        stored, measurements=stored, edges=edges, defects=defects
    )


if __name__ == "__main__":
    PAGE.write_text(render())
    LAB_BOOK.write_text(lab_book())
