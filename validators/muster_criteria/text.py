"""Text from outside, made safe for one line of a page, a log or a terminal."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

TEXT_MAX = 500
"""Longest free text (a note, a reason, a fact) that is kept; the rest is cut off and marked with an ellipsis."""

QUOTED_MAX = 80
"""Characters of what was given that a refusal quotes."""

_MARKUP = str.maketrans({character: f"\\{character}" for character in "\\`*_~&{}[]<>#|!"})
_LINK = re.compile(r"https?:(?=//)|www(?=\.)|@(?=[-\w]+\.)", re.IGNORECASE)
"""Where Airflow's pages make a link of a bare address, escaped or not: a space after it keeps them from it."""

_OWN = "Value error, "
_REFUSALS = (
    (re.compile("^Field required|^Unable to extract tag .*"), "is missing"),
    (re.compile("^Extra inputs are not permitted"), "is not a key that is known here"),
    (re.compile("^Input tag .* does not match any of the expected tags: "), "is none of "),
    (re.compile(r"^\w+ should "), "has to "),
)


def printable(text: str, instead: str = " ", keep: str = "") -> str:
    """``text`` with ``instead`` for each control, bidirectional, invisible or unassigned character not in ``keep``."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else instead for c in text)


def one_line(text: str) -> str:
    """``text`` on one line, without characters that are not printable."""
    return text if text.isprintable() else " ".join(printable(text).split())


def cut(text: str, most: int) -> str:
    """``text`` in at most so many characters; what is cut off is marked with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def as_markdown(text: str) -> str:
    """``text`` as Markdown that shows it as it is, on one line: no markup, picture or link."""
    return _LINK.sub(r"\g<0> ", one_line(text)).translate(_MARKUP)


def closest(name: str, known: Collection[str]) -> str:
    """What to say after a name that is not among the known ones: the one that was meant, or all of them."""
    near = difflib.get_close_matches(name[:QUOTED_MAX].lower(), list(known), n=1, cutoff=0.7)  # quadratic in the length
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(known))}"


def refusal(message: str) -> str:
    """Pydantic's message about a value in Muster's words, to follow the value's name; a validator's own as it is."""
    if message.startswith(_OWN):
        return message.removeprefix(_OWN)
    for theirs, ours in _REFUSALS:
        message = theirs.sub(ours, message)
    return message


def clean_text(text: object) -> object:
    """``one_line``, ``cut`` at ``TEXT_MAX`` characters; what is no text is returned as it is."""
    if not isinstance(text, str):
        return text
    return cut(one_line(text), TEXT_MAX)
