"""The share of the wall clock's time that CPU loads got: who had the rest decides what it means."""

from __future__ import annotations

import pytest

from muster_criteria.model import Lack, Severity, Verdict
from tests.muster_criteria.nodes import Case, MakeCase


def shared(case: MakeCase, metric: str, percent: float, load: str = "sustained") -> Case:
    spoilt = case("burn_in", "cpu-generic").set(metric, value=percent)
    for row in spoilt.rows(metric):
        row["labels"] = {"load": load}
    return spoilt


@pytest.mark.parametrize(
    ("metric", "percent", "load", "verdict"),
    [
        ("cpu_others", 60.0, "sustained", Verdict.INCONCLUSIVE),
        ("cpu_stolen", 60.0, "sustained", Verdict.INCONCLUSIVE),
        ("cpu_others", 10.0, "sustained", Verdict.PASS),
        ("cpu_others", 60.0, "brief", Verdict.PASS),
        ("cpu_throttled", 60.0, "brief", Verdict.FAIL),
        ("cpu_throttled", 60.0, "sustained", Verdict.FAIL),
        ("cpu_unexplained", 60.0, "sustained", Verdict.FAIL),
        ("cpu_quota", 50.0, "brief", Verdict.WARN),
    ],
)
def test_the_cause_of_a_lost_share_decides(
    case: MakeCase, metric: str, percent: float, load: str, verdict: Verdict
) -> None:
    judgement = shared(case, metric, percent, load).judge()
    assert judgement.verdict is verdict, judgement.reason


def test_what_others_took_makes_the_rates_invalid_and_is_named(case: MakeCase) -> None:
    judgement = shared(case, "cpu_others", 60.0).judge()
    gaps = [gap for gap in judgement.coverage.missing if gap.what == "burn_rate_drop"]
    assert {gap.code for gap in gaps} == {Lack.INVALID}
    assert all("cpu_others" in gap.why for gap in gaps)
    assert [each.severity for each in judgement.findings] == [Severity.WARNING]
