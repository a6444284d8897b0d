"""``muster revalidate``: test nodes of production again."""

from __future__ import annotations

from muster.cli.airflow.start import Level, Nodes, Watch, Why, known, run_of, start
from muster.cli.terminal import dry
from muster.cli.terminal.options import AsJson
from muster.errors import MusterError
from muster.model.dags import NODE_REVALIDATION


def revalidate(
    nodes: Nodes,
    level: Level = "short",
    reason: Why = "by hand",
    watch: Watch = False,
    dry_run: dry.DryRun = False,
    json: AsJson = False,
) -> None:
    """Test nodes of production again, one DAG run each; a node in use is left alone."""
    from muster.model.states import SERVING

    found = known(nodes, level)
    for node in found.values():
        if node.state not in SERVING:
            raise MusterError(f"{node.name} is in {node.state}: only nodes in production are revalidated; qualify it")
    start([run_of(NODE_REVALIDATION, [node], level, reason) for node in found.values()], watch, json, dry_run)
