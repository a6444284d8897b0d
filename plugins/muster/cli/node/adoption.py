"""``muster node adopt``, ``replace``, ``part``: fleets in service, and the machines behind names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from muster.cli.doctor import connections
from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, risks, stated
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsJson, AsWho, Name, Reason, given
from muster.errors import MusterError
from muster.model.schedulers import WITHDRAWN
from muster.model.states import State


@messages
def adopt(
    reason: Reason,
    names: Annotated[list[str] | None, typer.Argument(help="Enrolled nodes that are still registered.")] = None,
    file: Annotated[Path | None, typer.Option(help="An inventory, as for import, to enrol and adopt whole.")] = None,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Take over nodes that are in service already, in shadow mode: all of them, or none.

    In shadow mode a node is tested and reported, but findings do not withdraw it. The mode ends with a full-coverage
    PASS, or with `muster node verify`.
    """
    from muster import store
    from muster.enrolment import inventory
    from muster.enrolment.known import pinned, skus
    from muster.rules.preview import risks_of_move

    if not names and file is None:
        raise MusterError("name the nodes to adopt, or give an inventory: --file fleet.yaml")
    enrol = pinned(inventory.load(file, skus()), connections.credentials) if file else []
    with rehearsed(dry_run):
        outcome = store.adoption.adopt(names or (), show.person(who), given(reason), enrol=enrol)
        for name, word in outcome.items():
            stated(name, word, dry_run)
            if dry_run and word == "adopted":
                risks(name, risks_of_move(State.REGISTERED, State.PRODUCTION, shadow=True))


@messages
def replace(
    name: Name,
    reason: Reason,
    host: Annotated[str, typer.Option(help="Its new address, if that changed.")] = "",
    port: Annotated[int, typer.Option(help="Its new SSH port, if that changed.")] = 0,
    host_key: Annotated[str, typer.Option(help="'TYPE BASE64' to pin; default: the key that answers now.")] = "",
    serial: Annotated[list[str] | None, typer.Option(help="SLOT=SERIAL (system=…); may be repeated.")] = None,
    bmc: Annotated[str, typer.Option(help="Its BMC, as JSON, {} for none; default: the old machine's.")] = "",
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Record that another machine has taken this node's place; it starts as registered.

    The history stays with the old machine's serials: see `muster node part SERIAL`.
    """
    from muster import store
    from muster.admission import changes, service
    from muster.rules.preview import risks_of_move

    before, described = store.nodes.get(name), _bmc(bmc)
    key = host_key or connections.host_key(host or before.host, port or before.port)
    with rehearsed(dry_run):
        node = store.adoption.replace(
            name, show.person(who), given(reason), host_key=key, host=host, port=port, serials=_serials(serial or []),
            bmc=described,
        )  # fmt: skip
        typer.echo(f"{name}: {'would be another machine' if dry_run else 'is another machine now'}, and {node.state}")
        if dry_run:
            risks(name, [*risks_of_move(before.state, node.state), "its earlier verdicts no longer count"])
    if not dry_run and (trouble := service.carry_out(name)):
        typer.echo(f"{name}: {WITHDRAWN} waits: {trouble}")
    if lacks := changes.placeless(before):
        typer.echo(f"{name}: {lacks}")
    if node.bmc and described is None:
        typer.echo(
            f"{name}: its BMC is still {node.bmc['url']}; if that is the old machine's, give the new one's: "
            f"`muster node add {name} --bmc '{{\"url\": …}}'`"
        )


@messages
def reinstalled(
    name: Name,
    reason: Reason,
    host_key: Annotated[str, typer.Option(help="'TYPE BASE64' to pin; default: the key that answers now.")] = "",
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Pin the new host key of the same machine after its system was installed again; its history and state stay."""
    from muster import store

    before = store.nodes.get(name)
    key = host_key or connections.host_key(before.host, before.port)
    with rehearsed(dry_run):
        node = store.adoption.rekey(name, show.person(who), given(reason), host_key=key)
        typer.echo(f"{name}: {'would have' if dry_run else 'has'} the host key {node.host_key}, and stays {node.state}")
        if dry_run:
            risks(name, ["the host that has this key is tested under this name until its serials are read"])


@messages
def confirm(
    name: Name,
    serial: Annotated[str, typer.Argument(help="The serial of the part.")],
    reason: Reason,
    board: Annotated[
        bool, typer.Option("--board", help="It is a new main board; no run with it was recorded, and history stays.")
    ] = False,
    who: AsWho = "",
    dry_run: DryRun = False,
) -> None:
    """Record that a part sits in this node, as the node reported, and no longer in another."""
    from muster import store

    with rehearsed(dry_run):
        for each in store.contested.confirm(name, serial, show.person(who), given(reason), board=board):
            if each.until is None:
                typer.echo(f"{serial} {'would sit' if dry_run else 'sits'} in {each.slot} of {each.node}")
        if dry_run:
            risks(name, ["what is known of the part, suspicions included, counts for this node from now on"])


@messages
def unfence(name: Name, reason: Reason, who: AsWho = "", dry_run: DryRun = False) -> None:
    """Let a node accept jobs again after the records were restored: raise their fencing token above the node's."""
    from muster import store
    from muster.cli.node import check

    store.nodes.get(name)
    seen = check.fence_of(check.target(name, 22, "", ""))
    with rehearsed(dry_run):
        before = store.leases.raise_fence(name, seen, show.person(who), given(reason))
        typer.echo(f"{name} has seen the fencing token {seen}, the records {before}; the next is higher than both")
        if dry_run:
            risks(name, ["if another controller tests it too, each ends the other's tests"])


def part(
    serial: Annotated[str, typer.Argument(help="The serial of a part, or of a machine.")], json: AsJson = False
) -> None:
    """Show where a part was installed, and every run it took part in."""
    from muster import store

    places, runs = store.parts.history(serial), store.parts.runs_of(serial)
    if json:
        show.as_json({"places": places, "runs": runs})
        return
    show.table(
        ["part", "node", "slot", "since", "until"],
        [[each.kind, each.node, each.slot, show.when(each.since), show.when(each.until) if each.until else ""]
         for each in places],
        empty=f"no part with serial {serial} is recorded",
    )  # fmt: skip
    typer.echo()
    rows = [[run.run_id, run.node, run.verdict or "", show.when(run.started_at), run.headline] for run in runs]
    show.table(["run", "node", "verdict", "began", "headline"], rows, empty="no runs yet")


def _bmc(text: str) -> dict[str, Any] | None:
    """The described BMC, {} for none; None if the option is not given."""
    from muster.remote.bmc.bmc import parse_bmc

    if not text:
        return None
    try:
        described = dict(json.loads(text))
        parse_bmc(described)
    except (ValueError, TypeError, RecursionError):
        raise MusterError('--bmc takes JSON, as {"url": "https://10.0.0.7", "connection": "bmc"}') from None
    return described


def _serials(pairs: list[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    if not all(equals and slot.strip() and serial.strip() for slot, equals, serial in split):
        raise MusterError("--serial takes SLOT=SERIAL, for example --serial system=S411823X")
    return {slot.strip(): serial.strip() for slot, _, serial in split}
