"""``muster block``: test nodes together."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.airflow.start import Force, ForceReason, Level, Nodes, Watch, Why, forced, known, run_of, start
from muster.cli.terminal import dry
from muster.cli.terminal.options import AsJson
from muster.model.dags import CLUSTER_QUALIFICATION


def block(
    nodes: Nodes,
    level: Level = "standard",
    soak_minutes: Annotated[
        int, typer.Option(help="Repeat collectives for so long, reading the ports' error counters each minute.")
    ] = 0,
    fault_run: Annotated[
        bool,
        typer.Option("--fault-run", help="Kill ranks of a training, and measure its restarts, as level long does."),
    ] = False,
    reason: Why = "new hardware",
    force: Force = False,
    force_reason: ForceReason = "",
    watch: Watch = False,
    dry_run: dry.DryRun = False,
    json: AsJson = False,
) -> None:
    """Test qualified nodes together, as one block; those that meet every condition enter production."""
    from muster.admission.startable import together

    why = forced(force, force_reason)
    members = list(known(nodes, level).values())
    together(members)
    more = {"soak_minutes": soak_minutes, "fault_run": fault_run}
    start([run_of(CLUSTER_QUALIFICATION, members, level, reason, why, **more)], watch, json, dry_run)
