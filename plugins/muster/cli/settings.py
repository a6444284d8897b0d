"""``muster settings``: every MUSTER_* variable."""

from __future__ import annotations

from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson
from muster.settings import settings, shown, unknown


def show_settings(json: AsJson = False) -> None:
    """Show every setting: its variable, its value (secrets masked), what it is for. Empty means its default."""
    rows = shown(settings())
    for name, near in unknown().items():
        rows.append((name, "", f"nothing reads it{f': did you mean {near}?' if near else ''}"))
    values = {name: value for name, value, _ in rows}
    show.answer(values, ["variable", "value", "what it is"], rows, json=json, empty="there are no settings")
