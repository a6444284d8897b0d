"""``muster health``: the policy for what is observed between tests, shown, and another one replayed on the records."""

from __future__ import annotations

import collections
import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.policies import policies
from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson, utc

if TYPE_CHECKING:
    from muster.rules.service.replay import Replayed
    from muster_criteria.health.policy import Entry, HealthPolicy

app = typer.Typer()

POLICY = "health"


@app.command("show")
def show_(
    policy: Annotated[str, typer.Argument(help="The policy's name, or the path of its file.")] = POLICY,
    check: Annotated[str, typer.Option(help="Only the entries that know this check, such as xid/79.")] = "",
    json: AsJson = False,
) -> None:
    """Show a policy: for each kind of check the conditions, what follows, its source, and why."""
    table = load(policy)
    entries = [entry for entry in table.entries if not check or entry.knows(check)]
    if json:
        show.as_json({"policy": table.cited, "entries": [entry.model_dump(mode="json") for entry in entries]})
        return
    times = f"over after {table.stable_s:g} s, bring-up {table.bring_up_s:g} s"
    typer.echo(f"{table.title}: {table.cited}; mode {table.mode}, {times}")
    rows = [
        [", ".join(entry.checks), _conditions(entry), entry.action, entry.why, table.sources[entry.source].text]
        for entry in entries
    ]
    empty = f"no entry knows {check}: it would be noted, and nothing else follows" if check else "the policy is empty"
    show.table(["checks", "when", "do", "why", "source"], rows, empty=empty)


@app.command("compare")
def compare(
    policy: Annotated[str, typer.Argument(help="The other policy: its name, or the path of its file.")],
    against: Annotated[str, typer.Option(help="Compare with this policy instead of the one in force.")] = POLICY,
    node: Annotated[str, typer.Option(help="Only this node.")] = "",
    since: Annotated[datetime.datetime | None, typer.Option(help="Only what was seen since then (UTC).")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show what both policies treat alike too.")] = False,
    json: AsJson = False,
) -> None:
    """Show what another policy would have done about every observation in the records. Changes nothing."""
    from muster import store
    from muster.rules.service import replay

    if node:
        store.nodes.get(node)
    first = utc(since) if since else datetime.datetime.min.replace(tzinfo=datetime.UTC)
    seen = store.health.recorded(first, node)
    nodes = {each.name: each for each in store.nodes.find()}
    found = replay.replay(seen, nodes, load(against), load(policy))
    shown = [each for each in found if everything or each.changed]
    if json:
        show.as_json(shown)
        return
    show.table(
        ["seen last", "node", "observed", "then", "now"],
        [[show.when(each.seen.last_seen), each.seen.node, each.seen.sentence, each.before, each.after]
         for each in shown],
        empty="both policies agree on every observation in the records" if found else "nothing was observed",
    )  # fmt: skip
    _summary(found)


def _summary(found: list[Replayed]) -> None:
    if not found:
        return
    after = collections.Counter(str(each.after) for each in found)
    then = {each.seen.node for each in found if each.before.leaves}
    now = {each.seen.node for each in found if each.after.leaves}
    typer.echo(
        f"{len(found)} observations: {sum(each.changed for each in found)} would be treated differently, "
        f"{sum(each.graver for each in found)} of them as more severe; {len(then)} nodes had a reason to leave "
        f"service, {len(now)} would have; in all "
        + ", ".join(f"{count} {what}" for what, count in sorted(after.items()))
    )


def _conditions(entry: Entry) -> str:
    said = [
        f"severity {', '.join(entry.severity)}" if entry.severity else "",
        _times(entry) if entry.at_least > 1 else "",
        f"bad for {entry.bad_for_s:g} s" if entry.bad_for_s else "",
        f"{entry.flaps} flaps" if entry.flaps else "",
        f"{entry.per_hour:g} an hour" if entry.per_hour else "",
    ]
    return ", ".join(filter(None, said))


def _times(entry: Entry) -> str:
    return f"seen {entry.at_least} times{f' within {entry.within_s:g} s' if entry.within_s else ''}"


def load(named: str) -> HealthPolicy:
    """A policy by name, or by its file's path. Raises MusterError."""
    from muster_criteria.health.policy import HealthPolicy

    return policies.load(HealthPolicy, named)[0]
