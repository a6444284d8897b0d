"""The steps of SuperBench's DataDiagnosis that the judge is compared with reject what its rule rejects."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.bench.data_diagnosis import _breaks


@pytest.mark.parametrize(("value", "broken"), [(100.0, 0), (95.1, 0), (94.9, 1), (np.nan, 1)])
def test_a_metric_breaks_its_rule_when_it_is_missing_or_5_percent_low(value: float, broken: int) -> None:
    names = ["benchmark/one:0", "benchmark/two:0"]
    row = pd.Series([value, 100.0], index=names)
    assert _breaks(row, [dict.fromkeys(names, 100.0)], names) == broken


def test_a_metric_that_was_not_measured_breaks_its_rule() -> None:
    assert _breaks(pd.Series({"one": 100.0}), [{"one": 100.0, "two": 100.0}], ["one", "two"]) == 1
