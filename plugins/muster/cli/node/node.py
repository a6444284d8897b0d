"""``muster node``: enrol, check and show nodes."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.doctor import connections
from muster.cli.terminal import show
from muster.cli.terminal.dry import DryRun, rehearsed, stated
from muster.cli.terminal.messages import messages
from muster.cli.terminal.options import AsJson, Name, check_sku
from muster.errors import MusterError, UnknownNode
from muster.model.nodes import Lease, Node
from muster.model.states import State
from muster.settings import settings

if TYPE_CHECKING:
    from muster_criteria.context.waivers import Waiver

app = typer.Typer()

OBSERVED_MAX = 20
"""Open observations that `muster node show` lists, the latest ones; the others are only counted."""
PARTS_MAX = 500


@app.command("add")
@messages
def add(
    host: Annotated[
        str, typer.Argument(help="Host name or address; or a known node's name alone, which keeps its address.")
    ],
    sku: Annotated[str, typer.Option(help="Its hardware model, one of `muster sku list`; a new node needs it.")] = "",
    name: Annotated[str, typer.Option(help="Its name; default: the host.")] = "",
    port: Annotated[int | None, typer.Option(help="SSH port; default: 22.")] = None,
    user: Annotated[str | None, typer.Option(help="SSH user; '': the SSH connection's, the default.")] = None,
    host_key: Annotated[str, typer.Option(help="'TYPE BASE64' to pin; default: the key that answers now.")] = "",
    rack: Annotated[str | None, typer.Option(help="Its rack; '': none.")] = None,
    pool: Annotated[
        str | None,
        typer.Option(help="The Airflow pool that bounds how many such nodes are qualified at once; '': the default."),
    ] = None,
    work_dir: Annotated[str | None, typer.Option(help="Muster's folder on the node; default: ~/.muster.")] = None,
    launch: Annotated[
        str | None, typer.Option(help="How the node side is started, as JSON; '': by its python3, the default.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="NAME=TEXT; may be repeated; NAME= removes it.")] = None,
    bmc: Annotated[
        str | None, typer.Option(help="Its BMC (Redfish), as JSON, see docs/deploying.md; '': none.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Enrol one node under the host key that answers now. For a known node, only what is named changes."""
    from muster import store
    from muster.enrolment import inventory
    from muster.enrolment.known import pinned, skus

    called = name or host
    if any(";" in each for each in label or ()):
        raise MusterError("a label has no ';': give --label once for each NAME=TEXT")
    known = _known(called)
    if known is None and not sku:
        raise MusterError(f"no node {called!r} is enrolled: to enrol it, give --sku, one of `muster sku list`")
    if known is not None:
        host, port, sku = host if name else known.host, port or known.port, sku or known.sku
    row: dict[str, object] = {
        "name": called, "host": host, "port": port, "user": user, "sku": sku,
        "host_key": host_key or None, "rack": rack, "pool": pool, "work_dir": work_dir, "launch": launch,
        "labels": ";".join(label) if label else None, "bmc": bmc,
    }  # fmt: skip
    lines = pinned(inventory.one(row, skus()), connections.credentials)
    found = [(at, dataclasses.replace(new, adds_labels=True)) for at, new in lines]
    with rehearsed(dry_run):
        outcomes = store.nodes.add_all(found, actor=settings().who)
        for enrolled, outcome in outcomes.items():
            stated(enrolled, outcome, dry_run)
    _refuse_left_out(outcomes)


@app.command("import")
@messages
def import_(
    file: Annotated[
        Path, typer.Argument(help="YAML with a list `nodes`, or CSV with a header line; - is standard input.")
    ],
    dry_run: DryRun = False,
) -> None:
    """Enrol all nodes of an inventory, or none if any line is wrong. Known nodes need not answer.

    What a run holds, and would be reached, started or read otherwise, is left out and named, with status 1.
    """
    from muster import store
    from muster.enrolment import inventory
    from muster.enrolment.known import pinned, skus

    found = pinned(inventory.load(file, skus()), connections.credentials)
    with rehearsed(dry_run):
        outcomes = store.nodes.add_all(found, actor=settings().who)
        for known, outcome in outcomes.items():
            if outcome.startswith(("updated", store.nodes.LEFT_OUT)):
                stated(known, outcome, dry_run)
        counts = collections.Counter(outcome.partition(":")[0] for outcome in outcomes.values())
        would = "would be " if dry_run else ""
        words = (word for word in ("added", "updated", "unchanged", store.nodes.LEFT_OUT) if counts[word])
        typer.echo(", ".join(f"{counts[word]} {would}{word}" for word in words))
    _refuse_left_out(outcomes)


def _refuse_left_out(outcomes: Mapping[str, str]) -> None:
    from muster import store

    if any(outcome.startswith(store.nodes.LEFT_OUT) for outcome in outcomes.values()):
        raise typer.Exit(1)


@app.command("list")
def list_(
    state: Annotated[list[State] | None, typer.Option(help="Only nodes in this state; may be repeated.")] = None,
    sku: Annotated[str, typer.Option(help="Only this hardware model.")] = "",
    rack: Annotated[str, typer.Option(help="Only this rack.")] = "",
    json: AsJson = False,
) -> None:
    """List the nodes."""
    from muster import store

    nodes = store.nodes.find(states=state or (), sku=sku, rack=rack)
    if sku and not nodes:
        check_sku(sku)
    leased = {lease.node: lease.run_id for lease in store.leases.live()}
    if json:
        show.as_json([{**vars(node), "leased_by": leased.get(node.name, "")} for node in nodes])
        return
    show.table(
        ["node", "state", "sku", "rack", "address", "answered", "leased by", ""],
        [
            [node.name, node.state, node.sku, node.rack, f"{node.host}:{node.port}", show.age(node.contact_at),
             leased.get(node.name, ""),
             _marks(node)]
            for node in nodes
        ],
        empty="no such nodes" if state or sku or rack else show.NO_NODES,
    )  # fmt: skip


@app.command("show")
def show_(name: Name, json: AsJson = False) -> None:
    """Show one node: its state, parts, open findings, observations between tests and last runs."""
    from muster import store

    node, lease = store.nodes.get(name), store.leases.get(name)
    parts, runs = store.parts.of_node(name, PARTS_MAX), store.runs.find(node=name, limit=10, this_machine=True)
    waivers, findings = store.waivers.find(node=name), store.verdicts.open_findings(name)
    observed, bmc_read_at = store.health.of_node(name, None, lasting=True), store.bmcs.cursors([name])[name].read_at
    if json:
        show.as_json({
            "node": node, "lease": lease, "parts": parts, "runs": runs, "waivers": waivers, "findings": findings,
            "observations": observed, "bmc_read_at": bmc_read_at,
        })  # fmt: skip
        return
    why_held = store.runs.get(node.held_run, node=name).why_held if node.held_run else ""
    _show_facts(node, lease, waivers, bmc_read_at, why_held)
    if findings:
        typer.echo()
        show.findings([found.finding for found in findings])
    if observed:
        typer.echo()
        rows = [
            [each.check, each.part, each.value, each.count, show.when(each.first_seen), show.when(each.last_seen),
             each.source, each.acted or each.action]
            for each in observed[:OBSERVED_MAX]
        ]  # fmt: skip
        columns = ["observed", "part", "what", "times", "first seen", "last seen", "by", "follows"]
        show.table(columns, rows, empty="")
        if len(observed) > OBSERVED_MAX:
            typer.echo(f"and {len(observed) - OBSERVED_MAX} more: `muster node show {name} --json`")
    sitting = [[part.slot, part.serial, show.when(part.since)] for part in parts if part.until is None]
    typer.echo()
    show.table(["part", "serial", "since"], sitting, empty="no serials are known")
    typer.echo()
    begun = [[run.run_id, run.verdict or "", show.when(run.started_at), run.headline] for run in runs]
    show.table(["run", "verdict", "began", "headline"], begun, empty="no runs yet")


def _show_facts(
    node: Node, lease: Lease | None, waivers: Iterable[Waiver], bmc_read_at: datetime.datetime | None, why_held: str
) -> None:
    show.facts(
        {
            "node": node.name, "state": node.state, "sku": node.sku, "address": f"{node.host}:{node.port}",
            "user": node.user, "host key": node.host_key, "rack": node.rack, "pool": node.pool,
            "labels": dict(node.labels), "launch": dict(node.launch), "work dir": node.work_dir,
            "bmc": dict(node.bmc),
            "simulated": "yes" if node.simulated else "", "enrolled": show.when(node.added_at),
            "replaced": show.when(node.machine_since) if node.machine_since != node.added_at else "",
            "shadow": "tested and reported, never withdrawn: adopted, not verified" if node.shadow else "",
            "held": f"the verdict of {node.held_run}: {why_held}; see `muster status`" if node.held_run else "",
            "tests": node.pause or "",
            "lemon": node.lemon or "",
            "answered": show.when(node.contact_at),
            "BMC read": show.when(bmc_read_at) if node.bmc else "",
            "leased by": f"{lease.run_id} of {lease.dag_id} since {show.when(lease.acquired_at)}" if lease else "",
            "inconclusive": node.inconclusive or "",
            "waived": "; ".join(f"{waiver.finding} ({waiver.observed}) {waiver}" for waiver in waivers),
        }
    )  # fmt: skip


@app.command("history")
def history(name: Name, json: AsJson = False) -> None:
    """Show a node's events."""
    from muster import store

    events = store.nodes.events(name)
    rows = (
        [f"{each.at:%Y-%m-%d %H:%M:%S}", each.to_state if each.from_state != each.to_state else "·", each.actor,
         each.login, each.reason]
        for each in events
    )  # fmt: skip
    show.answer(events, ["at (UTC)", "became", "by", "login", "why"], rows, json=json, empty="no events yet")


@app.command("check")
def check(
    node: Annotated[str, typer.Argument(help="An enrolled node's name, or any host.")],
    port: Annotated[int, typer.Option(help="SSH port, for a host that is not enrolled.")] = 22,
    user: Annotated[str, typer.Option(help="SSH user, for a host that is not enrolled.")] = "",
    launch: Annotated[str, typer.Option(help="How to start the node side, as JSON, if not enrolled.")] = "",
    level: Annotated[
        str, typer.Option(help="The level of the test that is planned: it says what is required.")
    ] = "standard",
    json: AsJson = False,
) -> None:
    """Show everything that is missing on a node for its SKU, privileges included, before anything runs there.

    Uses the login of the tasks: the Airflow connection MUSTER_SSH_CONN_ID. Ends with status 1 if something is missing.
    """
    from muster.cli.node import check as checking

    items = checking.check(checking.target(node, port, user, launch), level)
    show.answer(
        items,
        ["", "what", "needed by", "message"],
        (
            [each.mark, each.item, "" if each.mark == checking.OK else ", ".join(each.needed_by), each.message]
            for each in items
        ),
        json=json,
        empty="nothing was checked",
    )
    if any(each.mark == checking.MISSING for each in items):
        raise typer.Exit(1)


def _known(name: str) -> Node | None:
    from muster import store

    try:
        return store.nodes.get(name)
    except UnknownNode:
        return None


def _marks(node: Node) -> str:
    marks = (
        ("simulated", node.simulated), ("shadow", node.shadow), ("verdict held", node.held_run), ("paused", node.pause),
        ("lemon", node.lemon),
    )  # fmt: skip
    return ", ".join(word for word, it_is in marks if it_is)
