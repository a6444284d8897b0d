"""The stages of a node, the levels of a test and how many rounds a block has, each written here alone.

Standard library only.
"""

from __future__ import annotations

from typing import Literal, get_args

Stage = Literal["intake", "burn_in", "integrity", "performance", "thermal"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order in which a node goes through them."""

Level = Literal["demo", "short", "standard", "long"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the shortest to the most thorough."""

ROUNDS_MAX = 7
"""Rounds of pairs in which a block of nodes is measured, at most."""
