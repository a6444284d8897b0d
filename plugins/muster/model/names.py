"""The form of names, keys, logins, addresses and paths."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from urllib.parse import urlsplit

NODE_NAME = re.compile(r"(?!.*__)[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""A node's name becomes part of run ids and paths; "__" separates node and reason in a run id."""

HOST_KEY = re.compile(r"(ssh|ecdsa|sk)-[A-Za-z0-9@.-]+ [A-Za-z0-9+/]{40,}={0,3}")
"""An SSH host key as "TYPE BASE64"."""

OWN_KEYS = "machines that were installed with one host key (xCAT, Warewulf) need keys of their own"
"""What else to do about a host key that two nodes have."""

ADDRESS_LABEL = "block_address"
"""The node label with the address for other nodes, where that differs from the controller's address for it."""

SPARE_LABEL = "spare"
"""The node label, with any text, that keeps a node out of production after its block, to replace one that leaves."""

OWNER_LABEL = "repair_owner"
"""The node label that names the outside system or team that repairs a node; Muster then repairs nothing of it."""

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
HOST_CHARACTERS = 253

RELATIVE = "it is relative, so it depends on the working directory; give an absolute path"
"""What is wrong with a path."""


def is_host(text: str) -> bool:
    """Whether ``text`` is a host name or an IP address, and so nothing that a shell or an option parser acts on.

    A name that ends in a number is not accepted: the resolver takes it for an address, 10.0.0.010 for 10.0.0.8.
    """
    try:
        return bool(ipaddress.ip_address(text)) and "%" not in text
    except ValueError:
        last = text.removesuffix(".").rpartition(".")[2]
        return len(text) <= HOST_CHARACTERS and _HOST.fullmatch(text) is not None and not _NUMBER.fullmatch(last)


def is_http(url: str) -> bool:
    """Whether ``url`` is an address that an HTTP client can send requests to."""
    try:
        parts = urlsplit(url)
        # ``port`` raises ValueError for one that is not a port.
        host, usable = parts.hostname or "", parts.scheme in ("http", "https") and parts.port != 0
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return False
    # ``urlsplit`` accepts an address with trailing text, such as "[::1];", as the host.
    usable = usable and parts.netloc.rpartition("@")[2].lower() == (f"[{host}]" if ":" in host else host) + port
    # ``urlsplit`` removes spaces and control characters, which clients refuse.
    return usable and is_host(host) and " " not in url and url.isprintable()


def absolute(path: Path) -> Path:
    """``path`` with "~" expanded. Raises ValueError for one that is relative or in the home of no login."""
    try:
        path = path.expanduser()
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    if not path.is_absolute():
        raise ValueError(RELATIVE)
    return path


def absolute_text(path: str) -> str:
    """``absolute`` of a path that is text; "" stays ""."""
    return str(absolute(Path(path))) if path else ""


def absolute_list(paths: str) -> str:
    """``absolute`` of each path in a list separated by ":"."""
    return ":".join(absolute_text(part) for part in paths.split(":") if part)
