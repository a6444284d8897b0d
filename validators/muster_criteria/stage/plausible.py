"""Figures better than a part of its kind can be, where no physical peak is known: something else was measured.

For the metrics that a programme compares, by the median of the peers, or of the siblings where there are no peers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from muster_criteria.fleet.series.comparisons import Worse
from muster_criteria.model import Action, FaultClass, Finding
from muster_criteria.stage.row_findings import row_finding
from muster_criteria.stage.rules import Rule
from muster_criteria.words import against

Numbers = npt.NDArray[np.float64]

RATE_MOST = 2.0
"""Times the usual beyond which a rate is no measurement. Chosen here: no healthy part is twice another."""
LEAST = 0.1
"""Share of the usual below which what is better low (°C/W) is no measurement. Chosen here: sick parts may halve it."""
SIBLINGS_MIN = 3
"""Fewest siblings whose median is a reference: one of them that measured something else does not move it."""


def usual_of(siblings_median: Numbers, siblings_count: npt.NDArray[np.int64], peers_median: Numbers) -> Numbers:
    """Returns the median of each row's peers, or else of its siblings; NaN where neither is above zero."""
    siblings = np.where(siblings_count >= SIBLINGS_MIN, siblings_median, np.nan)
    usual = np.where(peers_median > 0.0, peers_median, siblings)
    return np.where(usual > 0.0, usual, np.nan)


def margins(values: Numbers, usual: Numbers, worse: Worse) -> tuple[Numbers, Numbers]:
    """(threshold, margin) of each value of a quantity with a true zero: negative where it is too good to be one.

    Where higher is worse, zero and negative values are always implausible.
    """
    if worse == "lower":
        return RATE_MOST * usual, RATE_MOST * usual - values
    at = np.where(np.isnan(usual), 0.0, LEAST * usual)
    return at, np.where(values > 0.0, values - at, np.minimum(values, -1.0))


def plausible_finding(row: Mapping[str, Any], rule: Rule, worse: Worse) -> Finding:
    """Returns the finding of a row that is too good to be a measurement of its device."""
    at = float(row[f"{rule.column}_at"])
    observed, bound = against(row["value"], at, row["unit"])
    whose = "peers" if row["peers_median"] > 0.0 else "siblings"
    times, sign = (RATE_MOST, "≤") if worse == "lower" else (LEAST, "≥")
    bound = f"{sign} {bound} ({times:g} × the median of its {whose})"
    expected = bound if at > 0.0 and row["value"] > 0.0 else "more than zero"
    return row_finding(
        row,
        rule,
        fault_class=FaultClass.SOFTWARE,
        action=Action.FIX_SOFTWARE,
        lead=f"{row['device']} measured something else",
        observed=observed,
        expected=expected,
        source="chosen here: no healthy part is so much better than another, and none is better than perfect",
    )
