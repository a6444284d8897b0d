"""``--dry-run``: every command that loads a node or changes a state can be rehearsed, its refusals included."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.terminal import show
from muster.errors import MusterError
from muster.model.nodes import Node
from muster.settings import settings

if TYPE_CHECKING:
    from muster.admission.changes import Change
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


def decided(of: str, make: Callable[[], Change], dry_run: bool) -> None:
    """Make a person's change and print it; with ``dry_run`` its risks and effects, and nothing is changed."""
    with rehearsed(dry_run):
        change = make()
        typer.echo(f"{of}: {change.sentence}")
        if dry_run:
            risks(of, change.risks)
            for effect in change.effects:
                typer.echo(f"{of}: {effect}")


@dataclasses.dataclass(frozen=True)
class Programme:
    """What the nodes of one SKU would be tested with, and how long it takes."""

    sku: str
    level: str
    nodes: tuple[str, ...]
    time: str
    stages: tuple[StagePlan, ...]


@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """What a command would start: {node: run}, what it would refuse: {node: why}, and the risks of each node."""

    dag: str
    would_start: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    risks: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    programmes: list[Programme] = dataclasses.field(default_factory=list)

    def show(self, json: bool) -> None:
        """Print it; exit status 1 if it refuses a node."""
        if json:
            show.as_json({"dry_run": True, **vars(self)})
        else:
            self._print()
        if self.refused:
            raise typer.Exit(1)

    def _print(self) -> None:
        for each in self.programmes:
            typer.echo(f"{each.sku} at level {each.level}: {', '.join(each.nodes)}")
            _show_plans(each.stages)
            typer.echo(f"time: {each.time}")
        for of, run in self.would_start.items():
            typer.echo(f"{of}: would be run {run} of {self.dag}")
            risks(of, self.risks.get(of, ()))
        for of, why in self.refused.items():
            typer.echo(f"{of}: would be refused: {why}")
        typer.echo("dry run: nothing was started")


def qualification(nodes: Sequence[str], dag: str, level: str, reason: str, force_reason: str) -> Rehearsal:
    """What qualifying the nodes would do, without a request to Airflow."""
    from muster import store
    from muster.rules import preview
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import load_sku

    known = [store.nodes.get(name) for name in nodes]
    found = Rehearsal(dag)
    for sku_name, simulated in sorted({(node.sku, node.simulated) for node in known}):
        try:
            plans = preview.stage_plans(load_sku(sku_name, settings().sku_folders), level)
        except SkuError as error:
            raise MusterError(str(error)) from None
        alike = [node for node in known if (node.sku, node.simulated) == (sku_name, simulated)]
        usual_s = store.runs.typical_duration_s(sku_name, level, dag, simulated=simulated)
        time = preview.time_needed(plans, usual_s, len(alike), settings().burn_slots)
        found.programmes.append(Programme(sku_name, level, tuple(node.name for node in alike), time, plans))
        for node in alike:
            _rehearse(found, node, plans, level, reason, force_reason)
    return found


def _rehearse(
    into: Rehearsal, node: Node, plans: tuple[StagePlan, ...], level: str, reason: str, force_reason: str
) -> None:
    """Whether the run would get the node, by the checks of ``claim``, rolled back, and its risks."""
    from muster.admission.startable import startable
    from muster.integration.runid import run_id
    from muster.rules import preview

    run = run_id(node.name, reason)
    try:
        allocation = startable(node, into.dag, run, level, reason, force_reason)
    except MusterError as error:
        into.refused[node.name] = str(error)
        return
    into.would_start[node.name] = run
    into.risks[node.name] = preview.risks_of_test(node, plans, allocation)


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
