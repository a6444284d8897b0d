"""What parsers of tools' output share. A parser takes text and returns values; it runs nothing."""

from __future__ import annotations


class BadOutput(Exception):
    """A tool's output that holds no result.

    ``code`` identifies the kind; the message continues "the tool …" and is one printable line.
    """

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__("".join(letter if letter.isprintable() else " " for letter in sentence))
        self.code = code


def failed_exit(status: int) -> BadOutput:
    """The error for a tool that printed a result and still exited with an error."""
    return BadOutput("exit status", f"ended with exit status {status}")


RATE_MAX = 1e6
"""Beyond any rate in GB/s, Gb/s or a latency in ns times thousand that a node of today reaches."""


def rate(word: str) -> float | None:
    """The rate that a word is; None for a word that is no number. Raises BadOutput for a number that is no rate."""
    value = number(word)
    return None if value is None else plausible(value)


def plausible(value: float, most: float = RATE_MAX) -> float:
    """``value``. Raises BadOutput for one that is negative, not finite or beyond ``most``: it measures nothing."""
    if not 0.0 <= value <= most:  # NaN is in no order
        raise BadOutput("impossible", f"printed {value:g} as a rate, which none is")
    return value


def number(word: str) -> float | None:
    """The number that a word is; None for any other word ("N/A")."""
    try:
        return float(word)
    except ValueError:
        return None
