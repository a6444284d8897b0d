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

NONE = Bar(0.0)
"""Of what must not happen."""
WALL_MINUTES = Bar(10.0)
OVERHEAD = Bar(1.6)
FLEET_PAGE: Bars = {
    "first_paint_ms": Bar(1000.0), "filter_ms": Bar(200.0), "server_p95_ms": Bar(300.0), "live_core_percent": Bar(5.0),
    "scrape_ms": Bar(300.0),
}  # fmt: skip
AGE: Bars = {"gate_ms": Bar(100.0), "page_ms": Bar(300.0), "record_ms": Bar(100.0), "more_mb": Bar(10.0)}
"""At 1,000 qualifications; memory: more than at 10."""
TRACES: Bars = {"ratio": Bar(1.0), "calibration": Bar(1.25, 0.8)}
ROUNDS = Bar(7.0)
GIVE_BACK = Bar(5.0)
FALSE_FAILS = Bar(1e-3)
RECALL = LOCALISATION = Bar(least=0.99)
NODES_PER_MINUTE, FALSE_ALARMS = Bar(least=1000.0), Bar(0.01)

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
