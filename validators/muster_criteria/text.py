"""Text from outside, made safe for one line of a page, a log or a terminal."""

from __future__ import annotations

TEXT_MAX = 500
"""Longest free text (a note, a reason, a fact) that is kept; the rest is cut off and marked with an ellipsis."""


def printable(text: str, instead: str = " ", keep: str = "") -> str:
    """``text`` with ``instead`` for each control, bidirectional, invisible or unassigned character not in ``keep``."""
    return text if text.isprintable() else "".join(c if c.isprintable() or c in keep else instead for c in text)


def one_line(text: str) -> str:
    """``text`` on one line, without characters that are not printable."""
    return text if text.isprintable() else " ".join(printable(text).split())


def clean_text(text: object) -> object:
    """``one_line``, cut at ``TEXT_MAX`` characters; what is no text is returned as it is."""
    if not isinstance(text, str):
        return text
    text = one_line(text)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
