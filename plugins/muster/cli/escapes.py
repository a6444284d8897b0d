"""``muster escapes``: what tests let pass that failed in service later."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson


def escapes(
    days: Annotated[float, typer.Option(help="How far back.", min=1.0, max=3660.0)] = 365.0,
    rows: Annotated[bool, typer.Option("--rows", help="List each failure with the test that had passed.")] = False,
    simulated: Annotated[bool, typer.Option("--simulated", help="The simulated nodes, not the real ones.")] = False,
    json: AsJson = False,
) -> None:
    """Show by level, stage and group of faults how often a node failed in service within 30 days after a pass."""
    from muster import store
    from muster.rules import escapes as rules

    since = store.clock.now() - datetime.timedelta(days=days)
    counts = store.passes.counts(since, simulated=simulated)
    failures = [each for each in store.failures.since(since) if each.node in counts]
    found = store.passes.missed(failures, since)
    if rows:
        listed = [
            [each.failure.node, each.failure.group, show.when(each.failure.at), each.passed.level, each.passed.stage,
             show.when(each.passed.at), each.passed.run_id]
            for each in found
        ]  # fmt: skip
        if json:
            show.as_json(found)
            return
        show.table(["node", "fault", "failed", "level", "stage", "passed", "in run"], listed, empty="none")
        return
    made = rules.rates(found, rules.summed(counts.values()))
    if json:
        show.as_json(made)
        return
    show.table(
        ["level", "stage", "fault", "escapes", "passes", "per 1,000 passes", "90 % interval"],
        [
            [each.level, each.stage, each.group, each.escapes, each.passes, f"{each.rate:.2f}",
             f"{each.low:.2f} to {each.high:.2f}"]
            for each in made
        ],
        empty=f"no node failed in service within {rules.WITHIN.days} days after a test that can see the fault",
    )  # fmt: skip
