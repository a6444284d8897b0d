"""``muster device-events``: policies for drivers' errors and kernel messages, shown and compared on the records."""

from __future__ import annotations

import collections
import datetime
import re
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.policies import policies
from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson, utc
from muster.errors import MusterError, of_sku_files
from muster.settings import settings

if TYPE_CHECKING:
    from muster.judging.event_history import Comparison, FinalResponse
    from muster_criteria.device_events.policy import EventPolicy

app = typer.Typer()

TEXT_MAX = 100


@app.command("show")
def show_(
    policy: Annotated[str, typer.Argument(help="The policy's name, or the path of its file.")],
    event: Annotated[str, typer.Argument(help="Only the entry of this code, or by which this message is read.")] = "",
    json: AsJson = False,
) -> None:
    """Show a policy: for each event its meaning, severity, action and source, and why where others disagree."""
    table = load(policy)
    code = int(event) if event.isdecimal() else None
    entries = [entry for entry in table.entries if not event or entry.fits(code, event)]
    if not entries:
        unknown = table.entry(table.kinds[0], code, event)
        raise MusterError(f"policy {table.cited} does not know {event}: it would be {unknown.severity}")
    entries = entries if code is not None or not event else entries[:1]
    if json:
        show.as_json({"policy": table.cited, "entries": [entry.model_dump(mode="json") for entry in entries]})
        return
    rows = [
        [f"{entry.kind.upper()} {name}" if entry.codes else str(name), entry.severity, entry.action, entry.meaning,
         entry.when, entry.why, f"{table.sources[entry.source].text} ({table.sources[entry.source].date})"]
        for entry in entries for name in (entry.codes or (entry.name,)) if code is None or code == name
    ]  # fmt: skip
    typer.echo(f"{table.title}: {table.cited}")
    show.table(["event", "severity", "do", "meaning", "when", "why", "source"], rows, empty="the policy is empty")


@app.command("compare")
def compare(
    policy: Annotated[str, typer.Argument(help="The other policy: its name, or the path of its file.")],
    against: Annotated[str, typer.Option(help="Compare with this policy instead of that of each node's SKU.")] = "",
    node: Annotated[str, typer.Option(help="Only this node.")] = "",
    since: Annotated[datetime.datetime | None, typer.Option(help="Only what was recorded since then (UTC).")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show events too on which both policies agree.")] = False,
    json: AsJson = False,
) -> None:
    """Show what another policy would have done about every recorded event of its kinds. Changes nothing."""
    from muster import store
    from muster.judging import event_history
    from muster_criteria.device_events.judge import name_of

    if node:
        store.nodes.get(node)
    recorded = store.device_events.recorded(node=node)
    skus = sorted({record.sku for record in recorded})
    after = load(policy)
    before = {sku: load(against) if against else _of_sku(sku, after) for sku in skus}
    # What came before ``since`` is not shown, but an error that came back since then may have begun there.
    first = utc(since) if since else datetime.datetime.min.replace(tzinfo=datetime.UTC)
    compared = [each for each in event_history.compare(recorded, before, after) if each.record.seen_at >= first]
    shown = [each for each in compared if everything or each.changed]
    if json:
        show.as_json([_plain(each) for each in shown])
        return
    show.table(
        ["recorded", "node", "run", "stage", "device", "event", "text", "then", "now", "meaning"],
        [
            [show.when(each.record.seen_at), each.record.node, each.record.run_id, each.record.stage,
             each.record.event.device, name_of(each.record.event, each.after), each.record.event.text[:TEXT_MAX],
             _response(each.before) if each.before else "no policy", _response(each.after), each.after.meaning]
            for each in shown
        ],
        empty="both policies agree on every event in the records" if compared else "no such events are recorded",
    )  # fmt: skip
    _summary(compared)


def _summary(compared: list[Comparison]) -> None:
    if not compared:
        return
    graver = sum(each.graver for each in compared)
    changed = sum(each.changed for each in compared)
    by_severity = collections.Counter(str(each.after.severity) for each in compared)
    typer.echo(
        f"{len(compared)} events: {changed} would be treated differently, {graver} of them as more severe; in all "
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
        "text": record.event.text, "count": record.event.count, "during": record.during, "changed": each.changed,
        "before": None if each.before is None else list(each.before.decision), "after": list(each.after.decision),
        "meaning": each.after.meaning, "source": each.after.source,
        "boots": [each.before.boots if each.before else 0, each.after.boots],
    }  # fmt: skip


def load(named: str) -> EventPolicy:
    """A policy by name, or by its file's path. Raises MusterError."""
    from muster_criteria.device_events.policy import EventPolicy

    table, where = policies.load(EventPolicy, named)
    _check_sent(table, where)
    return table


def _check_sent(table: EventPolicy, where: str) -> None:
    """Raises MusterError for an example that no node would send if its log tells no priorities."""
    from muster_criteria.device_events.policy import EventSeverity
    from muster_node.hardware.host.kernel_events import parse_events

    for entry in table.entries:
        for example in entry.examples:
            lines = [re.sub(r"^<\d+>", "", line) for line in example.splitlines()]
            if entry.severity is not EventSeverity.IGNORE and len(parse_events(lines)) != 1:
                raise MusterError(f"{where}: {entry.name}: nodes do not send {example[:80]!r} as one message.")


def _of_sku(name: str, like: EventPolicy) -> EventPolicy | None:
    """The SKU's policy for the kinds of ``like``. Raises MusterError."""
    from muster_criteria.device_events.policy import policy_of
    from muster_criteria.sku_files.skus import load_sku

    with of_sku_files():
        return policy_of(load_sku(name, settings().sku_folders).event_policies, like.kinds[0])
