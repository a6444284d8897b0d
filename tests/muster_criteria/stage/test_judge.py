"""The judge: the verdict table, evidence, and that nothing whatever makes it raise or pass on doubt."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from muster_criteria.fleet.peers.references import References
from muster_criteria.model import (
    UNJUDGED,
    Action,
    Coverage,
    Evidence,
    Extent,
    FaultClass,
    Gap,
    Judgement,
    Lack,
    Severity,
    Verdict,
)
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.case import Case as JudgeCase
from muster_criteria.stage.judge import judge
from muster_criteria.stage.verdict import overall
from muster_criteria.stages import LEVELS, STAGES
from tests.muster_criteria.nodes import MakeCase

SKUS = ("cpu-generic", "h100-sxm-8")
NEED_OTHERS = [("h100-sxm-8", "burn_in"), ("h100-sxm-8", "performance")]
"""Stages with figures that no limit is published for: peers or a past judge them."""


@pytest.mark.parametrize(
    ("sku", "stage"), [(sku, stage) for sku in SKUS for stage in STAGES if (sku, stage) not in NEED_OTHERS]
)
@pytest.mark.parametrize("level", LEVELS)
def test_a_healthy_node_passes_every_stage_with_full_coverage(case: MakeCase, sku: str, stage: str, level: str) -> None:
    judgement = case(stage, sku, level).judge()

    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert judgement.coverage.full
    assert not judgement.findings


@pytest.mark.parametrize(("sku", "stage"), NEED_OTHERS)
@pytest.mark.parametrize("level", LEVELS)
def test_what_siblings_alone_could_judge_is_provisional(case: MakeCase, sku: str, stage: str, level: str) -> None:
    """All GPUs of a node may be slow alike, and siblings never notice."""
    judgement = case(stage, sku, level).judge()

    assert judgement.verdict is Verdict.PROVISIONAL
    assert not judgement.findings
    assert not judgement.coverage.missing
    assert {gap.code for gap in judgement.coverage.unjudged} == {Lack.UNJUDGED}
    assert len(judgement.coverage.unjudged) % 8 == 0


def test_a_provisional_verdict_names_each_figure_once(case: MakeCase) -> None:
    reason = case("burn_in").judge().reason
    assert [reason.count(f"{figure}") for figure in ("burn_rate and", "burn_rate_per_clock")] == [1, 1]


@pytest.mark.parametrize(("sku", "stage"), NEED_OTHERS)
def test_peers_judge_what_siblings_cannot(case: MakeCase, sku: str, stage: str, references: References) -> None:
    judgement = case(stage, sku).judge(references=references)

    assert judgement.verdict is Verdict.PASS, judgement.reason
    assert judgement.coverage.full


def test_a_node_slow_as_a_whole_never_passes_for_want_of_peers(case: MakeCase, references: References) -> None:
    """Each of its GPUs at nine tenths in a figure without a limit: nothing to judge it by, and then a failure."""
    altered = case("performance")
    for row in altered.rows("peer_bandwidth"):
        row["value"] *= 0.9

    assert altered.judge().verdict is Verdict.PROVISIONAL
    assert altered.judge(references=references).verdict is not Verdict.PASS


def test_a_critical_finding_fails_even_where_coverage_is_partial(case: MakeCase) -> None:
    altered = case("integrity").set("gemm_mismatches", "gpu5", value=4.0, dtype="bf16").end("memory_pattern", "crashed")

    judgement = altered.judge()

    assert judgement.verdict is Verdict.FAIL
    assert judgement.coverage.missing
    assert [(each.rule, each.device) for each in judgement.findings] == [("exactly", "gpu5")]


def test_wrong_data_of_a_probe_that_was_preempted_fails(case: MakeCase) -> None:
    cut = case("integrity").end("exact_gemm", "skipped", "it was cut short: preempted by SIGTERM")
    cut = cut.add("exact_gemm", "gemm_mismatches", "gpu5", 1.0, "count", labels={"dtype": "bf16"})

    judgement = cut.judge()

    assert judgement.verdict is Verdict.FAIL
    assert [(each.device, each.action) for each in judgement.findings] == [("gpu5", Action.RETEST)]


def test_missing_comes_before_warnings(case: MakeCase) -> None:
    judgement = case("intake").set("persistence_mode", "gpu0", value=0.0).drop("vbios", "gpu1").judge()

    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert [(gap.code, gap.what, gap.device) for gap in judgement.coverage.missing] == [
        (Lack.NOT_REPORTED, "vbios", "gpu1")
    ]
    assert [finding.severity for finding in judgement.findings] == [Severity.WARNING]


def test_a_gpu_that_the_driver_reports_as_lost_fails_though_all_its_values_were_read(case: MakeCase) -> None:
    judgement = case("intake").add("inventory", "gpu_lost", "gpu3", 1.0, "bool").judge()

    assert judgement.verdict is Verdict.FAIL
    assert [finding.device for finding in judgement.findings] == ["gpu3"]


@pytest.mark.parametrize(("known", "device"), [(True, "gpu5"), (False, "node")])
def test_a_slot_is_named_only_where_module_ids_tell_it(case: MakeCase, known: bool, device: str) -> None:
    """Without them the driver numbers the GPUs that answer, and those behind a missing one move up."""
    node = case("intake")
    lost = ("gpu5", "gpu6") if known else ("gpu6", "gpu7")
    node.raw["measurements"] = [row for row in node.raw["measurements"] if row["device"] not in lost]
    for slot in range(8):
        if f"gpu{slot}" not in lost:
            node.add("inventory", "module_id", f"gpu{slot}", slot + 1.0 if known else None, "count", note="refused")
    found = [each for each in node.judge().findings if each.rule == "expected_devices"]
    assert [each.device for each in found] == (list(lost) if known else [device])
    assert sum(len(each.measurements) for each in found) == 2


def test_a_slot_that_is_a_guess_is_not_named(case: MakeCase) -> None:
    node = case("intake")
    node.raw["measurements"] = [row for row in node.raw["measurements"] if row["device"] != "gpu7"]
    for slot, module in enumerate((1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 7.0)):
        node.add("inventory", "module_id", f"gpu{slot}", module, "count")
    node.add("inventory", "slot_known", "gpu6", 0.0, "bool", note="a guess")
    (found,) = [each for each in node.judge().findings if each.rule == "expected_devices"]
    assert (found.device, found.action) == ("node", Action.INSPECT)


def test_one_cause_is_one_line_of_the_reason(case: MakeCase) -> None:
    node, why = case("intake"), "NVML: not queried, since nvmlDeviceGetTemperature did not answer within 20 s"
    for row in node.raw["measurements"]:
        if row["device"].startswith("gpu") and row["metric"] not in ("gpu_uuid", "gpu_lost"):
            row.update(value=None, text=None, note=why)
    judgement = node.judge()
    assert len(judgement.coverage.missing) > 100
    assert judgement.reason.count("NVML") == 1
    assert "more)." not in judgement.reason


def test_sensors_that_stop_are_not_called_absent(case: MakeCase) -> None:
    node = case("thermal").drop("temperature_max", "gpu2").set("sensor_share", "gpu2", value=0.0)
    node.drop("temperature_max", "gpu3")
    gaps = {(gap.code, gap.device) for gap in node.judge().coverage.missing if gap.what == "temperature_max"}
    assert gaps == {(Lack.SENSOR_STOPPED, "gpu2"), (Lack.NO_SENSOR, "gpu3")}


@pytest.mark.parametrize("metric", ["thermal_margin", "hbm_margin"])
@pytest.mark.parametrize(
    ("margin", "verdict"),
    [(4.0, Verdict.WARN), (0.0, Verdict.WARN), (5.0, Verdict.PASS), (None, Verdict.PASS)],
)
def test_a_gpu_close_to_its_own_limit_warns_and_one_that_names_none_does_not(
    case: MakeCase, metric: str, margin: float | None, verdict: Verdict
) -> None:
    judgement = case("thermal").add("thermal_soak", metric, "gpu2", margin, "°C").judge()
    assert judgement.verdict is verdict, judgement.reason
    assert [(each.device, each.metric) for each in judgement.findings] == [("gpu2", metric)] * (verdict is Verdict.WARN)


def test_link_speeds_are_shown_by_generation(case: MakeCase) -> None:
    (finding,) = case("intake").set("pcie_generation_max", "gpu1", value=4.0).judge().findings
    assert (finding.observed, finding.expected) == ("PCIe 4.0 (16 GT/s)", "≥ PCIe 5.0 (32 GT/s)")
    assert not case("intake").set("pcie_generation_max", "gpu1", value=6.0).judge().findings


def test_a_pcie_link_that_rests_is_no_finding_and_one_that_is_slow_under_load_is(case: MakeCase) -> None:
    assert not case("intake").set("pcie_generation", "gpu1", value=1.0).judge().findings
    (finding,) = case("thermal").set("pcie_generation_loaded", "gpu1", value=1.0).judge().findings
    assert (finding.device, finding.observed) == ("gpu1", "PCIe 1.0 (2.5 GT/s)")


def test_a_warning_alone_warns(case: MakeCase) -> None:
    judgement = case("intake", "cpu-generic").set("clock_synchronised", value=0.0).judge()

    assert judgement.verdict is Verdict.WARN
    assert [each.metric for each in judgement.findings] == ["clock_synchronised"]


def test_what_no_limit_judges_is_provisional(case: MakeCase) -> None:
    judgement = case("burn_in", "cpu-generic").limited().judge()

    assert judgement.verdict is Verdict.PROVISIONAL
    assert judgement.coverage.measured == judgement.coverage.required
    assert judgement.coverage.judged < judgement.coverage.required
    assert Gap(Lack.UNJUDGED, UNJUDGED, "burn_rate_drop", "cpu0") in judgement.coverage.unjudged


def test_an_empty_requirement_is_never_a_pass(case: MakeCase) -> None:
    altered = case("intake", "cpu-generic")
    plan = altered.sku.programme.stages["intake"]
    probes = {name: use.model_copy(update={"require": ()}) for name, use in plan.probes.items()}
    stages = altered.sku.programme.stages | {"intake": plan.model_copy(update={"probes": probes})}
    altered.sku = altered.sku.model_copy(
        update={"programme": altered.sku.programme.model_copy(update={"stages": stages})}
    )

    judgement = altered.judge()

    assert judgement.verdict is Verdict.INCONCLUSIVE


def test_reported_but_never_judged_is_not_a_pass(case: MakeCase) -> None:
    """A stage in which every figure is only reported, and no rule applies, has judged nothing."""
    altered = case("intake", "cpu-generic").limited()
    use = altered.sku.programme.stages["intake"].probes["inventory"]
    unjudged = use.model_copy(update={"require": tuple(r.model_copy(update={"judged": False}) for r in use.require)})
    plan = altered.sku.programme.stages["intake"].model_copy(update={"probes": {"inventory": unjudged}})
    stages = altered.sku.programme.stages | {"intake": plan}
    altered.sku = altered.sku.model_copy(
        update={"programme": altered.sku.programme.model_copy(update={"stages": stages})}
    )

    assert altered.judge().verdict is Verdict.PROVISIONAL


def test_no_result_is_inconclusive_and_says_why(h100: Sku) -> None:
    judgement = judge(JudgeCase(h100, "burn_in", "demo", why_missing="the node could not be reached", simulated=True))

    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reason.endswith("everything: the node could not be reached.")
    assert judgement.coverage.measured == 0
    assert not judgement.coverage.full
    assert judgement.simulated


@pytest.mark.parametrize(("stage", "level"), [("thermal", "demo"), ("burn_in", "long")])
def test_a_result_of_another_stage_or_level_is_not_judged(case: MakeCase, stage: str, level: str) -> None:
    judgement = case("burn_in").judge(stage=stage, level=level)

    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert [gap.code for gap in judgement.coverage.missing] == [Lack.NO_RESULT]


@pytest.mark.parametrize(("stage", "level"), [("warp", "demo"), ("burn_in", "forever")])
def test_a_stage_or_level_that_there_is_not_never_raises(h100: Sku, stage: str, level: str) -> None:
    assert judge(JudgeCase(h100, stage, level)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("stage", "metric", "labels", "value", "extent"),
    [
        ("performance", "gemm_rate", {"dtype": "bf16"}, 400.0, Extent(400.0, "TFLOPS", "lower")),
        ("integrity", "gemm_mismatches", {}, 2.0, Extent(2.0, "count", "higher")),
        ("thermal", "throttle_time", {"reason": "hw_thermal"}, 40.0, Extent(40.0, "s", "higher")),
        ("intake", "gpu_model", {}, "another", Extent("another")),
    ],
)
def test_what_breaks_a_limit_says_how_far(
    case: MakeCase, stage: str, metric: str, labels: dict[str, str], value: float | str, extent: Extent
) -> None:
    findings = case(stage).set(metric, "gpu3", value=value, **labels).judge().findings
    assert {each.extent for each in findings if (each.metric, each.device) == (metric, "gpu3")} == {extent}


def test_evidence_of_the_controller_fails_without_any_result(h100: Sku) -> None:
    evidence = Evidence("uncommanded_reboot", "The node rebooted by itself under load.", action=Action.INSPECT)

    judgement = judge(JudgeCase(h100, "burn_in", "demo", why_missing="the job was gone", evidence=(evidence,)))

    assert judgement.verdict is Verdict.FAIL
    assert judgement.reason == evidence.sentence
    assert [(f.rule, f.device, f.severity, f.fault_class) for f in judgement.findings] == [
        ("uncommanded_reboot", "node", Severity.CRITICAL, FaultClass.NODE)
    ]


def test_evidence_fails_beside_a_healthy_result(case: MakeCase) -> None:
    evidence = [Evidence("lost_under_load_twice", "The node was lost under load twice.")]

    assert case("burn_in").judge(evidence=evidence).verdict is Verdict.FAIL


def test_a_judge_that_breaks_is_inconclusive(case: MakeCase) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no disk left")

    judgement = case("burn_in").judge(evaluate=broken)

    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert {gap.code for gap in judgement.coverage.missing} == {Lack.JUDGE_FAILED}


def test_simulated_follows_the_result_and_is_never_lost(case: MakeCase) -> None:
    simulated = case("intake")
    simulated.raw["simulated"] = True

    assert simulated.judge().simulated
    assert case("intake").judge(simulated=True).simulated
    assert not case("intake").judge().simulated


def test_the_judgement_cites_sku_and_revision(case: MakeCase, h100: Sku) -> None:
    judgement = case("intake").judge()

    assert (judgement.sku, judgement.sku_version) == ("h100-sxm-8", h100.revision)


def test_better_than_physics_measured_something_else(case: MakeCase) -> None:
    judgement = case("performance").set("gemm_rate", "gpu2", value=1400.0, dtype="bf16").judge()

    assert judgement.verdict is Verdict.INCONCLUSIVE
    (gap,) = judgement.coverage.missing
    assert (gap.code, gap.what, gap.device) == (Lack.INVALID, "gemm_rate[dtype=bf16]", "gpu2")
    assert judgement.findings[0].fault_class is FaultClass.SOFTWARE


class TestOverall:
    @staticmethod
    def judged(stage: str, verdict: Verdict) -> Judgement:
        coverage = Coverage(required=2, measured=2, judged=2)
        return Judgement(stage, "demo", verdict, f"why {verdict}", coverage, (), (), False, "sku", "1")

    def test_all_stages_passed(self) -> None:
        verdict, headline = overall([self.judged(stage, Verdict.PASS) for stage in STAGES], STAGES)

        assert verdict is Verdict.PASS
        assert "10" in headline

    @pytest.mark.parametrize(
        ("first", "second", "expected"),
        [
            (Verdict.PASS, Verdict.WARN, Verdict.WARN),
            (Verdict.WARN, Verdict.PROVISIONAL, Verdict.PROVISIONAL),
            (Verdict.PROVISIONAL, Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE),
            (Verdict.INCONCLUSIVE, Verdict.FAIL, Verdict.FAIL),
            (Verdict.PASS, Verdict.SKIPPED, Verdict.INCONCLUSIVE),
        ],
    )
    def test_the_gravest_counts(self, first: Verdict, second: Verdict, expected: Verdict) -> None:
        for pair in ((first, second), (second, first)):
            judgements = [
                self.judged(stage, verdict) for stage, verdict in zip(("intake", "thermal"), pair, strict=True)
            ]
            assert overall(judgements, ("intake", "thermal"))[0] is expected

    def test_a_stage_that_did_not_run_is_inconclusive_unless_another_failed(self) -> None:
        passed, failed = self.judged("intake", Verdict.PASS), self.judged("intake", Verdict.FAIL)

        assert overall([passed], ("intake", "thermal"))[0] is Verdict.INCONCLUSIVE
        assert overall([failed], ("intake", "thermal")) == (Verdict.FAIL, "intake: why FAIL")

    def test_the_headline_names_every_stage_that_failed(self) -> None:
        failed = [self.judged(stage, Verdict.FAIL) for stage in ("performance", "thermal")]

        _, headline = overall([self.judged("intake", Verdict.WARN), *failed], STAGES)

        assert all(stage in headline for stage in ("performance", "thermal"))

    def test_nothing_required_is_nothing_passed(self) -> None:
        assert overall([], ())[0] is Verdict.INCONCLUSIVE
        assert overall([self.judged("intake", Verdict.PASS)], ())[0] is Verdict.INCONCLUSIVE


def test_importing_the_judge_imports_no_great_expectations() -> None:
    """Great Expectations takes seconds to import; reading a SKU does not even need pandas."""
    code = (
        "import sys, muster_criteria.sku_files.skus, muster_criteria.sku_files.programme, muster_criteria.measured\n"
        "assert 'pandas' not in sys.modules\n"
        "import muster_criteria.stage.judge\n"
        "assert 'great_expectations' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_permuted_rows_change_nothing(case: MakeCase) -> None:
    altered = (
        case("performance").set("gemm_rate", "gpu6", value=500.0, dtype="bf16").set("memory_bandwidth", value=2700.0)
    )
    straight = altered.judge()
    altered.raw["measurements"].reverse()
    altered.raw["probes"].reverse()

    assert altered.judge() == straight
