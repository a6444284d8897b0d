"""Clocks that are wrong: a process under libfaketime sees another time of day, and the true passage of time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

HOURS = (-5.0, -1.0, 1.0, 5.0)


def _library() -> Path | None:
    """Debian's libfaketime; None where it is not installed."""
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


def preloaded() -> list[str]:
    """Variables of a process, NAME=VALUE, under which it reads FAKETIME; none without libfaketime."""
    library = _library()
    return [f"LD_PRELOAD={library}", "FAKETIME_DONT_FAKE_MONOTONIC=1"] if library else []


def wrong(environment: Mapping[str, str], offset: str) -> dict[str, str]:
    """The environment of a process whose clock is off by so much."""
    return {**environment, **dict(each.split("=", 1) for each in preloaded()), "FAKETIME": offset}


def offset(dice: random.Random) -> str:
    """Hours ahead or behind, in the form of FAKETIME."""
    return f"{dice.choice(HOURS) * 3600 + dice.randint(-600, 600):+.0f}"
