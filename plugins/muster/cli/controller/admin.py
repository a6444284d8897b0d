"""``muster db``, ``muster sku``, ``muster settings``, ``muster housekeeping``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsJson
from muster.cli.verdicts import learn
from muster.errors import MusterError
from muster.settings import settings, shown

db_app = typer.Typer(no_args_is_help=True)
sku_app = typer.Typer(no_args_is_help=True)
sku_app.command("learn")(learn.learn)


@db_app.command("upgrade")
@messages
def upgrade() -> None:
    """Create the fleet records, or bring them to this version's schema. Repeating it changes nothing."""
    from muster import records

    before, after = records.upgrade()
    if before == after:
        typer.echo(f"the fleet records are at schema {after} already")
        return
    done = f"the fleet records went from {f'schema {before}' if before else 'nothing'} to schema {after}"
    records.audit_command(settings().who, done, {"before": before, "after": after})
    typer.echo(done)


@sku_app.command("list")
def sku_list(json: AsJson = False) -> None:
    """List the hardware models that can be tested."""
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import list_skus, load_sku

    rows: list[dict[str, str]] = []
    for name in list_skus(settings().sku_folders):
        try:
            sku = load_sku(name, settings().sku_folders)
            rows.append({"sku": name, "version": sku.version, "title": sku.title})
        except SkuError as error:
            rows.append({"sku": name, "version": "", "title": f"cannot be used: {error}"})
    if json:
        show.as_json(rows)
    else:
        show.table(["sku", "version", "title"], [list(row.values()) for row in rows], empty="there are no SKU files")


@sku_app.command("show")
def sku_show(name: Annotated[str, typer.Argument(help="The SKU.")], json: AsJson = False) -> None:
    """Show a hardware model's file."""
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import find_sku

    try:
        path = find_sku(name, settings().sku_folders)
    except SkuError as error:
        raise MusterError(str(error)) from None
    if json:
        show.as_json({"path": str(path), "text": path.read_text(encoding="utf-8")})
        return
    typer.echo(f"# {path}")
    typer.echo(path.read_text(encoding="utf-8"))


@sku_app.command("lint")
def sku_lint(
    names: Annotated[list[str] | None, typer.Argument(help="SKUs or files; default: all.")] = None,
    json: AsJson = False,
) -> None:
    """Check SKU files: limits, units, sources, contradictions. Ends with status 1 if something is wrong."""
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import lint_sku, list_skus

    found: list[str] = []
    listed = names or list_skus(settings().sku_folders)
    for name in listed:
        is_file = name.endswith((".yaml", ".yml")) or "/" in name
        try:
            if is_file and not Path(name).is_file():
                raise MusterError(f"there is no file {name}; give a SKU's name, or the path of its file")
            problems = lint_sku(Path(name) if is_file else name, settings().sku_folders)
        except SkuError as error:
            raise MusterError(str(error)) from None
        found += map(str, problems)
    if json:
        show.as_json({"checked": listed, "problems": found})
    for problem in () if json else found:
        typer.echo(problem, err=True)
    if found:
        raise typer.Exit(1)
    if not json:
        typer.echo(f"{len(listed)} SKU file{'s are' if len(listed) != 1 else ' is'} well")


def show_settings(json: AsJson = False) -> None:
    """Show every setting: its variable, its value (secrets masked), what it is for. Empty means its default."""
    rows = shown(settings())
    if json:
        show.as_json({name: value for name, value, _ in rows})
    else:
        show.table(["variable", "value", "what it is"], rows, empty="there are no settings")


@messages
def housekeeping(dry_run: DryRun = False) -> None:
    """Free leases of runs that are over, carry out what waits for a scheduler, delete what is no longer kept."""
    from muster import records
    from muster.admission import service
    from muster.integration import closing
    from muster.integration.airflow_api import RUN_OVER, AirflowClient

    leases = records.live_leases()
    if leases:
        with AirflowClient.from_settings() as airflow:
            runs = {(lease.dag_id, lease.run_id) for lease in leases}
            states = {run: airflow.run_state(*run) for run in sorted(runs)}
        over = [run for run, state in states.items() if state is None or state in RUN_OVER]
        with rehearsed(dry_run):
            for run in over:
                for node in closing.release(*run, "its run is over in Airflow"):
                    typer.echo(f"{node}: lease {'would be ' if dry_run else ''}freed")
    for sentence in () if dry_run else service.reconcile():
        typer.echo(sentence)
    gone = records.apply_retention(dry_run=dry_run)
    if not dry_run:
        records.audit_command(settings().who, "housekeeping was done by hand", {"deleted": dataclasses.asdict(gone)})
    typer.echo(
        f"{'would delete' if dry_run else 'deleted'} {gone.telemetry} telemetry files, {gone.results} raw results, "
        f"{gone.measurements} measurements, {gone.runs} runs, {gone.mails} mails, {gone.snapshots} peer snapshots, "
        f"{gone.digests} digests, {gone.suspects} suspicions, {gone.parts} parts, {gone.events} events"
    )
