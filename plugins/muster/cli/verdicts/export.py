"""``muster export``: write a run to files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import OfNode


@messages
def export(
    run_id: Annotated[str, typer.Argument(help="The run's id, or DAG/RUN.")],
    to: Annotated[Path, typer.Option(help="The folder to write to: a new or an empty one.")],
    node: OfNode = "",
) -> None:
    """Write a run as JSON and its figures as Parquet, with the results and telemetry that the node sent."""
    from muster import store

    run = store.runs.by_id(run_id, node=node)
    for path in store.export.run(run.key, to, node=run.node):
        typer.echo(str(path))
