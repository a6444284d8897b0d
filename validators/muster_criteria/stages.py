"""The stages of a node's qualification and the levels of a test, each written here alone. Standard library only."""

from __future__ import annotations

from typing import Literal, get_args

Stage = Literal["intake", "burn_in", "integrity", "performance", "thermal"]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""In the order in which a node goes through them."""

Level = Literal["demo", "short", "standard", "long"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the shortest to the most thorough."""
