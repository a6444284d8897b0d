"""The settings by group, from their pydantic declarations."""

from __future__ import annotations

from typing import Any

import pydantic
import pydantic_settings

from muster.settings import Settings
from tests.docs.reference.markdown import code, head, table

ABOUT = """Each is an environment variable of all components. `muster settings` shows the values that a command sees;
services keep those that they were started with. An empty variable counts as unset. A default of `{}` or `[]` is JSON;
without one the setting is empty. A time is at most a century, one in seconds at most a day; any other
number is at most a billion. Paths are absolute; `~` is expanded, except in `MUSTER_SHARED_PATH`."""
UNITS = {
    "_s": "s",
    "seconds": "s",
    "minutes": "min",
    "hours": "h",
    "days": "d",
    "_kw": "kW",
    "share": "of 1",
    "score": "failures",
}
GROUPS: list[Any] = [base for base in reversed(Settings.__bases__) if base is not pydantic_settings.BaseSettings]
"""The settings by what they are about; the first words of each docstring are its title."""
COUNTS = ("slots", "nodes", "fleet")


def unit(name: str) -> str:
    """The unit by the end of the name, "" for a text or a choice. Hours and days may be fractions."""
    counted = "nodes" if name.endswith(COUNTS) else ""
    return next((shown for ending, shown in UNITS.items() if name.endswith(ending)), counted)


def page() -> str:
    """docs/reference/settings.md."""
    parts = [head("Settings", ABOUT)]
    for group in GROUPS:
        title, _, about = (group.__doc__ or "").partition(": ")
        rows = [
            (code(f"MUSTER_{name.upper()}"), code(_shown(field.default)), unit(name), field.description or "")
            for name, field in group.model_fields.items()
        ]
        parts.append(f"\n## {title}\n\n{about[:1].upper()}{about[1:]}\n\n")
        parts.append(table(("variable", "default", "unit", "meaning"), rows))
    return "".join(parts)


def _shown(default: object) -> str:
    if isinstance(default, pydantic.SecretStr):
        default = default.get_secret_value()
    return "" if default in (None, "") else str(default)
