"""Wald's sequential test for minute-long tests that fail now and then on sound hardware.

With p0 = 0.5 % and p1 = 30 %, α = 0.001 and β = 0.05, two failures fail the device and nine passes clear it. For
run-to-run noise only: repeats cannot undo part-to-part variation. (A. Wald, Sequential Analysis, 1947.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

Decision = Literal["fail", "clear", "repeat"]


@dataclasses.dataclass(frozen=True)
class Sprt:
    """``p0``, ``p1``: share of runs that fail on sound and on bad hardware. ``alpha``, ``beta``: error rates."""

    p0: float = 0.005
    p1: float = 0.30
    alpha: float = 1e-3
    beta: float = 0.05

    def decide(self, failed: Sequence[bool]) -> Decision:
        """The decision after these runs, in order; the first one reached is final."""
        fail_at, clear_at = math.log((1 - self.beta) / self.alpha), math.log(self.beta / (1 - self.alpha))
        on_fail, on_pass = math.log(self.p1 / self.p0), math.log((1 - self.p1) / (1 - self.p0))
        evidence = 0.0
        for bad in failed:
            evidence += on_fail if bad else on_pass
            if evidence >= fail_at:
                return "fail"
            if evidence <= clear_at:
                return "clear"
        return "repeat"
