"""``muster node adopt``, ``verify``, ``replace``, ``part``: fleets that already run, and machines behind names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from muster.cli import show
from muster.cli.dry import DryRun, rehearsed, risks
from muster.cli.node import AsJson, AsWho, Name
from muster.errors import MusterError
from muster.lifecycle.transitions import State
from muster.settings import settings

Reason = Annotated[str, typer.Option(help="Why; it stays in the node's history.")]


def adopt(
    reason: Reason,
    names: Annotated[list[str] | None, typer.Argument(help="Enrolled nodes that are still registered.")] = None,
    file: Annotated[Path | None, typer.Option(help="An inventory, as for import, to enrol and adopt whole.")] = None,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Take over nodes that serve already: production, unverified, in shadow mode. All of them, or none.

    In shadow mode a node is judged and reported, but never drained: what is found changes nothing, until it passes in
    full, or a person verifies it (`muster node verify`).
    """
    from muster import records
    from muster.enrolment import inventory
    from muster.enrolment.known import pinned, skus
    from muster.lifecycle.preview import risks_of_move

    if not names and file is None:
        raise MusterError("name the nodes to adopt, or give an inventory: --file fleet.yaml")
    enrol = pinned(inventory.load(file, skus())) if file else []
    with rehearsed(dry_run):
        outcome = records.adopt_nodes(names or (), show.person(who), given(reason), enrol=enrol)
        for name, word in outcome.items():
            typer.echo(f"{name}: {word}")
            if dry_run and word == "adopted":
                risks(name, risks_of_move(State.REGISTERED, State.PRODUCTION, shadow=True))


def verify(name: Name, reason: Reason, who: AsWho = "", dry_run: DryRun = False) -> None:
    """End a node's shadow mode on somebody's own word, without a test."""
    from muster import records

    with rehearsed(dry_run):
        typer.echo(f"{name}: {records.verify_node(name, show.person(who), given(reason))}")
        if dry_run:
            risks(name, ["nothing of it is proven, and from then on a FAIL takes it out of production"])


def replace(
    name: Name,
    reason: Reason,
    host: Annotated[str, typer.Option(help="Its address, if that is another one too.")] = "",
    port: Annotated[int, typer.Option(help="Its SSH port, if that is another one too.")] = 0,
    host_key: Annotated[str, typer.Option(help="'TYPE BASE64' to pin; default: the key that answers now.")] = "",
    serial: Annotated[list[str] | None, typer.Option(help="SLOT=SERIAL (system=…); may be repeated.")] = None,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Say that another machine has taken the node's place; it begins anew as registered.

    What was found before stays with the old machine's serials: see `muster node part SERIAL`.
    """
    from muster import records
    from muster.lifecycle.preview import risks_of_move
    from muster.remote.ssh import scan_host_key

    before = records.get_node(name)
    key = host_key or scan_host_key(host or before.host, port or before.port, settings().ssh_timeout_s)
    with rehearsed(dry_run):
        node = records.replace_node(
            name, show.person(who), given(reason), host_key=key, host=host, port=port, serials=_serials(serial or [])
        )
        typer.echo(f"{name}: {'would be another machine' if dry_run else 'is another machine now'}, and {node.state}")
        if dry_run:
            risks(name, [*risks_of_move(before.state, node.state), "what its tests found counts for it no more"])


def part(
    serial: Annotated[str, typer.Argument(help="The serial of a part, or of a machine.")], json: AsJson = False
) -> None:
    """Show where the part with a serial sat, and every run that it went through there."""
    from muster import records

    places, runs = records.part_history(serial), records.part_runs(serial)
    if json:
        show.as_json({"places": places, "runs": runs})
        return
    show.table(
        ["part", "node", "slot", "since", "until"],
        [[each.kind, each.node, each.slot, show.when(each.since), show.when(each.until) if each.until else ""]
         for each in places],
        empty=f"no part with serial {serial} was ever seen",
    )  # fmt: skip
    typer.echo()
    rows = [[run.run_id, run.node, run.verdict or "", show.when(run.started_at), run.headline] for run in runs]
    show.table(["run", "node", "verdict", "began", "headline"], rows, empty="no runs yet")


def given(reason: str) -> str:
    """The reason, without which a person's decision is none. Raises MusterError."""
    if not reason.strip():
        raise MusterError("a decision needs a reason: --reason 'why'")
    return reason.strip()


def _serials(pairs: list[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    if not all(equals and slot.strip() and serial.strip() for slot, equals, serial in split):
        raise MusterError("--serial takes SLOT=SERIAL, for example --serial system=S411823X")
    return {slot.strip(): serial.strip() for slot, _, serial in split}
