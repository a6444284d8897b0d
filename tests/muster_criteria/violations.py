"""The rows that break rules, computed directly: Great Expectations must find the same."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from muster_criteria.stage.rules import Rule


def violations(frame: pd.DataFrame, rules: Sequence[Rule]) -> dict[str, list[int]]:
    return {rule.column: frame.index[frame[rule.column] < 0].tolist() for rule in rules}
