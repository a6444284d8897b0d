"""Output of the command line: tables for people, JSON for programs, times as an age or in UTC."""

from __future__ import annotations

import dataclasses
import datetime
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from muster.errors import MusterError
from muster.rules.lifecycle.decisions import is_person
from muster.settings import settings
from muster_criteria.text import one_line
from muster_criteria.words import duration

if TYPE_CHECKING:
    from muster_criteria.model import Finding

NO_NODES = "no nodes yet; enrol some with `muster node add HOST --sku SKU` or `muster node import FILE`"
VERDICT_STYLE = {
    "PASS": "green",
    "WARN": "yellow",
    "PROVISIONAL": "yellow",
    "INCONCLUSIVE": "magenta",
    "FAIL": "bold red",
    "SKIPPED": "dim",
}


def as_json(value: Any) -> None:
    """Print values (dataclasses, lists of them) as JSON."""
    typer.echo(json.dumps(value, default=_plain, indent=1))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table, or the sentence ``empty`` if there are no rows. Cells are shown without markup, on one line."""
    listed = [[one_line(str(cell)) for cell in row] for row in rows]
    if not listed:
        typer.echo(empty)
        return
    if not sys.stdout.isatty():
        # A pipe has no width, and a program reads whole cells, separated by tabs.
        for row in [list(columns), *listed]:
            typer.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in listed:
        shown.add_row(*[Text(cell, style=VERDICT_STYLE.get(cell, "")) for cell in row])
    Console().print(shown)


def answer(value: object, columns: Sequence[str], rows: Iterable[Sequence[object]], *, json: bool, empty: str) -> None:
    """Print ``value`` as JSON, or ``rows``, of which it is made, as a table."""
    if json:
        as_json(value)
    else:
        table(columns, rows, empty=empty)


def findings(found: Iterable[Finding]) -> None:
    """Print findings with their ids, which `muster waive` takes."""
    table(
        ["id", "severity", "device", "found", "do", "waived"],
        [[each.id, each.severity, each.device, each.summary, each.action, each.waived] for each in found],
        empty="nothing was found",
    )


def facts(pairs: Mapping[str, object]) -> None:
    """Print names and values, one a line, without those that are empty."""
    shown = {name: one_line(_written(value)) for name, value in pairs.items() if value not in ("", None, {}, ())}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        typer.echo(f"{name:<{width}}  {value}")


def _written(value: object) -> str:
    """Returns dictionaries as JSON, as options take them."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else str(value)


def when(moment: datetime.datetime | None) -> str:
    """A moment to the minute, with its zone, UTC; "never" for None."""
    return f"{moment:%Y-%m-%d %H:%M} UTC" if moment else "never"


def age(moment: datetime.datetime | None) -> str:
    """How long ago, as ``duration``; "never" for None."""
    if moment is None:
        return "never"
    from muster import store

    return duration(max(0.0, (store.clock.now() - moment).total_seconds()))


def person(named: str) -> str:
    """Who decides: ``named``, or the person of the settings. Raises MusterError if that is not a person's name."""
    who = (named or settings().who).strip()
    if not is_person(who):
        raise MusterError(f"{who!r} is not a person: name who decides with --as NAME or MUSTER_PERSON")
    return who


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return dict(value) if isinstance(value, Mapping) else str(value)
