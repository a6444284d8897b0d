"""The settings, from their pydantic declarations."""

from __future__ import annotations

import pydantic

from muster.settings import Settings
from tests.docs.reference.markdown import code, head, table

ABOUT = """Each is an environment variable of all components. `muster settings` shows the values in force. A default
of `{}` or `[]` is JSON."""


def page() -> str:
    """docs/reference/settings.md."""
    rows = []
    for name, field in Settings.model_fields.items():
        rows.append((code(f"MUSTER_{name.upper()}"), code(_shown(field.default)), field.description or ""))
    return head("Settings", ABOUT) + "\n" + table(("variable", "default", "meaning"), rows)


def _shown(default: object) -> str:
    if isinstance(default, pydantic.SecretStr):
        default = default.get_secret_value()
    return "" if default in (None, "") else str(default)
