"""Better than physics, or than any part of its kind: a finding, and no measurement."""

from __future__ import annotations

import pytest

from muster_criteria.fleet.peers.references import References
from muster_criteria.model import Action, FaultClass, Lack, Severity, Verdict
from tests.muster_criteria.nodes import MakeCase


@pytest.mark.parametrize(
    ("metric", "labels", "inside", "outside"),
    [
        ("pcie_bandwidth", {"direction": "h2d"}, 63.0, 63.001),
        ("pcie_bandwidth", {"direction": "both"}, 126.03, 126.04),
        ("peer_bandwidth", {}, 478.116, 478.117),
        ("gemm_rate_per_clock", {"dtype": "fp8"}, 1082.5, 1082.6),
        ("gemm_rate_per_clock", {"dtype": "tf32"}, 270.6, 270.7),
    ],
)
def test_beyond_its_physical_peak_no_figure_is_a_measurement(
    case: MakeCase, metric: str, labels: dict[str, str], inside: float, outside: float
) -> None:
    def peaks(value: float) -> list[str]:
        judgement = case("performance").set(metric, value=value, **labels).judge()
        assert (judgement.verdict is Verdict.INCONCLUSIVE) == (value == outside)
        return [each.device for each in judgement.findings if (each.metric, each.rule) == (metric, "ceiling")]

    assert peaks(inside) == []
    assert peaks(outside) == [f"gpu{slot}" for slot in range(8)]


@pytest.mark.parametrize(
    ("metric", "value", "labels"), [("pcie_bandwidth", 500.0, {"direction": "h2d"}), ("peer_bandwidth", 1e17, {})]
)
def test_absurd_links_are_no_measurement_with_and_without_peers(
    case: MakeCase, references: References, metric: str, value: float, labels: dict[str, str]
) -> None:
    for known in (references, None):
        judgement = case("performance").set(metric, "gpu3", value=value, **labels).judge(references=known)
        assert judgement.verdict is Verdict.INCONCLUSIVE
        problems = [
            each for each in judgement.findings if each.metric == metric and each.fault_class is FaultClass.SOFTWARE
        ]
        assert {(each.device, each.severity, each.action) for each in problems} == {
            ("gpu3", Severity.WARNING, Action.FIX_SOFTWARE)
        }


@pytest.mark.parametrize(("value", "invalid"), [(0.0, True), (-0.065, True), (0.0059, True), (0.0061, False)])
def test_a_resistance_of_nothing_is_no_measurement(case: MakeCase, value: float, invalid: bool) -> None:
    altered = case("thermal")
    for slot in range(8):
        altered.set("thermal_resistance", f"gpu{slot}", value=value if slot == 3 else 0.06)
    judgement = altered.judge()
    found = [each for each in judgement.findings if each.rule == "plausible"]
    assert [each.device for each in found] == ["gpu3"] * invalid
    assert (judgement.verdict is Verdict.INCONCLUSIVE) == invalid
    if value <= 0.0:
        assert [gap.code for gap in judgement.coverage.missing] == [Lack.INVALID]
        assert found[0].expected == "more than zero"


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_true_zero_needs_neither_peers_nor_siblings(case: MakeCase, value: float) -> None:
    alone = case("thermal").drop("thermal_resistance")
    alone.add("thermal_soak", "thermal_resistance", "gpu3", value, "°C/W")
    assert [each.rule for each in alone.judge().findings] == ["plausible"]


def test_of_every_rate_that_is_compared_twice_the_siblings_is_no_measurement(case: MakeCase) -> None:
    altered = case("performance")
    compared = {(each.metric, each.unit) for each in altered.sku.programme.compare if each.judged}
    rates = [row for row in altered.raw["measurements"] if (row["metric"], row["unit"]) in compared]
    twice = [row for row in rates if row["device"] == "gpu3"]
    for row in twice:
        row["value"] *= 2.01
    found = {(each.metric, each.labels) for each in altered.judge().findings if each.rule == "plausible"}
    assert found == {(row["metric"], tuple(sorted(row["labels"].items()))) for row in twice}


@pytest.mark.parametrize(("share", "invalid"), [(2.0, False), (2.01, True)])
def test_no_part_is_twice_its_siblings(case: MakeCase, share: float, invalid: bool) -> None:
    altered = case("thermal").set("power_mean", "gpu3", value=690.0 * share)
    found = {each.metric for each in altered.judge().findings if each.rule == "plausible"}
    assert found == ({"power_share"} if invalid else set())


def test_half_of_a_node_that_is_slow_alike_makes_no_good_reading_invalid(case: MakeCase) -> None:
    """As with half of the links at half of their width, where no peers are known."""
    altered = case("performance")
    for slot in range(4, 8):
        for row in altered.rows("pcie_bandwidth", f"gpu{slot}"):
            row["value"] *= 0.49
    assert not [each for each in altered.judge().findings if each.rule == "plausible"]
