"""``muster node lemons``: nodes that fail again and again."""

from __future__ import annotations

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson


def lemons(json: AsJson = False) -> None:
    """List the nodes that are marked as lemons, and those that failed in service twice or more, the likeliest first."""
    from muster import store
    from muster.rules import lemons as rules
    from muster.rules.spares import PERIOD

    now = store.clock.now()
    found = rules.offenders(store.failures.since(now - PERIOD), store.nodes.find(), now)
    if json:
        show.as_json(found)
        return
    show.table(
        ["node", "score", "failures", "of", "the last", "mark"],
        [
            [each.node, f"{each.score:.2f}", each.times, each.groups, show.when(each.last) if each.last else "",
             each.mark]
            for each in found
        ],
        empty="no node is marked, and none failed in service twice in the year with its parts still in place",
    )  # fmt: skip
