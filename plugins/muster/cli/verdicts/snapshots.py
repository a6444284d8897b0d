"""``muster snapshots``: the peer statistics that verdicts cite."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson, check_sku

app = typer.Typer()


@app.command("list")
def list_(sku: Annotated[str, typer.Option(help="Only of this hardware model.")] = "", json: AsJson = False) -> None:
    """List the peer snapshots that are kept, latest first."""
    from muster import store

    kept = store.peers.find(sku=sku)
    if sku and not kept:
        check_sku(sku)
    show.answer(
        kept,
        ["snapshot", "made", "sku", "level", "nodes", ""],
        (
            [each.version, show.when(each.made_at), each.sku, each.level, each.nodes,
             "simulated" if each.simulated else ""]
            for each in kept
        ),
        json=json, empty="no snapshots yet: the DAG peer_statistics makes them once nodes have passed",
    )  # fmt: skip
