"""``--dry-run``: every command that loads a node or changes a state can be rehearsed, its refusals included."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.terminal import show
from muster.errors import MusterError
from muster.model.nodes import Node
from muster.settings import settings

if TYPE_CHECKING:
    from muster.rules.preview import StagePlan

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would do and what it risks; change nothing.")]


@contextlib.contextmanager
def rehearsed(dry_run: bool) -> Iterator[None]:
    """With ``dry_run``, whatever the block writes into the records is rolled back."""
    from muster import store

    if not dry_run:
        yield
        return
    with store.engine.rehearsal():
        yield
    typer.echo("dry run: nothing was changed")


def risks(of: str, sentences: Iterable[str]) -> None:
    """Print one risk a line."""
    for sentence in sentences:
        typer.echo(f"{of}: risk: {sentence}")


def qualification(nodes: Sequence[str], dag: str, level: str, reason: str, force_reason: str) -> bool:
    """Show what qualifying the nodes would do, without a request to Airflow. Returns whether none would be refused."""
    from muster import store
    from muster.integration.runid import run_id
    from muster.rules import preview
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import load_sku

    known = [store.nodes.get(name) for name in nodes]
    well = True
    for sku_name, simulated in sorted({(node.sku, node.simulated) for node in known}):
        try:
            plans = preview.stage_plans(load_sku(sku_name, settings().sku_folders), level)
        except SkuError as error:
            raise MusterError(str(error)) from None
        alike = [node for node in known if (node.sku, node.simulated) == (sku_name, simulated)]
        typer.echo(f"{sku_name} at level {level}: {', '.join(node.name for node in alike)}")
        _show_plans(plans)
        usual_s = store.runs.typical_duration_s(sku_name, level, dag, simulated=simulated)
        typer.echo(f"time: {preview.time_needed(plans, usual_s, len(alike), settings().burn_slots)}")
        for node in alike:
            typer.echo(f"{node.name}: {node.state}: would be run {run_id(node.name, reason)} of {dag}")
            well &= _rehearse(node, plans, dag, run_id(node.name, reason), level, reason, force_reason)
    typer.echo("dry run: nothing was started")
    return well


def _rehearse(
    node: Node, plans: tuple[StagePlan, ...], dag: str, run_id: str, level: str, reason: str, force_reason: str
) -> bool:
    """Show the risks. Returns whether the run would get the node, by the checks of ``claim``, rolled back."""
    from muster.admission.startable import startable
    from muster.rules import preview

    try:
        allocation = startable(node, dag, run_id, level, reason, force_reason)
    except MusterError as error:
        typer.echo(f"{node.name}: would be refused: {error}")
        return False
    risks(node.name, preview.risks_of_test(node, plans, allocation))
    return True


def _show_plans(plans: tuple[StagePlan, ...]) -> None:
    from muster_criteria.words import duration

    rows = [
        [plan.stage, probe.probe, duration(probe.timed_s) if probe.timed_s else "", duration(probe.timeout_s),
         "loads it" if probe.loads else "reads only",
         "its FAIL ends the run" if plan.blocking and place == 0 else ""]
        for plan in plans
        for place, probe in enumerate(plan.probes)
    ]  # fmt: skip
    show.table(["stage", "probe", "load", "at most", "", ""], rows, empty="no stage runs any probe at this level")
