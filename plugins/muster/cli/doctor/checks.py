"""One line of ``muster doctor``."""

from __future__ import annotations

import dataclasses
import enum
import os
from pathlib import Path


class Mark(enum.StrEnum):
    """How a check ended: OK, ADVICE (works, but read it), MISSING (something needed is not there)."""

    OK = "ok"
    ADVICE = "advice"
    MISSING = "missing"


@dataclasses.dataclass(frozen=True)
class Check:
    """One line: what was checked, how it ended, what was seen, and what to do if it is not OK."""

    mark: Mark
    item: str
    message: str
    fix: str = ""


def existing(folder: Path) -> Path:
    """Returns the folder or, if it does not exist, its nearest parent that does."""
    return next(each for each in (folder, *folder.parents) if os.access(each, os.F_OK))
