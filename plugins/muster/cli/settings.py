"""``muster settings``: every MUSTER_* variable."""

from __future__ import annotations

import json as jsons
import re
from typing import Any

import pydantic

from muster import redaction
from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson
from muster.settings import Settings, settings, unknown


def show_settings(json: AsJson = False) -> None:
    """Show every setting: its variable, its value (secrets masked), what it is for. Empty means its default."""
    rows = shown(settings())
    for name, near in unknown().items():
        rows.append((name, "", f"nothing reads it{f': did you mean {near}?' if near else ''}"))
    values = {name: value for name, value, _ in rows}
    show.answer(values, ["variable", "value", "what it is"], rows, json=json, empty="there are no settings")


def shown(current: Settings) -> list[tuple[str, str, str]]:
    """(variable, value, description) of every setting; secrets are masked."""
    return [
        (f"MUSTER_{name.upper()}", _masked(getattr(current, name)), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


def _masked(value: Any) -> str:
    if isinstance(value, pydantic.SecretStr):
        return "********" if value.get_secret_value() else ""
    if isinstance(value, dict | list):
        return jsons.dumps(redaction.of_value(value)) if value else ""
    text = "" if value is None else str(value)
    if "://" not in text:
        return text
    text = re.sub(r"(?<=[?&])([^=&]+)=([^&]+)", lambda each: f"{each[1]}={redaction.of_value(each[2], each[1])}", text)
    scheme, _, rest = text.partition("://")
    login, at, place = rest.rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}://{user}{':********' if colon else ''}{at}{place}"
