"""What is shown of a text that may hold a secret: one rule for settings, errors, history and the audit stream.

An address keeps its scheme, host and port, and loses its login, path and query: receivers such as chat webhooks have
their secret there. A value under a name that stands for a secret, or of an environment, is masked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "********"

_ADDRESS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?:[^\s/?#'\"@]*@)?(?P<place>[^\s/?#'\"]*)(?P<rest>[^\s'\"]*)"
)
_SECRET = re.compile(
    r"(?i)^(env|headers?)$|(^|_)(password|passphrase|secret|token|api_?key|private_key|authorization)s?$"
)


def of_text(text: str) -> str:
    """Returns ``text`` with each address in it shortened to where it leads."""
    return _ADDRESS.sub(lambda found: f"{found['scheme']}://{found['place']}{'/…' if found['rest'] else ''}", text)


def of_value(value: Any, name: str = "") -> Any:
    """Returns ``value`` as JSON has it, texts as ``of_text`` gives them, what stands under the name of a secret masked.

    ``name``: the one that ``value`` itself stands under.
    """
    if name and _SECRET.search(name) and value not in (None, "", [], {}):
        return dict.fromkeys(value, MASK) if isinstance(value, Mapping) else MASK
    if isinstance(value, Mapping):
        return {key: of_value(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [of_value(each) for each in value]
    return of_text(value) if isinstance(value, str) else value
