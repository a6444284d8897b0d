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


def number(word: str) -> float | None:
    """The number that a word is; None for any other word ("N/A")."""
    try:
        return float(word)
    except ValueError:
        return None
