"""``muster judge`` and ``muster snapshots``: re-evaluated verdicts, and the peer statistics that they cite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli import show
from muster.cli.node import AsJson
from muster.cli.run import OfNode

if TYPE_CHECKING:
    from muster.judging.reevaluate import Reevaluated

app = typer.Typer(no_args_is_help=True)


def judge(
    run_id: Annotated[str, typer.Argument(help="The run's id.")],
    as_of: Annotated[
        str, typer.Option(help="A peer snapshot's version, or 'none'; default: the one that each verdict cites.")
    ] = "",
    skus: Annotated[
        str,
        typer.Option(help="A SKU revision that verdicts cite, or a folder of SKU files; default: the one cited."),
    ] = "",
    stage: Annotated[str, typer.Option(help="Only this stage.")] = "",
    node: OfNode = "",
    json: AsJson = False,
) -> None:
    """Judge a run again from the stored results and print the differences. Records nothing and moves no node."""
    from muster import records
    from muster.judging.reevaluate import reevaluate

    run = records.find_run(run_id, node=node)
    outcomes = reevaluate(run, as_of=as_of, skus=skus, stage=stage)
    if json:
        show.as_json([{"recorded": each.recorded, "outcome": each.outcome, "why_not": each.why_not,
                       "differences": each.differences} for each in outcomes])  # fmt: skip
        return
    show.table(
        ["stage", "recorded", "SKU revision", "snapshot", "re-evaluated", "SKU revision", "snapshot"],
        [_row(each) for each in outcomes],
        empty="no verdicts",
    )
    for each in outcomes:
        for sentence in [each.why_not] if each.why_not else each.differences or ["the same"]:
            typer.echo(f"{each.recorded.stage}: {sentence}")


@app.command("list")
def list_(sku: Annotated[str, typer.Option(help="Only of this hardware model.")] = "", json: AsJson = False) -> None:
    """List the peer snapshots that are kept, latest first."""
    from muster import records

    kept = records.list_snapshots(sku=sku)
    if json:
        show.as_json(kept)
        return
    show.table(
        ["snapshot", "made (UTC)", "sku", "level", "nodes", ""],
        [
            [each.version, show.when(each.made_at), each.sku, each.level, each.nodes,
             "simulated" if each.simulated else ""]
            for each in kept
        ],
        empty="no snapshots yet: the DAG peer_statistics makes them once nodes have passed",
    )  # fmt: skip


def _row(each: Reevaluated) -> list[object]:
    told: list[object] = [each.recorded.stage]
    for said in (each.recorded, each.outcome):
        told += ["–", "", ""] if said is None else [said.verdict, said.sku_version, said.snapshot or "none"]
    return told
