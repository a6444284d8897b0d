"""Mail addresses as people write them."""

from __future__ import annotations

from email.errors import MessageError
from email.headerregistry import Address
from email.utils import getaddresses

from muster_reports.text import clean


def address(text: str) -> Address:
    """The one address in ``text``, "Muster <muster@example.org>" or bare.

    Raises ValueError, which names it, if it is not a single usable address.
    """
    try:
        ((name, spec),) = getaddresses([text])
        found = Address(display_name=clean(name, 100), addr_spec=spec)
    except (ValueError, IndexError, MessageError):
        found = Address()
    if not found.username or not found.domain or not found.addr_spec.isascii():
        raise ValueError(f"{clean(text, 100)!r} is not a mail address: write one address, as name@example.org")
    return found
