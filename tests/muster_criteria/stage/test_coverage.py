"""Coverage: what is missing is named with the reason, and whatever is missing is never a pass."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from muster_criteria.model import Gap, Judgement, Lack, Verdict
from muster_criteria.sku_files.figures import Absent
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Requirement
from muster_criteria.sku_files.programme import stage_probes
from muster_criteria.stages import LEVELS
from muster_node.workloads.under_load.gpus import AT_REST
from tests.muster_criteria.nodes import CPUS, Case, MakeCase


def missing(judgement: Judgement) -> set[tuple[Lack, str, str]]:
    """(code, figure, device) of all that is missing."""
    assert judgement.verdict is Verdict.INCONCLUSIVE, judgement.reason
    coverage = judgement.coverage
    assert coverage.measured == coverage.required - len(coverage.missing)
    assert not coverage.full
    gaps = {(gap.code, gap.what, gap.device) for gap in coverage.missing}
    assert len(gaps) == len(coverage.missing)
    return gaps


@pytest.mark.parametrize("status", ["skipped", "crashed", "timed_out"])
def test_a_probe_that_did_not_complete_is_the_reason(case: MakeCase, status: str) -> None:
    gaps = missing(case("burn_in").end("gpu_burn", status, "no privilege.").judge())

    assert {(Lack.PROBE_ENDED, "burn_rate", "gpu3"), (Lack.PROBE_ENDED, "xid_delta", "node")} <= gaps
    assert "gpu_burn" not in {what for _, what, _ in gaps}


def test_probes_that_did_not_complete_are_named_in_the_order_of_the_programme(case: MakeCase) -> None:
    incomplete = case("burn_in")
    for end in incomplete.raw["probes"]:
        end["status"] = "crashed"
    probes = stage_probes(incomplete.sku, "burn_in", incomplete.raw["level"])
    named = [gap.what for gap in incomplete.judge().coverage.missing if gap.what in probes]

    assert named == list(probes)


def test_a_probe_that_never_ran_is_the_reason(case: MakeCase) -> None:
    spoilt = case("burn_in").end("gpu_burn", "crashed")
    spoilt.raw["probes"] = [end for end in spoilt.raw["probes"] if end["probe"] != "gpu_burn"]

    assert (Lack.DID_NOT_RUN, "burn_rate", "gpu0") in missing(spoilt.judge())


def test_a_completed_probe_that_forgot_a_device_is_the_reason(case: MakeCase) -> None:
    gaps = missing(case("performance").drop("gemm_rate", "gpu3", dtype="bf16").judge())

    assert gaps == {(Lack.NOT_REPORTED, "gemm_rate[dtype=bf16]", "gpu3")}


def test_what_the_node_could_not_tell_is_missing_with_its_note(case: MakeCase) -> None:
    spoilt = case("burn_in").set("ecc_uncorrected_delta", "gpu2", value=None)
    next(spoilt.rows("ecc_uncorrected_delta", "gpu2"))["note"] = "not supported"

    assert spoilt.judge().coverage.missing == (Gap(Lack.UNREADABLE, "not supported", "ecc_uncorrected_delta", "gpu2"),)


def test_a_promised_sensor_that_is_not_there_is_missing(case: MakeCase) -> None:
    gaps = missing(case("thermal").drop("temperature_max", "gpu4").judge())

    assert gaps == {(Lack.NO_SENSOR, "temperature_max", "gpu4")}


def test_a_sensor_that_is_not_promised_is_not_missed(case: MakeCase) -> None:
    assert case("thermal", "cpu-generic").judge().verdict is Verdict.PASS


def test_a_counter_that_cannot_be_read_here_is_noted_where_that_is_allowed(case: MakeCase) -> None:
    spoilt = case("burn_in", "cpu-generic").set("machine_checks", value=None)
    next(spoilt.rows("machine_checks"))["note"] = "not supported"
    judgement = spoilt.judge()

    assert judgement.verdict is Verdict.PASS
    (note,) = judgement.notes
    assert "machine_checks" in note
    assert judgement.coverage.required == case("burn_in", "cpu-generic").judge().coverage.required - 1


@pytest.mark.parametrize(
    ("how", "code"),
    [("dropped", Lack.NOT_REPORTED), ("no word why", Lack.REFUSED), ("contradictory", Lack.REFUSED)],
)
def test_but_it_must_have_been_tried_and_honestly(case: MakeCase, how: str, code: Lack) -> None:
    spoilt = case("burn_in", "cpu-generic")
    if how == "dropped":
        spoilt.drop("machine_checks")
    elif how == "no word why":
        spoilt.set("machine_checks", value=None)
    else:
        spoilt.add("cpu_burn", "machine_checks", "node", 3.0, "count")

    assert missing(spoilt.judge()) == {(code, "machine_checks", "node")}


def test_conflicting_duplicates_are_not_measured(case: MakeCase) -> None:
    spoilt = case("integrity").add("exact_gemm", "gemm_mismatches", "gpu0", 1.0, "count", labels={"dtype": "bf16"})

    assert missing(spoilt.judge()) == {(Lack.REFUSED, "gemm_mismatches[dtype=bf16]", "gpu0")}


def test_the_same_twice_is_once(case: MakeCase) -> None:
    spoilt = case("integrity")
    straight = spoilt.judge()
    spoilt.raw["measurements"] += [dict(row) for row in spoilt.raw["measurements"]]

    assert spoilt.judge() == straight


def test_another_unit_is_not_measured(case: MakeCase) -> None:
    spoilt = case("performance")
    next(spoilt.rows("memory_bandwidth", "gpu1", op="copy"))["unit"] = "MB/s"

    assert missing(spoilt.judge()) == {(Lack.REFUSED, "memory_bandwidth[op=copy]", "gpu1")}


REFUSED: dict[str, dict[str, Any]] = {
    "in another unit": {"unit": "1"},
    "as a text": {"value": None, "text": "7 tests failed"},
}


@pytest.mark.parametrize("how", [*REFUSED, "twice, with different values"])
def test_what_a_limit_would_have_judged_is_missing_where_it_was_refused(case: MakeCase, how: str) -> None:
    failed: dict[str, Any] = {"labels": {"test": "memory"}}
    node = case("performance", level="short").add("dcgm_diag", "dcgm_failures", "gpu3", 0.0, "count", **failed)
    assert not node.judge().coverage.missing
    if how in REFUSED:
        next(node.rows("dcgm_failures")).update(REFUSED[how])
    else:
        node.add("dcgm_diag", "dcgm_failures", "gpu3", 1.0, "count", **failed)

    assert missing(node.judge()) == {(Lack.REFUSED, "dcgm_failures[test=memory]", "gpu3")}


def test_an_inlet_in_another_unit_does_not_pass_as_cool(case: MakeCase) -> None:
    hot = case("thermal").add("thermal_soak", "inlet_temperature", "node", 104.0, "°F")

    assert missing(hot.judge()) == {(Lack.REFUSED, "inlet_temperature", "node")}


def test_what_no_limit_is_about_and_what_is_of_no_counted_gpu_is_not_missed(case: MakeCase) -> None:
    healthy = case("performance", level="short")
    for value in (1.0, 2.0):
        healthy.add("dcgm_diag", "dcgm_seconds", "gpu3", value, "s")
    assert not healthy.judge().coverage.missing

    extra = case("performance", level="short").add("dcgm_diag", "dcgm_failures", "gpu8", 0.0, "1")
    assert not extra.judge().coverage.missing


def test_another_probes_figure_is_not_the_one_required(case: MakeCase) -> None:
    spoilt = case("burn_in")
    for row in spoilt.rows("burn_rate", "gpu0"):
        row["probe"] = "inventory"

    assert missing(spoilt.judge()) == {(Lack.NOT_REPORTED, "burn_rate", "gpu0")}


def test_every_cpu_that_the_machine_counts_must_be_measured(case: MakeCase) -> None:
    spoilt = case("burn_in", "cpu-generic").set("cpu_threads", value=CPUS + 2.0)

    assert missing(spoilt.judge()) == {
        (Lack.NOT_REPORTED, metric, f"cpu{n}")
        for metric in ("burn_rate", "burn_rate_drop", "cpu_share")
        for n in (4, 5)
    }


def test_a_few_bursts_are_no_power_pulses(case: MakeCase) -> None:
    hardly = case("burn_in", level="short").set("pulse_share", "gpu3", value=1.0, pattern="in phase")

    assert missing(hardly.judge()) == {(Lack.INVALID, "pulse_share[pattern=in phase]", "gpu3")}

    hardly = case("integrity", level="short").set("pulse_share", "gpu3", value=1.0, pattern="in phase", dtype="fp8")

    assert missing(hardly.judge()) == {(Lack.INVALID, "pulse_share[dtype=fp8,pattern=in phase]", "gpu3")}


@pytest.mark.parametrize(("stage", "metric"), [("integrity", "round_trip_cores"), ("burn_in", "host_cores")])
def test_the_cpus_of_a_node_with_gpus_must_be_tested_but_for_a_fifth(case: MakeCase, stage: str, metric: str) -> None:
    for untested in (0.0, 0.125):
        assert not case(stage).set(metric, value=CPUS * (1 - untested)).judge().coverage.missing

    assert missing(case(stage).set(metric, value=CPUS * 0.79).judge()) == {(Lack.INVALID, metric, "node")}


@pytest.mark.parametrize(("stage", "counts"), [("integrity", "cpu_threads"), ("burn_in", "cpu_cores")])
def test_what_a_limit_is_relative_to_is_required(case: MakeCase, stage: str, counts: str) -> None:
    assert missing(case(stage).drop(counts).judge()) == {(Lack.NOT_REPORTED, counts, "node")}


def test_clocks_without_a_default_are_a_note(case: MakeCase) -> None:
    newer = case("intake").set("application_clock_default", value=None)
    for row in newer.rows("application_clock_default"):
        row["note"] = "not supported"

    assert not newer.judge().coverage.missing


@pytest.mark.parametrize("count", [None, 0.0, 1e12, -3.0])
def test_a_count_that_cannot_be_is_not_believed(case: MakeCase, count: float | None) -> None:
    gaps = missing(case("burn_in", "cpu-generic").set("cpu_threads", value=count).judge())

    assert (Lack.UNCOUNTED, "burn_rate", "each cpu") in gaps


def test_a_cpu_that_answers_elsewhere_is_required_everywhere(case: MakeCase) -> None:
    """A node that counts fewer CPUs than it reports on gets no rebate."""
    spoilt = case("burn_in", "cpu-generic").set("cpu_threads", value=1.0).drop("burn_rate", "cpu3")

    assert missing(spoilt.judge()) == {(Lack.NOT_REPORTED, "burn_rate", "cpu3")}


def test_each_core_is_counted_by_the_inventory(case: MakeCase) -> None:
    spoilt = case("burn_in", "cpu-generic")
    use = spoilt.sku.programme.stages["burn_in"].probes["cpu_burn"]
    per_core = use.model_copy(update={"require": (Requirement(metric="burn_rate", devices="each core", judged=False),)})
    with_core(spoilt, per_core)

    assert spoilt.judge().verdict is Verdict.PASS
    assert missing(spoilt.drop("burn_rate", "cpu1").judge()) == {(Lack.NOT_REPORTED, "burn_rate", "cpu1")}


def with_core(spoilt: Case, use: object) -> None:
    stages = spoilt.sku.programme.stages
    plan = stages["burn_in"].model_copy(update={"probes": stages["burn_in"].probes | {"cpu_burn": use}})
    programme = spoilt.sku.programme.model_copy(update={"stages": stages | {"burn_in": plan}})
    spoilt.sku = spoilt.sku.model_copy(update={"programme": programme})


ALONE: dict[str, dict[str, str]] = {
    "collective_busbw": {},
    "collective_mismatches": {},
    "peer_bandwidth": {},
    "transfer_mismatches": {"direction": "peer"},
}
"""What a node with one GPU cannot show, with the labels."""


@pytest.mark.parametrize("level", LEVELS)
def test_a_probe_of_which_the_model_can_give_nothing_may_be_skipped(case: MakeCase, level: str) -> None:
    assert not _of_one_gpu(case, level, **ALONE).judge().coverage.missing
    if level != "demo":
        gaps = missing(_of_one_gpu(case, level, **ALONE | {"collective_busbw": {"op": "all_reduce"}}).judge())
        assert {code for code, _, _ in gaps} == {Lack.PROBE_ENDED}


def _of_one_gpu(case: MakeCase, level: str, **absent: dict[str, str]) -> Case:
    """A node with one GPU, which has no second one for ``collectives``, and these absent measurements."""
    node = case("performance", "h100-sxm-8", level)
    source: dict[str, Any] = {"source": "the node has one GPU", "date": datetime.date(2027, 1, 1)}
    lacks = tuple(Absent(metric=metric, labels=labels, **source) for metric, labels in absent.items())
    node.sku = node.sku.model_copy(update={"devices": {"gpu": 1}, "absent": lacks})
    others = {f"gpu{slot}" for slot in range(1, 8)}
    node.end("collectives", "skipped", "there is only one GPU")
    node.raw["measurements"] = [row for row in node.raw["measurements"] if row["device"] not in others]
    return node


def test_a_clock_that_no_cpu_shows_is_no_miss_and_one_that_others_show_is(case: MakeCase) -> None:
    """Kernels of some arm64 machines have no cpufreq."""
    every = tuple(f"cpu{n}" for n in range(CPUS))
    none = _unread(case("performance", "cpu-generic"), "gemm_peak_share", "no clock", *every).judge()
    assert not none.coverage.missing
    assert any("gemm_peak_share" in note for note in none.notes)
    gaps = missing(_unread(case("performance", "cpu-generic"), "gemm_peak_share", "no clock", "cpu2").judge())
    assert {(code, device) for code, _, device in gaps} == {(Lack.UNREADABLE, "cpu2")}


RATE_FLOOR = Limit.model_validate({
    "metric": "gemm_rate", "device": "cpu", "unit": "GFLOPS", "floor": 10,
    "source": "for this test", "date": "2027-01-01",
})  # fmt: skip


@pytest.mark.parametrize(("floor", "verdict"), [(False, Verdict.PROVISIONAL), (True, Verdict.FAIL)])
def test_a_slow_cpu_without_a_clock_passes_no_test_that_judges_no_rate(
    case: MakeCase, floor: bool, verdict: Verdict
) -> None:
    node = _unread(case("performance", "cpu-generic"), "gemm_peak_share", "no clock", *(f"cpu{n}" for n in range(CPUS)))
    for row in node.raw["measurements"]:
        row["unit"] = "GFLOPS" if row["metric"] == "gemm_rate" else row["unit"]
    if floor:
        node.sku = node.sku.model_copy(update={"limits": (*node.sku.limits, RATE_FLOOR)})
        assert node.judge().verdict is Verdict.PASS
    for row in node.raw["measurements"]:
        row["value"] = row["value"] * 0.02 if row["metric"] == "gemm_rate" else row["value"]
    judged = node.judge()
    assert judged.verdict is verdict
    assert judged.coverage.judged == judged.coverage.measured - len(judged.coverage.unjudged)
    unjudged = {(gap.what, gap.device) for gap in judged.coverage.unjudged}
    assert (("gemm_rate[dtype=fp64]", "cpu0") in unjudged) is not floor


def test_where_the_node_says_why_no_gpu_answers_no_part_is_suspected(case: MakeCase) -> None:
    node = case("intake")
    node.raw["measurements"] = [row for row in node.raw["measurements"] if not row["device"].startswith("gpu")]
    node.add("inventory", "gpu_count", "node", None, "count", note="GPUs of PCI vendor 0x1002 are on the bus")
    (why,) = {gap.why for gap in node.judge().coverage.missing if gap.what == "all GPUs"}
    assert "0x1002" in why
    assert "baseboard" not in why


@pytest.mark.parametrize("end", ["busy", "fenced", "terminated", "deadline", "error"])
def test_a_job_that_ended_early_is_inconclusive_whatever_it_measured(case: MakeCase, end: str) -> None:
    spoilt = case("integrity")
    spoilt.raw |= {"end": end, "partial": True, "notes": ["somebody is logged in"]}

    (gap,) = spoilt.judge().coverage.missing
    assert (gap.code, gap.why) == (Lack.ENDED_EARLY, "somebody is logged in")


def test_a_partial_result_still_fails(case: MakeCase) -> None:
    spoilt = case("integrity").set("gemm_mismatches", "gpu5", value=1.0, dtype="bf16")
    spoilt.raw |= {"end": "terminated", "partial": True}

    assert spoilt.judge().verdict is Verdict.FAIL


def test_a_probe_without_requirements_must_not_crash_unseen(case: MakeCase) -> None:
    assert missing(case("integrity", "cpu-generic").end("inventory", "crashed", "no").judge())
    skipped = case("burn_in").end("inventory", "skipped", "no")

    assert {code for code, _, _ in missing(skipped.judge())} == {Lack.PROBE_ENDED}


def test_a_missing_gpu_fails_by_name_in_every_stage(case: MakeCase) -> None:
    for stage in ("intake", "burn_in", "integrity", "performance", "thermal"):
        spoilt = case(stage)
        spoilt.raw["measurements"] = [m for m in spoilt.raw["measurements"] if m["device"] != "gpu3"]
        judgement = spoilt.judge()
        assert judgement.verdict is Verdict.FAIL
        assert {finding.device for finding in judgement.findings} == {"gpu3"}
        assert {(gap.code, gap.device) for gap in judgement.coverage.missing} <= {(Lack.NO_ANSWER, "gpu3")}


def test_when_no_gpu_answers_the_driver_is_suspected_first(case: MakeCase) -> None:
    spoilt = case("intake")
    spoilt.raw["measurements"] = [m for m in spoilt.raw["measurements"] if not m["device"].startswith("gpu")]

    assert (Lack.NO_ANSWER, "all GPUs", "") in missing(spoilt.judge())


def _unread(changed: Case, metric: str, note: str, *devices: str) -> Case:
    for device in devices:
        for row in changed.rows(metric, device):
            row |= {"value": None, "text": None, "note": note}
    return changed


@pytest.mark.parametrize(
    ("metric", "note"),
    [
        ("sram_threshold_exceeded", "not supported"),
        ("recovery_action", "not supported"),
        ("fabric_healthy", "not supported"),
        ("foreign_processes", "1 processes on it are not visible here"),
        ("pcie_generation_loaded", "NVML: Unknown Error (error 999)"),
    ],
)
def test_what_the_siblings_of_a_device_show_is_not_excused_for_it(case: MakeCase, metric: str, note: str) -> None:
    """NVML answers "not supported" for a GPU in a bad state too."""
    gaps = missing(_unread(case("burn_in"), metric, note, "gpu4").judge())
    assert gaps == {(Lack.UNREADABLE, metric, "gpu4")}
    every = [f"gpu{slot}" for slot in range(8)]
    assert not _unread(case("burn_in"), metric, note, *every).judge().coverage.missing


def test_what_siblings_show_under_another_label_makes_no_gpu_odd(case: MakeCase) -> None:
    every = [f"gpu{slot}" for slot in range(8)]
    node = _unread(case("intake"), "row_remap_banks", "not supported", *every)
    for gpu in every:
        node.add("inventory", "row_remap_banks", gpu, 0.0, "count", labels={"spare": "partial"})
    assert not node.judge().coverage.missing


def test_a_model_may_say_that_it_has_no_gpus(case: MakeCase) -> None:
    node = case("intake", "cpu-generic")
    node.sku = node.sku.model_copy(update={"devices": {**node.sku.devices, "gpu": 0}})
    assert node.judge().verdict is Verdict.PASS


def test_a_gpu_that_no_reading_found_at_work_is_no_odd_one(case: MakeCase) -> None:
    changed = _unread(case("burn_in"), "pcie_generation_loaded", AT_REST, "gpu4")
    assert not changed.judge().coverage.missing
