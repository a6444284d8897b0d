"""``muster block``: test nodes together."""

from __future__ import annotations

from muster.cli.airflow.start import Force, ForceReason, Level, Nodes, Watch, Why, forced, known, run_of, start
from muster.cli.terminal import dry
from muster.cli.terminal.options import AsJson
from muster.errors import MusterError
from muster.model.dags import CLUSTER_QUALIFICATION


def block(
    nodes: Nodes,
    level: Level = "standard",
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
    if len(members) < 2:
        raise MusterError("a block has at least two different nodes")
    together(members)
    start([run_of(CLUSTER_QUALIFICATION, members, level, reason, why)], watch, json, dry_run)
