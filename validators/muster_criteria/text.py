"""Text from outside, made safe for one line of a page, a log or a terminal."""

from __future__ import annotations

import re

TEXT_MAX = 500
"""Longest free text (a note, a reason, a fact) that is kept; the rest is cut off and marked with an ellipsis."""

_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff0-\uffff"
    "\U000e0000-\U000e0fff]+"
)


def one_line(text: str) -> str:
    """Replace control, bidirectional and invisible characters by a space."""
    return _UNPRINTABLE.sub(" ", text).strip() if _UNPRINTABLE.search(text) else text


def clean_text(text: object) -> object:
    """``one_line``, cut at ``TEXT_MAX`` characters; what is no text is returned as it is."""
    if not isinstance(text, str):
        return text
    text = one_line(text)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
