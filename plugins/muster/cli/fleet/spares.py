"""``muster spares``: how many spare nodes jobs need, what the qualified ones cover, and which takes a node's place."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson
from muster.rules.service import replacing
from muster.rules.service import spares as rules
from muster_reports import text
from muster_reports.digest.facts import WITH_RECORD


def spares(
    days: Annotated[float, typer.Option(help="How long the job lasts.", min=0.0, max=366.0)] = rules.JOB_DAYS,
    job: Annotated[list[int] | None, typer.Option(help="Nodes of a job; may be repeated.", min=1)] = None,
    for_: Annotated[str, typer.Option("--for", help="A node: list the qualified ones that may replace it.")] = "",
    simulated: Annotated[bool, typer.Option("--simulated", help="The simulated nodes, not the real ones.")] = False,
    json: AsJson = False,
) -> None:
    """Show by SKU how many spares cover all but 1 of 100 jobs, from failures of the fleet and of a public record."""
    from muster import store

    nodes, fell = store.nodes.find(), store.replacing.fell()
    if for_:
        clusters = {place.node: place.cluster for place in store.schedulers.places()}
        found = replacing.candidates(store.nodes.get(for_), nodes, fell, clusters)
        tested = store.verdicts.stage_tests()
        rows = [
            [each.name, where, each.rack, show.when(min(tests.values())) if (tests := tested.get(each.name)) else ""]
            for each, where in found
        ]
        named = [dict(zip(("node", "place", "rack", "tested_since"), row, strict=True)) for row in rows]
        empty = f"no qualified node can take {for_}'s place"
        show.answer(named, ["node", "place", "rack", "tested since"], rows, json=json, empty=empty)
        return
    now = store.clock.now()
    chosen = [node for node in nodes if node.simulated == simulated]
    failed = store.failures.since(now - rules.PERIOD, former=True)
    pools = rules.pools(chosen, store.failures.served(now, former=True), fell, failed, now, days)
    asked = [
        (pool, rates, size, rules.needed(size, rates, days)) for pool, rates in pools for size in job or [pool.service]
    ]
    show.answer(
        [{"pool": pool, "rates": rates, "job": size, "spares": count} for pool, rates, size, count in asked],
        ["SKU", "in service", "failures a year", "mean repair", "job of", "spares needed", "qualified", "enough for"],
        (
            [
                pool.sku, pool.service, pool.failures, f"{pool.repair_days:.1f} days",
                text.plural(size, "node"), count, pool.qualified, text.plural(pool.covers, "node"),
            ]
            for pool, _, size, count in asked
        ),
        json=json, empty="no node is in service",
    )  # fmt: skip
    if asked and not json:
        typer.echo(f"mean repair: {WITH_RECORD}")
