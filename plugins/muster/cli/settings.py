"""``muster settings``: every MUSTER_* variable."""

from __future__ import annotations

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson
from muster.settings import settings, shown


def show_settings(json: AsJson = False) -> None:
    """Show every setting: its variable, its value (secrets masked), what it is for. Empty means its default."""
    rows = shown(settings())
    if json:
        show.as_json({name: value for name, value, _ in rows})
    else:
        show.table(["variable", "value", "what it is"], rows, empty="there are no settings")
