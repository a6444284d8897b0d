"""``muster judge``: verdicts re-evaluated from stored results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson, OfNode
from muster.errors import MusterError

if TYPE_CHECKING:
    from muster.judging.reevaluate import Reevaluated


def judge(
    run_id: Annotated[str, typer.Argument(help="The run's id, or DAG/RUN; none with --fleet.")] = "",
    fleet: Annotated[
        bool,
        typer.Option("--fleet", help="Judge every node, as now and as by --skus or --as-of, one of which it needs."),
    ] = False,
    as_of: Annotated[
        str,
        typer.Option(help="A peer snapshot's version, or for a run 'none'; default: the one that each verdict cites."),
    ] = "",
    skus: Annotated[
        str,
        typer.Option(help="A SKU revision that verdicts cite, or a folder of SKU files; default: the one cited."),
    ] = "",
    stage: Annotated[str, typer.Option(help="Only this stage.")] = "",
    node: OfNode = "",
    json: AsJson = False,
) -> None:
    """Judge a run, or the whole fleet, again from stored results. Records nothing and moves no node.

    A run is judged as its stages were, and every difference is printed. With --fleet, the verdicts that a new SKU
    revision (--skus) or another snapshot (--as-of) would change are printed node by node.
    """
    from muster import store
    from muster.judging.reevaluate import reevaluate

    if fleet == bool(run_id):
        raise MusterError("name a run, or give --fleet to judge every node")
    if fleet:
        _fleet(skus, as_of, stage, node, json)
        return
    run = store.runs.by_id(run_id, node=node)
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


def _fleet(skus: str, as_of: str, stage: str, node: str, json: bool) -> None:
    from muster.judging.proposal import propose

    found = propose(skus=skus, as_of=as_of, stage=stage, node=node)
    if json:
        show.as_json({"judged": len(found.outcomes), "without_result": found.without_result, "changes": found.changes})
        return
    show.table(
        ["node", "sku", "stage", "level", "recorded", "now", "proposed", "because"],
        [[each.node, each.sku, each.stage, each.level, each.recorded, each.now, each.proposed, each.reason]
         for each in found.changes],
        empty="no verdict would change",
    )  # fmt: skip
    nodes = len({each.node for each in found.outcomes})
    typer.echo(f"{len(found.changes)} of {len(found.outcomes)} verdicts on {nodes} nodes would change.")
    if found.without_result:
        typer.echo(f"not judged, since no result is kept: {', '.join(found.without_result)}")


def _row(each: Reevaluated) -> list[object]:
    row: list[object] = [each.recorded.stage]
    for verdict in (each.recorded, each.outcome):
        row += ["–", "", ""] if verdict is None else [verdict.verdict, verdict.sku_version, verdict.snapshot or "none"]
    return row
