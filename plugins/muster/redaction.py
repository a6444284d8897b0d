"""Redacts texts that may hold a secret, by one rule for settings, errors, history and the audit stream.

An address keeps its scheme, host and port, and loses its login, path and query: receivers such as chat webhooks have
their secret there. A value under a name of a secret or an environment is masked, and so is one that an item of a list
gives to a variable or option of such a name, as in the options of a container's runtime.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MASK = "********"

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>[^\s'\"]*)|(?<=url: )/[^\s\"]+")
"""Or the path alone, which urllib3 names apart from its host: "Max retries exceeded with url: /T0/k"."""
_SECRET = re.compile(
    r"(?i)^(env|headers?)$"
    r"|(passw(or)?d|pwd|passphrase|secret|token|auth|authorization|cred|credential)s?$|access[_-]?key[_-]?id$"
    r"|(?<!host)(?<!host[_-])(?<!pub)(?<!pub[_-])(?<!public)(?<!public[_-])keys?$"
)
_VARIABLE = re.compile(r"(?s)(?P<option>--env[= ]|-e[= ]?)?(?P<name>[A-Za-z_][\w.]*=).+")
"""A variable of a container, alone or with its option: "HF_TOKEN=x", "--env=HF_TOKEN=x", "-eHF_TOKEN=x"."""
_VARIABLES = ("e", "env")
_GIVEN = re.compile(r"(?P<name>--?[\w-]+[= ]|[A-Za-z_][\w.-]*=)(?P<value>\S+)")
"""A name with its value, anywhere in an item: "--api-key=x", "--token x", "export HF_TOKEN=x"."""


def of_text(text: str) -> str:
    """Returns ``text`` with each address in it shortened to where it leads."""
    return _ADDRESS.sub(_shortened, text)


def _shortened(found: re.Match[str]) -> str:
    scheme = found["scheme"]
    return f"{scheme}://{_place(scheme, found['rest'])}" if scheme else "/…"


def _place(scheme: str, rest: str) -> str:
    """Host and port of an address, and "/…" if there is more of it."""
    host, more = _halves(rest)
    if "@" in more and ("@" in host or ":" in host):
        # A password with one of these signs, or a path with an "@". For a web address, whose path may be the
        # secret, nothing is shown.
        if scheme.lower().startswith("http"):
            return "…"
        host, more = _halves(rest.rpartition("@")[2])
    return host.rpartition("@")[2] + ("/…" if more else "")


def _halves(rest: str) -> tuple[str, str]:
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return host, rest[len(host) :]


def of_value(value: Any, name: str = "") -> Any:
    """Returns ``value`` as JSON has it, texts as ``of_text`` gives them, what stands under the name of a secret masked.

    ``name``: the one that ``value`` itself stands under.
    """
    if name and _SECRET.search(name) and value not in (None, "", [], {}):
        return dict.fromkeys(value, MASK) if isinstance(value, Mapping) else MASK
    if isinstance(value, Mapping):
        return {key: of_value(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return list(_of_items(value))
    return of_text(value) if isinstance(value, str) else value


def _of_items(items: Sequence[Any]) -> Iterator[Any]:
    before = ""  # the name of an option whose value is the next item
    for item in items:
        if not isinstance(item, str):
            yield of_value(item)
            before = ""
            continue
        variable = _VARIABLE.fullmatch(item)
        if variable is not None and (variable["option"] or before in _VARIABLES):
            yield (variable["option"] or "") + variable["name"] + MASK
        elif before and before not in _VARIABLES and _SECRET.search(before):
            yield MASK
        else:
            yield _GIVEN.sub(_masked, of_text(item))
        before = item.lstrip("-") if item.startswith("-") else ""


def _masked(given: re.Match[str]) -> str:
    return given["name"] + (MASK if _SECRET.search(given["name"].strip("-= ")) else given["value"])
