"""``muster housekeeping``: leases, schedulers and retention as the housekeeping DAG does them, by hand."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.doctor.connections import airflow_libraries
from muster.cli.terminal.dry import DryRun, rehearsed
from muster.cli.terminal.messages import messages
from muster.errors import MusterError

if TYPE_CHECKING:
    from muster.model.runs import RunKey

NAMES = {
    "telemetry": "telemetry files", "results": "raw results", "snapshots": "peer snapshots", "suspects": "suspicions",
    "reports": "archived reports",
}  # fmt: skip
"""{kind of data that retention deletes: its name in a sentence}; other kinds are shown as they are."""


@messages
def housekeeping(
    dry_run: DryRun = False,
    unknown_runs: Annotated[
        bool, typer.Option("--unknown-runs", help="Free leases also where this Airflow knows none of their runs.")
    ] = False,
) -> None:
    """Free leases of runs that are over, carry out what waits for a scheduler, delete what is no longer kept."""
    from muster import store
    from muster.admission import service, users_jobs
    from muster.operators import upkeep

    trouble = None
    try:
        _free_leases(dry_run, unknown_runs)
    except MusterError as error:  # schedulers and retention need no Airflow
        trouble = error
    for sentence in () if dry_run else (*service.reconcile(), *users_jobs.note()):
        typer.echo(sentence)
    gone = upkeep.apply_retention(dry_run=dry_run)
    if not dry_run:
        store.audit.command("housekeeping was done by hand", {"deleted": gone})
    counts = ", ".join(f"{count} {NAMES.get(kind, kind)}" for kind, count in gone.items())
    typer.echo(f"{'would delete' if dry_run else 'deleted'} {counts}")
    if trouble:
        raise MusterError(f"the leases stay as they are: {trouble}")


def _free_leases(dry_run: bool, unknown_runs: bool) -> None:
    from muster import store
    from muster.integration import closing
    from muster.integration.airflow_api import RUN_OVER, AirflowClient

    runs = {lease.key for lease in store.leases.live()}
    if not runs:
        return
    with AirflowClient.from_settings() as airflow:

        def over_of(some: Iterable[RunKey]) -> list[RunKey]:
            states = {run: airflow.run_state(run.dag_id, run.run_id) for run in sorted(some)}
            if not unknown_runs:
                closing.refuse_another_airflow(sum(state is not None for state in states.values()), len(states))
            return [run for run, state in states.items() if state is None or state in RUN_OVER]

        over = over_of(runs)
        if over and not dry_run:
            with airflow_libraries():
                from muster.operators.testing import leftovers

                until = time.monotonic() + leftovers.STOPPING_S
                for run in over:
                    leftovers.stop(run, until)
            over = [run for run in over_of(runs) if run in over]  # a person may have cleared some meanwhile
    with rehearsed(dry_run):
        for run in over:
            for node in closing.release(run, "its run is over in Airflow"):
                typer.echo(f"{node}: lease {'would be ' if dry_run else ''}freed")
