"""``muster mail``: the mails that the mail server has not accepted; send one again, or give it up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed
from muster.cli.terminal.options import AsJson, AsWho, given

app = typer.Typer()

SHOWN_MAX, ALL = 100, 1_000_000

Keys = Annotated[list[str], typer.Argument(help="Keys of mails, as `muster mail list` gives them.", metavar="KEY…")]
Reason = Annotated[str, typer.Option(help="Why; it is recorded.")]


@app.command("list")
def list_(json: AsJson = False) -> None:
    """List the mails that wait for the mail server or were refused by it."""
    from muster import store

    waiting, parked = store.outbox.pending(limit=ALL), store.outbox.parked()
    if json:
        show.as_json({"waiting": waiting, "parked": parked})
        return
    rows = [[each.key, f"tried again {show.when(each.retry_at) if each.retry_at else 'within minutes'}",
             _names(each.recipients), each.last_error or "not tried yet"] for each in waiting]  # fmt: skip
    rows += [[each.key, f"refused {show.when(each.parked_at)}", _names(each.recipients), each.last_error]
             for each in parked]  # fmt: skip
    headings = ["key", "state", "not received by", "why"]
    show.table(headings, rows[:SHOWN_MAX], empty="no mail waits, and none was refused")
    if len(rows) > SHOWN_MAX:
        typer.echo(f"and {len(rows) - SHOWN_MAX} more: `muster mail list --json` gives all")


@app.command()
def resend(keys: Keys, reason: Reason, who: AsWho = "", dry_run: DryRun = False, json: AsJson = False) -> None:
    """Let housekeeping send mails again within minutes, those that the mail server refused too."""
    from muster import store

    with rehearsed(dry_run, json):
        done = "would be sent again" if dry_run else "is sent again within minutes"
        _each(keys, lambda key: store.outbox.resend(key, show.person(who), given(reason)), done, dry_run, json)


@app.command()
def drop(keys: Keys, reason: Reason, who: AsWho = "", dry_run: DryRun = False, json: AsJson = False) -> None:
    """Delete mails that were not sent; the reports stay in the records."""
    from muster import store

    with rehearsed(dry_run, json):
        done = "would be deleted" if dry_run else "is deleted"
        _each(keys, lambda key: store.outbox.drop(key, show.person(who), given(reason)), done, dry_run, json)


def _each(keys: list[str], change: Callable[[str], bool], done: str, dry_run: bool, json: bool) -> None:
    changed = [key for key in keys if change(key)]
    missing = [key for key in keys if key not in changed]
    if json:
        show.as_json({"dry_run": dry_run, "changed": changed, "missing": missing})
    else:
        for key in changed:
            typer.echo(f"{key} {done}")
    if missing:
        typer.echo(f"muster: no unsent mail has the key {', '.join(missing)}: see `muster mail list`", err=True)
        raise typer.Exit(1)


def _names(recipients: tuple[str, ...]) -> str:
    return ", ".join(recipients) or "any recipient"
