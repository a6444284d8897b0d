"""``muster device-events``: policies for drivers' errors and kernel messages, shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.policies import policies
from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson
from muster.errors import MusterError

if TYPE_CHECKING:
    from muster_criteria.device_events.policy import EventPolicy

app = typer.Typer()


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


def load(named: str) -> EventPolicy:
    """A policy by name, or by its file's path. Raises MusterError."""
    from muster_criteria.device_events.policy import EventPolicy

    table, where = policies.load(EventPolicy, named)
    _check_sent(table, where)
    return table


def _check_sent(table: EventPolicy, where: str) -> None:
    """Raise MusterError for an example that nodes would not send as one message from a log without priorities."""
    from muster_criteria.device_events.policy import EventSeverity
    from muster_node.hardware.host.kernel_events import parse_events

    for entry in table.entries:
        for example in entry.examples:
            lines = [re.sub(r"^<\d+>", "", line) for line in example.splitlines()]
            if entry.severity is not EventSeverity.IGNORE and len(parse_events(lines)) != 1:
                raise MusterError(f"{where}: {entry.name}: nodes do not send {example[:80]!r} as one message.")
