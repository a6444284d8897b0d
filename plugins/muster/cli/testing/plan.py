"""``muster plan``: which idle nodes will be tested in the next 24 hours, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson
from muster_reports.text import plural


def plan(
    hours: Annotated[float, typer.Option(help="How far ahead.", min=0.1, max=168.0)] = 24.0,
    all_: Annotated[bool, typer.Option("--all", help="Also the nodes that are not tested, and why.")] = False,
    json: AsJson = False,
) -> None:
    """Show the tests of idle nodes that will start, if nodes that are idle now stay idle, and why."""
    from muster import store
    from muster.admission.idle_fleet import known
    from muster.blackout import closed
    from muster.rules.idle.forecast import forecast
    from muster.settings import settings

    now = store.clock.now()
    nodes = store.nodes.find()  # new ones under load draw power too
    windows = settings().revalidation_blackouts
    tests, passed_over = forecast(known(nodes, now), closed_at=lambda at: closed(windows, at), hours=hours)
    if json:
        show.as_json({"tests": [{"at": at, "test": planned} for at, planned in tests], "not_tested": dict(passed_over)})
        return
    show.table(
        ["from", "node", "stages", "minutes", "because"],
        [[show.when(at), each.node, ", ".join(each.stages), f"{each.minutes:.0f}", each.why] for at, each in tests],
        empty=f"no test in the next {hours:g} hours",
    )
    if all_:
        typer.echo()
        rows = [[name, why] for name, why in passed_over.items()]
        show.table(["not tested", "because"], rows, empty="no other node is in service")
    elif passed_over:
        typer.echo(f"not tested: {plural(len(passed_over), 'other node')}; `muster plan --all` shows why")
