"""Bars of benches: a bench's exit status and the page's "missed" follow from the same table."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Bar:
    """What a figure may be at least and at most."""

    most: float = math.inf
    least: float = -math.inf

    def holds(self, figure: float | None) -> bool:
        """Whether a figure is within; one that is unknown is not."""
        return figure is not None and self.least <= figure <= self.most


Bars = dict[str, Bar]

JUDGE: Bars = {
    "seconds": Bar(6.0), "peak_mb": Bar(1000.0), "one_node_seconds": Bar(0.5), "times_data_diagnosis": Bar(least=5.0),
}  # fmt: skip
TRAINING: Bars = {"overhead_to_bare": Bar(1.03), "cpu_to_bare": Bar(1.03), "resume_equal": Bar(least=True)}
AGED_FLEET: Bars = {"gate_ms": Bar(100.0), "page_ms": Bar(300.0)}
REVALIDATION: Bars = {"plan_seconds": Bar(2.0), "learn_seconds": Bar(2.0)}
HIDDEN, THRIFTY = Bar(1.0), {0.004: Bar(0.5)}
"""Of hidden defect-hours relative to another strategy: at the share of nodes under test that is asked for, and by
share where another one holds."""

CLEAR_PASSED = Bar(least=0.99)
"""Of the healthy nodes in blocks where nothing is at fault and usual rates can be known: but for a node alone on its
leaf, all pass."""


def missed(figures: Mapping[str, Any], bars: Bars) -> list[str]:
    """The keys of figures that miss their bar."""
    return [key for key, bar in bars.items() if not bar.holds(figures[key])]


def status(figures: Mapping[str, Any], bars: Bars) -> int:
    """The exit status: 1 where a bar is missed, each of which gets a line."""
    for key in missed(figures, bars):
        print(f"{key} is {figures[key]}, which misses its bar.", file=sys.stderr)
    return int(bool(missed(figures, bars)))
