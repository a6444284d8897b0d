"""Wald's sequential test for minute-long tests that fail now and then on sound hardware.

With p0 = 0.5 % and p1 = 30 %, α = 0.001 and β = 0.05, two failures convict and nine passes acquit. It is for run-to-run
noise only: repeating a measurement cannot undo the lottery that a part drew. (A. Wald, Sequential Analysis, 1947.)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

Decision = Literal["convict", "acquit", "repeat"]


@dataclasses.dataclass(frozen=True)
class Sprt:
    """``p0``: how often sound hardware fails the test; ``p1``: how often bad hardware does; α and β the two errors."""

    p0: float = 0.005
    p1: float = 0.30
    alpha: float = 1e-3
    beta: float = 0.05

    def decide(self, failed: Sequence[bool]) -> Decision:
        """What these repeats, in order, amount to; what was decided once stays decided."""
        convict, acquit = math.log((1 - self.beta) / self.alpha), math.log(self.beta / (1 - self.alpha))
        on_fail, on_pass = math.log(self.p1 / self.p0), math.log((1 - self.p1) / (1 - self.p0))
        evidence = 0.0
        for bad in failed:
            evidence += on_fail if bad else on_pass
            if evidence >= convict:
                return "convict"
            if evidence <= acquit:
                return "acquit"
        return "repeat"
