"""``muster qualify``: test nodes, from intake to qualified."""

from __future__ import annotations

from muster.cli.airflow.start import Force, ForceReason, Level, Nodes, Watch, Why, forced, known, run_of, start
from muster.cli.terminal import dry
from muster.cli.terminal.options import AsJson
from muster.model.dags import NODE_QUALIFICATION


def qualify(
    nodes: Nodes,
    level: Level = "standard",
    reason: Why = "new hardware",
    force: Force = False,
    force_reason: ForceReason = "",
    watch: Watch = False,
    dry_run: dry.DryRun = False,
    json: AsJson = False,
) -> None:
    """Test nodes, one DAG run each, from intake to qualified."""
    why = forced(force, force_reason)
    found = known(nodes, level)
    start([run_of(NODE_QUALIFICATION, [node], level, reason, why) for node in found.values()], watch, json, dry_run)
