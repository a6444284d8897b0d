"""What is no measurement of its device, since the air that reached it was too hot."""

from __future__ import annotations

import pytest

from muster_criteria.model import Severity, Verdict
from tests.muster_criteria.nodes import MakeCase


def test_a_hot_inlet_fails_none(case: MakeCase) -> None:
    altered = case("thermal").set("throttle_time", "gpu2", value=30.0, reason="hw_thermal")
    assert altered.judge().verdict is Verdict.FAIL

    altered.add("thermal_soak", "inlet_temperature", "node", 38.0, "°C")
    judgement = altered.judge()

    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reason.startswith("Not measured")
    assert "inlet_temperature" in judgement.reason
    assert not [finding for finding in judgement.findings if finding.severity is Severity.CRITICAL]


@pytest.mark.parametrize(("margin", "severity"), [(0.0, Severity.INFO), (-2.0, Severity.WARNING)])
def test_a_hot_inlet_explains_as_many_degrees_as_it_is_too_hot(
    case: MakeCase, margin: float, severity: Severity
) -> None:
    """Memory 5 and 7 °C beyond its limit, in air that is 6 °C too hot."""
    altered = case("thermal").add("thermal_soak", "hbm_margin", "gpu5", margin, "°C")
    judgement = altered.add("thermal_soak", "inlet_temperature", "node", 38.0, "°C").judge()

    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert [each.severity for each in judgement.findings if each.metric == "hbm_margin"] == [severity]
