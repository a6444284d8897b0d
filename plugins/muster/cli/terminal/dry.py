"""``--dry-run``: every command that loads a node or changes a state can be rehearsed, its refusals included."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.terminal import show
from muster.errors import MusterError, of_sku_files
from muster.model.dags import CLUSTER_QUALIFICATION
from muster.model.nodes import Node
from muster.settings import settings

if TYPE_CHECKING:
    from muster.admission.changes import Change
    from muster.rules.preview import StagePlan

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what it would do and what it risks; change nothing.")]


@contextlib.contextmanager
def rehearsed(dry_run: bool, json: bool = False) -> Iterator[None]:
    """With ``dry_run``, whatever the block writes into the records is rolled back; without ``json`` it says so."""
    from muster import store

    if not dry_run:
        yield
        return
    with store.engine.rehearsal():
        yield
    if not json:
        typer.echo("dry run: nothing was changed")


def risks(of: str, sentences: Iterable[str]) -> None:
    """Print one risk a line."""
    for sentence in sentences:
        typer.echo(f"{of}: risk: {sentence}")


def stated(of: str, outcome: str, dry_run: bool) -> None:
    """Print an outcome, such as "added", as made or as what would be."""
    typer.echo(f"{of}: {'would be ' if dry_run else ''}{outcome}")


def decided(of: str, make: Callable[[], Change], dry_run: bool) -> None:
    """Make a person's change and print it; with ``dry_run`` its risks and effects, and nothing is changed."""
    with rehearsed(dry_run):
        change = make()
        typer.echo(f"{of}: {'would: ' if dry_run else ''}{change.sentence}")
        if dry_run:
            risks(of, change.risks)
            for effect in change.effects:
                typer.echo(f"{of}: {effect}")


@dataclasses.dataclass(frozen=True)
class Would:
    """What one run would do, and its risks: a sentence each."""

    effects: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()


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
    """What a command would start: {node: run}, what it would refuse: {node: why}, and of each node what the run would
    do and what it risks.
    """

    dag: str
    would_start: dict[str, str] = dataclasses.field(default_factory=dict)
    refused: dict[str, str] = dataclasses.field(default_factory=dict)
    effects: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
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
            for effect in self.effects[of]:
                typer.echo(f"{of}: {effect}")
            risks(of, self.risks[of])
        for of, why in self.refused.items():
            typer.echo(f"{of}: would be refused: {why}")
        typer.echo("dry run: nothing was started")


def plans_of(dag: str, sku: str, nodes: Sequence[Node], conf: Mapping[str, Any]) -> tuple[StagePlan, ...]:
    """What a run of ``dag`` with ``conf`` runs on a node of that SKU; ``nodes``: all that it tests.

    Raises MusterError, also if a block cannot do what it is asked.
    """
    from muster.admission.startable import asked
    from muster.rules import preview
    from muster_criteria.sku_files.skus import load_sku

    with of_sku_files():
        found = load_sku(sku, settings().sku_folders)
        if dag == CLUSTER_QUALIFICATION:
            return preview.block_plans(found, conf["level"], [node.name for node in nodes], asked(conf))
        return preview.stage_plans(found, conf["level"])


def programmes(dag: str, nodes: Sequence[Node], conf: Mapping[str, Any]) -> Iterator[Programme]:
    """What runs of ``dag`` with ``conf`` test these nodes with, and how long it takes, for each SKU."""
    from muster import store
    from muster.rules import preview

    level = str(conf.get("level"))
    more = {"soak_minutes", "fault_run"} & conf.keys()  # runs without them say nothing of how long it takes
    for sku, simulated in sorted({(node.sku, node.simulated) for node in nodes}):
        alike = [node for node in nodes if (node.sku, node.simulated) == (sku, simulated)]
        try:
            plans = plans_of(dag, sku, nodes, conf)
        except MusterError:  # its runs are refused for it
            continue
        usual_s = None if more else store.runs.typical_duration_s(sku, level, dag, simulated=simulated)
        at_once = len(alike) if dag == CLUSTER_QUALIFICATION else settings().burn_slots
        time = preview.time_needed(plans, usual_s, len(alike), at_once)
        yield Programme(sku, level, tuple(node.name for node in alike), time, plans)


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
