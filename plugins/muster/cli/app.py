"""The ``muster`` command, assembled from its topics. Imports only what every start needs: --help must be quick."""

from __future__ import annotations

from typing import Annotated

import typer

import muster
from muster import acting
from muster.cli.controller import admin, doctor, mail
from muster.cli.fleet import digest, escapes, plan, run, spares, start, status
from muster.cli.nodes import adoption, node, pausing, removal, scheduler
from muster.cli.verdicts import certificate, device_events, golden, judging, sku, waive

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Qualifies the nodes of a fleet: tests them, admits them to production, tests them again.",
)
app.add_typer(node.app, name="node", help="Enrol, check, show and move nodes.")
for _command in (
    adoption.adopt, adoption.verify, adoption.replace, adoption.reinstalled, adoption.confirm, adoption.unfence,
    adoption.part, removal.remove, status.keep, pausing.pause, pausing.resume, scheduler.scheduler,
    scheduler.schedulers,
):  # fmt: skip
    node.app.command(_command.__name__)(_command)
app.command("status")(status.status)
app.command("qualify")(start.qualify)
app.command("revalidate")(start.revalidate)
app.command("block")(start.block)
app.command("admit")(start.admit)
app.command("approve")(start.approve)
app.command("plan")(plan.plan)
app.command("digest")(digest.digest)
app.command("spares")(spares.spares)
app.command("escapes")(escapes.escapes)
app.add_typer(run.app, name="runs", help="Show runs.")
app.command("export")(run.export)
app.command("judge")(judging.judge)
app.add_typer(judging.app, name="snapshots", help="Peer snapshots: the statistics of similar nodes that verdicts cite.")
app.command("waive")(waive.waive)
app.add_typer(waive.app, name="waivers", help="Accepted findings.")
app.add_typer(mail.app, name="mail", help="Mails that were not sent.")
app.add_typer(certificate.app, name="certificate", help="Certificates of admission, and the key that signs them.")
app.add_typer(golden.app, name="golden", help="Goldens: the bits on which the fleet agreed.")
app.add_typer(sku.app, name="sku", help="Hardware models.")
app.add_typer(device_events.app, name="device-events", help="Policies for errors of drivers and the kernel's messages.")
app.add_typer(admin.db_app, name="db", help="The fleet records' database.")
app.command("settings")(admin.show_settings)
app.command("doctor")(doctor.doctor)
app.command("housekeeping")(admin.housekeeping)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"muster {muster.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and end.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    context.with_resource(acting.under(acting.os_login()))
