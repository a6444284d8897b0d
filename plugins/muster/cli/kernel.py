"""``muster kernel``: policies for the kernel's messages, shown and compared on the records."""

from __future__ import annotations

import collections
import re
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.terminal import policies, show
from muster.cli.terminal.options import AsJson
from muster.errors import MusterError
from muster.settings import settings

if TYPE_CHECKING:
    from muster.model.statistics import RecordedKernelEvent
    from muster_criteria.kernel.policy import KernelPolicy, Response

app = typer.Typer(no_args_is_help=True)

DEFAULT = "kernel"
TEXT_MAX = 100
Policy = Annotated[str, typer.Option(help="A policy's name, or the path of its file.")]


@app.command("show")
def show_(
    message: Annotated[str, typer.Argument(help="Only the entry by which this message is read.")] = "",
    policy: Policy = DEFAULT,
    json: AsJson = False,
) -> None:
    """Show a policy: for each kind of message its meaning, severity, action and source."""
    table = load(policy)
    entries = [entry for entry in table.entries if not message or entry is table.entry(message)]
    if json:
        show.as_json({"policy": table.cited, "entries": [entry.model_dump(mode="json") for entry in entries]})
        return
    rows = [
        [entry.name, entry.severity, entry.action, entry.meaning, entry.when,
         f"{table.sources[entry.source].text} ({table.sources[entry.source].date})"]
        for entry in entries
    ]  # fmt: skip
    typer.echo(f"{table.title}: {table.cited}")
    show.table(["kind", "severity", "do", "meaning", "when", "source"], rows, empty="no entry knows this message")


@app.command("compare")
def compare(
    policy: Annotated[str, typer.Argument(help="The other policy: its name, or the path of its file.")],
    against: Annotated[str, typer.Option(help="Compare with this policy instead of that of each node's SKU.")] = "",
    node: Annotated[str, typer.Option(help="Only this node.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Show messages too on which both policies agree.")] = False,
    json: AsJson = False,
) -> None:
    """Show what another policy would have done about every kernel message in the records. Changes nothing."""
    from muster import store
    from muster_criteria.kernel.policy import response_to

    if node:
        store.nodes.get(node)
    recorded = store.kernel_events.recorded(node=node)
    after = load(policy)
    before = {sku: load(against) if against else _of_sku(sku) for sku in sorted({each.sku for each in recorded})}
    compared = [
        (each, response_to(each.event, each.during, before[each.sku]), response_to(each.event, each.during, after))
        for each in recorded
    ]
    changed = [(each, then, now) for each, then, now in compared if _decision(then) != _decision(now)]
    shown = compared if everything else changed
    if json:
        show.as_json([_plain(*each) for each in shown])
        return
    show.table(
        ["recorded", "node", "run", "stage", "device", "message", "then", "now"],
        [
            [show.when(each.seen_at), each.node, each.run_id, each.stage, each.event.device,
             each.event.text[:TEXT_MAX], _response(then), _response(now)]
            for each, then, now in shown
        ],
        empty="both policies agree on every message in the records" if compared else "no kernel messages are recorded",
    )  # fmt: skip
    if compared:
        severities = collections.Counter(str(now.severity) for _, _, now in compared)
        listed = ", ".join(f"{count} {severity}" for severity, count in sorted(severities.items()))
        typer.echo(f"{len(compared)} messages: {len(changed)} would be treated differently; in all {listed}")


def _decision(response: Response) -> tuple[str, str, str]:
    return response.name, response.severity, response.action


def _response(response: Response) -> str:
    return f"{response.name}: {response.severity} ({response.action})"


def _plain(each: RecordedKernelEvent, then: Response, now: Response) -> dict[str, object]:
    return {
        "recorded": each.seen_at, "node": each.node, "run": each.run_id, "stage": each.stage,
        "device": each.event.device, "pci": each.event.pci, "text": each.event.text, "count": each.event.count,
        "during": each.during, "changed": _decision(then) != _decision(now),
        "before": list(_decision(then)), "after": list(_decision(now)), "source": now.source,
    }  # fmt: skip


def load(named: str) -> KernelPolicy:
    """A policy by name, or by its file's path. Raises MusterError."""
    from muster_criteria.kernel.policy import KernelPolicy

    table, where = policies.load(KernelPolicy, named)
    _check_sent(table, where)
    return table


def _check_sent(table: KernelPolicy, where: str) -> None:
    """Raises MusterError for an example that no node would send if its log tells no priorities."""
    from muster_criteria.xid.policy import XidSeverity
    from muster_node.hardware.host.kernel_events import parse_events

    for entry in table.entries:
        for example in entry.examples:
            lines = [re.sub(r"^<\d+>", "", line) for line in example.splitlines()]
            if entry.severity is not XidSeverity.IGNORE and len(parse_events(lines)) != 1:
                raise MusterError(f"{where}: {entry.name}: nodes do not send {example[:80]!r} as one message.")


def _of_sku(name: str) -> KernelPolicy:
    from muster_criteria.sku_files.model import SkuError
    from muster_criteria.sku_files.skus import load_sku

    try:
        return load_sku(name, settings().sku_folders).kernel_policy
    except SkuError as error:
        raise MusterError(str(error)) from None
