"""Reading /proc and /sys without assuming root: text, or the reason why there is none.

Every path goes through ``Files``, so that tests can put a recorded tree in place of "/".
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterable, Sequence

from muster_node import privilege
from muster_node.hardware.seam import NO_PRIVILEGE, NOT_SUPPORTED

COMMAND_TIMEOUT_S = 10.0


@dataclasses.dataclass(frozen=True)
class Reading:
    """The stripped text of a file, or None with a note that gives the reason."""

    text: str | None
    note: str = ""

    def number(self) -> float | None:
        """The text as a number, None if it is none."""
        try:
            return float(self.text) if self.text is not None else None
        except ValueError:
            return None


class Files:
    """Files below ``root``. Nothing here raises: a file that is missing, unreadable or refused is a note."""

    def __init__(self, root: pathlib.Path = pathlib.Path("/")) -> None:
        self.root = root

    def read(self, path: str, *, sudo: bool = False) -> Reading:
        """Read a text file; with ``sudo`` a refused file is tried again through ``sudo -n cat``."""
        full = self.root / path.lstrip("/")
        try:
            return Reading(full.read_text(encoding="utf-8", errors="replace").strip("\0 \t\n"))
        except PermissionError:
            text = output_of(privilege.as_root(("cat", str(full)))) if sudo else None
            return Reading(text.strip() if text is not None else None, "" if text is not None else NO_PRIVILEGE)
        except OSError:
            return Reading(None, NOT_SUPPORTED)

    def text(self, path: str) -> str:
        """The text of a file, empty if it cannot be read."""
        return self.read(path).text or ""

    def number(self, path: str) -> float | None:
        """The number in a file, None if there is none."""
        return self.read(path).number()

    def names(self, path: str, pattern: str = "*") -> list[str]:
        """Names in a directory that match, sorted with numbers by value; empty if it cannot be listed."""
        try:
            found = [entry.name for entry in (self.root / path.lstrip("/")).glob(pattern)]
        except OSError:
            return []
        return sorted(found, key=natural)

    def exists(self, path: str) -> bool:
        """Whether something is there."""
        return os.path.exists(self.root / path.lstrip("/"))  # Path.exists raises where a directory is closed to us

    def real(self, path: str) -> str:
        """Where a link leads to."""
        return os.path.realpath(self.root / path.lstrip("/"))


def natural(name: str) -> tuple[str, int]:
    """Sort key under which cpu10 follows cpu9."""
    digits = name[len(name.rstrip("0123456789")) :]
    return (name[: len(name) - len(digits)], int(digits) if digits else -1)


def output_of(command: Sequence[str], ok_statuses: Iterable[int] = (0,)) -> str | None:
    """Standard output of a short command; None where it is missing, refused, fails or takes too long."""
    answer = privilege.output_within(command, COMMAND_TIMEOUT_S)
    if answer is None or answer[0] not in ok_statuses:
        return None
    return answer[1].decode("utf-8", "replace")
