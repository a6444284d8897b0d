"""``muster settings``: every MUSTER_* variable."""

from __future__ import annotations

import difflib
import json as jsons
import os
import re
from typing import Any

import pydantic

from muster import redaction
from muster.cli.terminal import show
from muster.cli.terminal.options import AsJson
from muster.settings import Settings, settings

_OTHERS = re.compile(
    "BMC_.+"  # passwords of BMCs, which the records name
    "|PRELOAD|DEMO_DIRECTORY"
    "|BOOT_ID_FILE|DCGM_CONF|EPILOG_CONF|FENCE|HARDWARE|RUN|SIMULATED_MACHINE|WORK"  # of nodes
    r"|.+_SERVICE_(HOST|PORT\w*)|.+_PORT(_\d+_\w+)?"  # Kubernetes sets them for a service named muster-…
)
"""Variables named MUSTER_… that are not settings."""


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


def unknown() -> dict[str, str]:
    """{variable: the setting with the closest name, "" if none is close} of each MUSTER_* that nothing reads."""
    known = [name.upper() for name in Settings.model_fields]
    found = {}
    for name in sorted(os.environ):
        prefix, _, rest = name.upper().partition("_")
        if prefix == "MUSTER" and rest not in known and not _OTHERS.fullmatch(rest):
            near = difflib.get_close_matches(rest, known, n=1)
            found[name] = f"MUSTER_{near[0]}" if near else ""
    return found


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
