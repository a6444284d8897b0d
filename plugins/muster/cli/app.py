"""The ``muster`` command, assembled from its topics. Imports only what every start needs: --help must be quick."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

import muster
from muster import acting
from muster.cli.controller import backup, db, mail, restore, settings
from muster.cli.decisions import admit, approve, certificate, racks, repair, waive, waivers
from muster.cli.doctor import doctor
from muster.cli.fleet import digest, evidence, housekeeping, spares, status
from muster.cli.node import adoption, decisions, node, removal, scheduler
from muster.cli.policies import device_events, health
from muster.cli.sku import sku
from muster.cli.testing import block, plan, qualify, revalidate
from muster.cli.verdicts import export, golden, judge, runs, snapshots

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Qualifies the nodes of a fleet: tests them, admits them to production, tests them again.",
)
# A command is in the module, or the folder, named after its first word.
app.add_typer(node.app, name="node", help="Enrol, check, show and move nodes.")
for _command in (
    decisions.move, adoption.adopt, decisions.verify, adoption.replace, adoption.reinstalled, adoption.confirm,
    adoption.unfence, adoption.part, removal.remove, decisions.keep, decisions.pause, decisions.resume,
    decisions.lemon, scheduler.scheduler, scheduler.schedulers,
):  # fmt: skip
    node.app.command(_command.__name__)(_command)
node.app.command("open")(decisions.let_open)
app.command("status")(status.status)
app.command("qualify")(qualify.qualify)
app.command("revalidate")(revalidate.revalidate)
app.command("repair")(repair.repair)
app.command("block")(block.block)
app.command("admit")(admit.admit)
app.command("approve")(approve.approve)
app.command("plan")(plan.plan)
app.command("digest")(digest.digest)
app.command("spares")(spares.spares)
app.add_typer(runs.app, name="runs", help="Show runs.")
app.add_typer(evidence.app, name="evidence", help="Incidents, and the evidence that was taken of each.")
app.command("export")(export.export)
app.command("judge")(judge.judge)
app.add_typer(
    snapshots.app, name="snapshots", help="Peer snapshots: the statistics of similar nodes that verdicts cite."
)
app.command("waive")(waive.waive)
app.add_typer(waivers.app, name="waivers", help="Accepted findings.")
app.add_typer(racks.app, name="racks", help="Racks whose NVLink domain needs a person.")
app.add_typer(mail.app, name="mail", help="Mails that were not sent.")
app.add_typer(certificate.app, name="certificate", help="Certificates of admission, and the key that signs them.")
app.add_typer(golden.app, name="golden", help="Goldens: the bits on which the fleet agreed.")
app.add_typer(sku.app, name="sku", help="Hardware models.")
app.add_typer(device_events.app, name="device-events", help="Policies for errors of drivers and the kernel's messages.")
app.add_typer(health.app, name="health", help="The policy for what is observed between tests.")
app.add_typer(db.app, name="db", help="The fleet records' database.")
app.command("backup")(backup.backup)
app.command("restore")(restore.restore)
app.command("settings")(settings.show_settings)
app.command("doctor")(doctor.doctor)
app.command("housekeeping")(housekeeping.housekeeping)


@functools.cache
def root() -> typer.core.TyperGroup:
    """The command ``muster``, with all commands below it. Cached, as making it takes longer than many a command."""
    made = typer.main.get_command(app)
    assert isinstance(made, typer.core.TyperGroup)
    return made


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
