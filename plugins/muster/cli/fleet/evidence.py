"""``muster evidence``: what was kept of each incident, and taking it by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import ROWS_MAX, AsJson, AsWho, Name, Reason, given
from muster.errors import MusterError

app = typer.Typer()
BY_HAND = "by_hand"


@app.command("take")
@messages
def take(
    name: Name,
    reason: Reason,
    device: Annotated[str, typer.Option(help="The device that it is about, such as gpu3.")] = "",
    dry_run: DryRun = False,
) -> None:
    """Take evidence of a node now, into one archive: kernel log, serials, vendors' reports, BMC, records."""
    from muster import store
    from muster.judging import incident as records
    from muster.model.repairs import Fault

    node, why = store.nodes.get(name), given(reason)
    if dry_run:
        if node.simulated:
            typer.echo(f"{name}: would archive its records alone: it is simulated")
        for profile in () if node.simulated else records.profiles_of(node):
            for step in profile.steps:
                does = f"{'read' if step.file else 'run'} {' '.join(step.words)}"
                typer.echo(f"{name}: would {does}{' as root' if step.root else ''} for {step.name}")
        typer.echo("dry run: nothing was changed")
        return
    from muster.cli.doctor.connections import airflow_libraries

    opened = store.repairs.open_incident(name, Fault(BY_HAND, device), why)
    try:
        with airflow_libraries():
            from muster.operators.lifecycle import evidence

            taken = evidence.take(opened)
    finally:
        store.repairs.close(opened.id, f"evidence by hand: {why}")
    assert taken.bundle is not None
    for each in taken.bundle.missing:
        typer.echo(f"missing: {each}")
    typer.echo(f"incident {taken.id}: {taken.bundle.path}")
    if taken.bundle.blank:
        typer.echo(f"muster: nothing was read from the node {name}: the archive has the records alone", err=True)
        raise typer.Exit(1)


@app.command("list")
def listed(
    node: Annotated[str, typer.Argument(help="A node's name; without it, all nodes.")] = "", json: AsJson = False
) -> None:
    """List incidents, open ones first and the newest first, with where their evidence is."""
    from muster import store

    found = sorted(store.repairs.find(node), key=lambda each: each.closed_at is not None)
    show.answer(
        found,
        ["incident", "node", "fault", "part", "opened", "closed", "evidence", "missing", "waits for a person"],
        (
            [
                each.id,
                each.node,
                each.fault.fault_class,
                each.fault.part or each.fault.device,
                show.when(each.opened_at),
                show.when(each.closed_at) if each.closed_at else "",
                each.bundle.path if each.bundle else "none yet",
                len(each.bundle.missing) if each.bundle else "",
                "" if each.closed_at else each.asks,
            ]
            for each in found
        ),
        json=json,
        empty="no incident is recorded",
    )


@app.command("show")
def shown(
    incident: Annotated[int, typer.Argument(help="The incident's number.", max=ROWS_MAX)],
    archive: Annotated[
        bool, typer.Option("--archive", help="Write the archive itself to standard output: into a file of yours.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show one incident: its fault, its evidence with what is missing in it."""
    from muster import store

    found = store.repairs.get_incident(incident)
    if archive:
        if json:
            raise MusterError("--archive writes the archive itself, which is no JSON: leave --json out")
        if found.bundle is None:
            raise MusterError(f"incident {incident} has no evidence yet")
        with Path(found.bundle.path).open("rb") as kept:
            shutil.copyfileobj(kept, typer.get_binary_stream("stdout"))
        return
    attempts = store.repairs.history(found)
    if json:
        show.as_json({**vars(found), "attempts": attempts})
        return
    bundle = found.bundle
    show.facts(
        {
            "incident": found.id, "node": found.node, "simulated": "yes" if found.simulated else "",
            "fault": found.fault.fault_class, "device": found.fault.device, "part": found.fault.part, "why": found.why,
            "waits for a person": found.asks,
            "opened": show.when(found.opened_at), "closed": show.when(found.closed_at) if found.closed_at else "",
            "evidence": bundle.path if bundle else "none yet", "SHA-256": bundle.sha256 if bundle else "",
            "missing": "; ".join(bundle.missing) if bundle else "",
        }
    )  # fmt: skip
    show.table(
        ["attempt", "repair", "reserved", "ended", "outcome", "proved", "detail"],
        [
            [
                each.id, each.rung, show.when(each.reserved_at), show.when(each.ended_at) if each.ended_at else "",
                each.outcome or "", {True: "yes", False: "no", None: ""}[each.proved], each.detail,
            ]
            for each in attempts
        ],
        empty="no repair was attempted on this machine or part",
    )  # fmt: skip


@app.command("close")
@messages
def close(
    incident: Annotated[int, typer.Argument(help="The incident's number.", max=ROWS_MAX)],
    reason: Reason,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Close an incident that needs no repair, or whose repair no test can prove: admission no longer waits for it."""
    from muster import store

    with rehearsed(dry_run):
        found = store.repairs.get_incident(incident)
        if found.closed_at is not None:
            raise MusterError(f"incident {incident} was closed at {show.when(found.closed_at)}")
        store.repairs.close(incident, given(reason), show.person(who))
        typer.echo(f"incident {incident} of {found.node} {'would be' if dry_run else 'is'} closed")
        if dry_run:
            risks(found.node, [f"no test has to prove any more that {found.why} is repaired"])
