"""``muster escapes``: what tests let pass that failed in service later."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson


def escapes(
    days: Annotated[float, typer.Option(help="How far back.", min=1.0, max=3660.0)] = 365.0,
    simulated: Annotated[bool, typer.Option("--simulated", help="The simulated nodes, not the real ones.")] = False,
    json: AsJson = False,
) -> None:
    """List each failure in service within 30 days after a pass, with the test that had passed."""
    from muster import store

    since = store.clock.now() - datetime.timedelta(days=days)
    of = {node.name for node in store.nodes.find() if node.simulated == simulated}
    found = store.passes.missed([each for each in store.failures.since(since) if each.node in of])
    show.answer(
        found,
        ["node", "fault", "failed", "level", "stage", "passed", "in run"],
        (
            [each.failure.node, each.failure.group, show.when(each.failure.at), each.passed.level, each.passed.stage,
             show.when(each.passed.at), each.passed.run_id]
            for each in found
        ),
        json=json, empty="none",
    )  # fmt: skip
