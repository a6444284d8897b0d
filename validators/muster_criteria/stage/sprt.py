"""Wald's sequential test for minute-long tests that fail now and then on sound hardware.

With p0 = 0.5 % and p1 = 30 %, α = 0.001 and β = 0.05, a second failure after at most three passes fails the device, and
nine passes clear it. A device that goes bad later must not live on its first runs, so after a clearance the test begins
again. For run-to-run noise only: repeats cannot undo part-to-part variation. (A. Wald, Sequential Analysis, 1947.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

P0, P1 = 0.005, 0.30
"""Share of runs that fail on sound and on bad hardware."""
ALPHA, BETA = 1e-3, 0.05
"""Share of sound devices that the test fails, and of bad ones that it clears."""
FAIL_AT, CLEAR_AT = math.log((1 - BETA) / ALPHA), math.log(BETA / (1 - ALPHA))
ON_FAIL, ON_PASS = math.log(P1 / P0), math.log((1 - P1) / (1 - P0))

Decision = Literal["fail", "clear", "repeat"]


def decide(failed: Sequence[bool]) -> Decision:
    """The decision after these runs, in order. A failure is final; a clearance holds until a later run fails."""
    evidence = 0.0
    decision: Decision = "repeat"
    for bad in failed:
        evidence += ON_FAIL if bad else ON_PASS
        if evidence >= FAIL_AT:
            return "fail"
        if evidence <= CLEAR_AT:
            evidence, decision = 0.0, "clear"
        elif bad:
            decision = "repeat"
    return decision
