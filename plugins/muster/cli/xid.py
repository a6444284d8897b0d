"""``muster xid``: policies for the errors of the GPU driver, shown and compared on the records."""

from __future__ import annotations

import collections
import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.terminal import policies, show
from muster.cli.terminal.options import AsJson
from muster.errors import MusterError
from muster.settings import settings

if TYPE_CHECKING:
    from muster.judging.xid_history import Comparison, FinalResponse
    from muster_criteria.xid.policy import XidPolicy

app = typer.Typer(no_args_is_help=True)

DEFAULT = "nvidia-xid"
Policy = Annotated[str, typer.Option(help="A policy's name, or the path of its file.")]


@app.command("show")
def show_(
    code: Annotated[int | None, typer.Argument(help="Only this code.")] = None,
    policy: Policy = DEFAULT,
    json: AsJson = False,
) -> None:
    """Show a policy: for each code its meaning, severity, action and source, and why where others disagree."""
    table = load(policy)
    entries = [entry for entry in table.entries if code is None or code in entry.codes]
    if not entries:
        raise MusterError(
            f"policy {table.cited} has no code {code}: it would be {table.entry('xid', code or 0).severity}"
        )
    if json:
        show.as_json({"policy": table.cited, "entries": [entry.model_dump(mode="json") for entry in entries]})
        return
    rows = [
        [f"{entry.kind.upper()} {number}", entry.severity, entry.action, entry.meaning, entry.why,
         f"{table.sources[entry.source].text} ({table.sources[entry.source].date})"]
        for entry in entries for number in entry.codes if code in (None, number)
    ]  # fmt: skip
    typer.echo(f"{table.title}: {table.cited}")
    show.table(["code", "severity", "do", "meaning", "why", "source"], rows, empty="the policy is empty")


@app.command("compare")
def compare(
    policy: Annotated[str, typer.Argument(help="The other policy: its name, or the path of its file.")],
    against: Annotated[str, typer.Option(help="Compare with this policy instead of that of each node's SKU.")] = "",
    node: Annotated[str, typer.Option(help="Only this node.")] = "",
    since: Annotated[datetime.datetime | None, typer.Option(help="Only what was recorded since then (UTC).")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show errors too on which both policies agree.")] = False,
    json: AsJson = False,
) -> None:
    """Show what another policy would have done about every XID in the records. Changes nothing."""
    from muster import store
    from muster.judging import xid_history

    if node:
        store.nodes.get(node)
    recorded = store.xids.recorded(node=node)
    skus = sorted({record.sku for record in recorded})
    before = {sku: load(against) if against else _of_sku(sku) for sku in skus}
    # What came before ``since`` is not shown, but an error that came back since then may have begun there.
    first = (since or datetime.datetime.min).replace(tzinfo=datetime.UTC)
    compared = [each for each in xid_history.compare(recorded, before, load(policy)) if each.record.seen_at >= first]
    shown = [each for each in compared if everything or each.changed]
    if json:
        show.as_json([_plain(each) for each in shown])
        return
    show.table(
        ["recorded", "node", "run", "stage", "device", "error", "then", "now", "meaning"],
        [
            [show.when(each.record.seen_at), each.record.node, each.record.run_id, each.record.stage,
             each.record.event.device, each.record.event.name,
             _response(each.before) if each.before else "no policy", _response(each.after), each.after.meaning]
            for each in shown
        ],
        empty="both policies agree on every error in the records" if compared else "no XIDs are recorded",
    )  # fmt: skip
    _summary(compared)


def _summary(compared: list[Comparison]) -> None:
    if not compared:
        return
    graver = sum(each.graver for each in compared)
    changed = sum(each.changed for each in compared)
    by_severity = collections.Counter(str(each.after.severity) for each in compared)
    typer.echo(
        f"{len(compared)} errors: {changed} would be treated differently, {graver} of them as more severe; in all "
        + ", ".join(f"{count} {severity}" for severity, count in sorted(by_severity.items()))
    )


def _response(response: FinalResponse) -> str:
    returned = f", back in {response.boots} boots" if response.boots else ""
    return f"{response.severity} ({response.action}{returned})"


def _plain(each: Comparison) -> dict[str, object]:
    record = each.record
    return {
        "recorded": record.seen_at, "node": record.node, "run": record.run_id, "stage": record.stage,
        "device": record.event.device, "pci": record.event.pci, "kind": record.event.kind, "code": record.event.code,
        "text": record.event.text, "count": record.event.count, "changed": each.changed,
        "before": None if each.before is None else [each.before.severity, each.before.action],
        "after": [each.after.severity, each.after.action], "meaning": each.after.meaning, "source": each.after.source,
        "boots": [each.before.boots if each.before else 0, each.after.boots],
    }  # fmt: skip


def load(named: str) -> XidPolicy:
    """A policy by name, or by its file's path. Raises MusterError."""
    from muster_criteria.xid.policy import XidPolicy

    return policies.load(XidPolicy, named)[0]


def _of_sku(name: str) -> XidPolicy | None:
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import load_sku

    try:
        return load_sku(name, settings().sku_folders).xid_policy
    except SkuError as error:
        raise MusterError(str(error)) from None
