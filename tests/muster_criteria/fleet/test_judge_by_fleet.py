"""One node judged by a fleet: peers, siblings, drift and common causes beside its SKU's limits, and coverage."""

from __future__ import annotations

import dataclasses

import pytest

from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.series.keyed import keyed
from muster_criteria.fleet.series.readings import readings_of
from muster_criteria.fleet.single import derived
from muster_criteria.fleet.thresholds import Thresholds
from muster_criteria.model import Action, FaultClass, Finding, Lack, Severity, Verdict
from muster_criteria.rows import rows_of
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.suite import unexpected_rows
from tests.muster_criteria.nodes import Case, MakeCase
from tests.muster_criteria.violations import violations


def by(findings: tuple[Finding, ...], rule: str) -> list[Finding]:
    return [finding for finding in findings if finding.rule == rule]


def without_limits(altered: Case) -> Case:
    """Judged by the fleet alone."""
    return altered.limited()


def test_a_healthy_node_passes_and_cites_its_snapshot(case: MakeCase, references: References) -> None:
    judgement = case("performance").judge(references=references)

    assert judgement.verdict is Verdict.PASS
    assert judgement.snapshot == references.snapshot.version
    assert case("performance").judge().snapshot == ""


def test_one_slow_gpu_among_fast_siblings_is_named_though_it_passes_every_limit(
    case: MakeCase, references: References, h100: Sku
) -> None:
    """In a fleet of 60 nodes peers fail a device for so little only by two readings: the visit's, and a retest's."""
    altered = case("performance")
    for row in altered.rows("memory_bandwidth", "gpu3"):
        row["value"] *= 0.955
    assert not altered.judge().findings

    first = readings_of(
        rows_of(altered.result(), h100),
        at=0.0,
        run="first",
        node="node-1",
        sku=h100.name,
        environment=altered.result().environment,
    )
    judgement = altered.judge(references=dataclasses.replace(references, repeats=first))

    assert judgement.verdict is Verdict.FAIL
    found = by(judgement.findings, "peers")[0]
    assert (found.device, found.fault_class, found.action) == ("gpu3", FaultClass.HBM, Action.RMA)
    assert found.confidence > 0.9
    both = ("memory_bandwidth:memory_bandwidth[op=copy]@gpu3", "memory_bandwidth:memory_bandwidth[op=triad]@gpu3")
    for each in judgement.findings:
        assert each.measurements in (both, both[:1], both[1:])
    assert "gpu3" in judgement.reason
    assert {finding.device for finding in judgement.findings} == {"gpu3"}


def test_an_a100_at_a_third_of_its_rate_fails_by_name_whatever_a_vendors_tool_says(
    case: MakeCase, references: References
) -> None:
    """DCGM issue 122: 6.7 of 19.2 TFLOPS in fp32, and the vendor's longest diagnostic passes. No limit helps here."""
    altered = without_limits(case("performance"))
    for metric in ("gemm_rate", "gemm_rate_per_clock"):
        for row in altered.rows(metric, "gpu6"):
            row["value"] *= 6.7 / 19.2
    judgement = altered.judge(references=references)

    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason.startswith("gpu6")
    assert {finding.device for finding in judgement.findings if finding.severity is Severity.CRITICAL} == {"gpu6"}
    assert {"peers", "siblings", "drift"} <= {finding.rule for finding in judgement.findings}


def test_great_expectations_finds_what_the_margins_say(case: MakeCase, references: References) -> None:
    altered = case("performance").set("memory_bandwidth", "gpu3", value=2700.0)

    direct, suite = (altered.judge(references=references, evaluate=each) for each in (violations, unexpected_rows))

    assert direct == suite
    assert direct.verdict is Verdict.FAIL


def test_what_only_peers_can_judge_is_judged_by_eight_of_them(
    case: MakeCase, references: References, h100: Sku
) -> None:
    # No peer judges a count, nor the host.
    counted = [
        limit for limit in h100.all_limits if limit.key in ("exactly", "equals") or limit.device in ("memory", "disk")
    ]
    counted += [limit for limit in h100.all_limits if limit.metric == "ecc_corrected_delta"]
    altered = case("performance").limited(*counted)
    alone, compared = altered.judge(), altered.judge(references=references)

    assert alone.verdict is Verdict.PROVISIONAL
    assert compared.verdict is Verdict.PASS
    assert compared.coverage.judged > alone.coverage.judged


def test_a_report_shows_the_floor_that_the_fleet_makes(case: MakeCase, references: References) -> None:
    judgement = without_limits(case("performance")).judge(references=references)
    rates = [each for each in judgement.observations if each.metric == "memory_bandwidth" and each.device != "memory"]

    assert len(rates) == 16
    for each in rates:
        assert each.value is not None
        assert each.floor is not None
        assert 0.9 * each.value < each.floor < each.value
        assert each.ceiling is None
        assert each.source.startswith("peers: ")


def test_in_another_unit_no_peer_judges_it(case: MakeCase, references: References) -> None:
    altered = without_limits(case("performance"))
    for row in altered.rows("memory_bandwidth", "gpu3"):
        row |= {"unit": "MB/s", "value": row["value"] * 1000.0}

    judgement = altered.judge(references=references)

    assert judgement.verdict is Verdict.PROVISIONAL
    assert any(gap.device == "gpu3" and gap.what.startswith("memory_bandwidth") for gap in judgement.coverage.unjudged)


def test_all_gpus_alike_fail_the_node_but_name_none(case: MakeCase, references: References) -> None:
    altered = case("performance")
    for row in altered.rows("memory_bandwidth"):
        row["value"] *= 0.93
    judgement = altered.judge(references=references)

    assert judgement.verdict is Verdict.FAIL
    cause = by(judgement.findings, "common_cause")[0]
    assert (cause.device, cause.fault_class, cause.action) == ("node", FaultClass.SOFTWARE, Action.FIX_SOFTWARE)
    assert len(cause.measurements) >= 8
    assert judgement.reason.startswith("8 gpus of the node fail alike in ")
    critical = [finding for finding in judgement.findings if finding.severity is Severity.CRITICAL]
    assert {finding.action for finding in critical} == {Action.FIX_SOFTWARE}


@pytest.mark.parametrize("bad", [2, 3, 4])
def test_bad_siblings_do_not_mask_each_other(case: MakeCase, references: References, bad: int) -> None:
    altered = without_limits(case("performance"))
    for slot in range(bad):
        for row in altered.rows("memory_bandwidth", f"gpu{slot}"):
            row["value"] *= 0.94
    judgement = altered.judge(references=references)

    assert judgement.verdict is Verdict.FAIL
    assert not by(judgement.findings, "common_cause")
    assert {f"gpu{slot}" for slot in range(bad)} <= {finding.device for finding in by(judgement.findings, "peers")}


def test_a_retest_that_confirms_fails(case: MakeCase, references: References, h100: Sku) -> None:
    """One such figure asks for a retest, two are rare enough; the finding names the number of runs."""
    tails = references.snapshot.tails.copy()
    quantiles = [name for name in tails if str(name).startswith("q")]
    tails[quantiles] *= 4.0  # then chance decides, not the least effect
    tails.loc[tails["repeats"] == 2, quantiles] *= 0.5
    frozen = dataclasses.replace(references, snapshot=dataclasses.replace(references.snapshot, tails=tails))
    altered = without_limits(case("performance"))
    known = {"node": "node-1", "sku": h100.name, "environment": altered.result().environment}
    catalogue = keyed(readings_of(rows_of(altered.result(), h100), at=0.0, run="", **known), h100.programme.compare)
    which = [each.key[1:3] for each in catalogue.catalogue].index(("memory_bandwidth", "op=copy"))
    thresholds = Thresholds(frozen.snapshot, catalogue.skus, catalogue.catalogue)
    single, double = (float(thresholds.critical("peers", repeats)[0, which]) for repeats in (1, 2))
    assert double < 0.9 * single
    for row in altered.rows("memory_bandwidth", "gpu3", op="copy"):
        row["value"] *= 1.0 - (single + double) / 2.0
    first = readings_of(rows_of(altered.result(), h100), at=0.0, run="first", **known)

    for given, severity in (
        (frozen, Severity.WARNING),
        (dataclasses.replace(frozen, repeats=first), Severity.CRITICAL),
    ):
        found = by(altered.judge(references=given).findings, "peers")
        of_copy = next(each for each in found if each.labels == (("op", "copy"),))
        assert of_copy.severity is severity
        assert ("2 runs" in of_copy.observed) == (given is not frozen)


def test_removing_a_measurement_never_passes_and_never_clears_another(case: MakeCase, references: References) -> None:
    altered = case("performance").set("memory_bandwidth", "gpu3", value=2650.0)
    altered.drop("gemm_rate", "gpu5")
    assert altered.judge(references=references).verdict is Verdict.FAIL

    assert case("performance").drop("gemm_rate", "gpu5").judge(references=references).verdict is Verdict.INCONCLUSIVE


def test_a_better_figure_than_physics_is_no_measurement(case: MakeCase, references: References) -> None:
    judgement = case("performance").set("memory_bandwidth", "gpu3", value=5000.0).judge(references=references)

    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert {gap.code for gap in judgement.coverage.missing} == {Lack.INVALID}


def test_derived_rows_divide_by_the_same_devices_clock(case: MakeCase, h100: Sku) -> None:
    rows = derived(rows_of(case("thermal").result(), h100), h100.programme.derive)
    per_clock = {row.device: row for row in rows if row.metric == "soak_rate_per_clock"}

    assert per_clock["gpu3"].value == pytest.approx(740.0 / 1.62)
    assert per_clock["gpu3"].unit == "TFLOPS/GHz"
    assert len(per_clock) == 8


@pytest.mark.parametrize(
    ("metric", "value", "unit", "wanted", "lost"),
    [
        ("clock_median", 1.62, "GHz", "MHz", {"soak_rate_per_clock", "power_per_clock"}),
        ("soak_rate", 0.74, "PFLOPS", "TFLOPS", {"soak_rate_per_clock"}),
        ("power_mean", 0.69, "kW", "W", {"power_per_clock", "power_share"}),
        ("power_limit", 0.7, "kW", "W", {"power_share"}),
    ],
)
def test_nothing_is_derived_from_a_row_in_another_unit_and_it_counts_as_not_measured(
    case: MakeCase, references: References, metric: str, value: float, unit: str, wanted: str, lost: set[str]
) -> None:
    altered = case("thermal")
    rows = derived(rows_of(altered.result(), altered.sku), altered.sku.programme.derive)
    derivable = {"soak_rate_per_clock", "power_per_clock", "power_share"}
    assert {row.metric for row in rows if row.device == "gpu3"} == derivable
    for row in altered.rows(metric, "gpu3"):
        row |= {"value": value, "unit": unit}

    rows = derived(rows_of(altered.result(), altered.sku), altered.sku.programme.derive)
    made = {row.metric for row in rows if row.device == "gpu3"}
    assert made == derivable - lost
    for judgement in (altered.judge(references=references), altered.judge()):
        assert judgement.verdict is Verdict.INCONCLUSIVE
        assert not judgement.findings
        (gap,) = judgement.coverage.missing
        assert (gap.code, gap.what, gap.device) == (Lack.REFUSED, metric, "gpu3")


@pytest.mark.parametrize("odd", [0.0, -1.0, 1e18, -1e18, 1e-300])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_odd_figures_neither_raise_nor_pass(case: MakeCase, references: References, odd: float) -> None:
    for metric in ("memory_bandwidth", "gemm_rate", "gemm_clock"):
        altered = case("performance").set(metric, "gpu3", value=odd)
        judgement = altered.judge(references=references)
        assert Lack.JUDGE_FAILED not in {gap.code for gap in judgement.coverage.missing}
        if metric != "gemm_clock":
            assert judgement.verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE)


def test_the_order_of_measurements_changes_nothing(case: MakeCase, references: References) -> None:
    altered = case("performance").set("memory_bandwidth", "gpu3", value=2700.0)
    straight = altered.judge(references=references)
    altered.raw["measurements"].reverse()

    assert altered.judge(references=references) == straight
