"""Floors learned from healthy nodes: enough of them, robust against the odd one out, canary on a new stack."""

from __future__ import annotations

import dataclasses
import datetime
import random
from pathlib import Path

import pandas as pd
import pytest
import yaml

from muster_criteria.fleet.series.readings import as_readings, group_of, readings_of, together
from muster_criteria.model import Severity
from muster_criteria.rows import rows_of
from muster_criteria.sku_files.learn import RATE_UNITS, learn
from muster_criteria.sku_files.learned import (
    SLOW,
    TOO_SLOW,
    Calibration,
    LearnedFile,
    Remark,
    as_file,
    floors_of,
    in_force,
    with_learned,
    without,
)
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku, SkuError
from muster_criteria.sku_files.skus import SHIPPED, lint_sku, list_skus, load_sku
from muster_criteria.sku_files.work import outdated, outdated_notes, sku_work
from muster_criteria.stage.case import Case as JudgeCase
from muster_criteria.stage.judge import judge_all
from muster_criteria.stage.prefilter import small_margins
from tests.muster_criteria.nodes import Case, healthy_raw
from tests.muster_criteria.violations import violations

OLD, NEW = {"driver": "570.1"}, {"driver": "580.2"}
TODAY = datetime.date(2026, 11, 21)
LABELS = {"dtype": "bf16"}
METRIC = "gemm_rate[dtype=bf16]"
FP8_FLOOR = 812.0
"""TFLOPS: the SKU's own; it has none for bf16."""


def fleet(nodes: int, *, rate: float = 740.0, spread: float = 0.01, driver: dict[str, str] = OLD, first: int = 0,
          slow: tuple[int, ...] = (), seed: int = 7, dtype: str = "bf16") -> pd.DataFrame:  # fmt: skip
    """Readings of GEMM of 8-GPU nodes; the slow ones lose a fifth on one GPU."""
    dice = random.Random(seed)
    rows = [
        (
            f"n{node:03d}", f"gpu{gpu}", group_of("h200-sxm-8", driver), "h200-sxm-8", "gemm_rate", f"dtype={dtype}",
            "TFLOPS", rate * dice.gauss(1.0, spread) * (0.8 if node in slow and gpu == 3 else 1.0), 20000.0, "d/r",
        )
        for node in range(first, first + nodes)
        for gpu in range(8)
    ]  # fmt: skip
    columns = ["node", "device", "group", "sku", "metric", "labels", "unit", "value", "at", "run"]
    return as_readings(pd.DataFrame(rows, columns=columns))


def unusable() -> dict[str, str]:
    """Texts of ``learned/h200-sxm-8-0001.yaml`` that are refused; the last would do for its own SKU."""
    limits, work = load_sku("h200-sxm-8").limits, sku_work(load_sku("h200-sxm-8"), "standard")
    text = as_file("b200-sxm-8", learn(fleet(16), ()), "standard", 1, TODAY, limits, work)
    return {"not YAML": "a: [", "incomplete": "learned: h200-sxm-8", "of another SKU": text}


def written(calibration: Calibration, folder: Path, revision: int = 1, level: str = "standard") -> LearnedFile:
    path = folder / "learned" / f"h200-sxm-8-{revision:04d}.yaml"
    path.parent.mkdir(exist_ok=True)
    sku = load_sku("h200-sxm-8")
    path.write_text(as_file(sku.name, calibration, level, revision, TODAY, sku.limits, sku_work(sku, level)))
    return next(each for each in in_force([folder], "h200-sxm-8")[1] if each.revision == revision)


def loaded(folder: Path, stack: str) -> tuple[Limit, ...]:
    """The floors in force on this stack of the metric that ``fleet`` measures."""
    limits = load_sku("h200-sxm-8", (folder,)).on(stack, "standard").limits
    wanted = ("gemm_rate", "floor", {"dtype": "bf16"})
    return tuple(each for each in limits if (each.metric, each.key, each.labels) == wanted)


def gravity(sku: Sku, level: str, rate: float, *, dtype: str) -> set[Severity]:
    """Of the floors that GEMM breaks at this rate on a node of the stack ``OLD``."""
    node = Case(sku, healthy_raw(sku, "performance", level)).set("gemm_rate", value=rate, dtype=dtype)
    node.raw["environment"] = OLD
    return {each.severity for each in node.judge().findings if (each.rule, each.metric) == ("floor", "gemm_rate")}


@pytest.mark.parametrize(
    ("metric", "fault", "action"),
    [
        ("gemm_rate", "gpu", "retest"), ("gemm_rate_per_clock", "gpu", "retest"), ("burn_rate", "gpu", "retest"),
        ("memory_bandwidth", "hbm", "retest"), ("pcie_bandwidth", "pcie", "retest"),
    ],
)  # fmt: skip
def test_a_learned_floor_suspects_what_a_floor_does_and_no_software(metric: str, fault: str, action: str) -> None:
    calibration, sku = learn(fleet(16), ()), load_sku("h100-sxm-8")
    (found,) = calibration.learned
    calibration = dataclasses.replace(calibration, learned=(dataclasses.replace(found, metric=metric),))
    like = (*sku.physical_peaks, *sku.limits)
    file = yaml.safe_load(as_file(sku.name, calibration, "standard", 1, TODAY, like, {}))
    assert {(each["fault"], each["action"]) for each in file["limits"]} == {(fault, action)}


@pytest.mark.parametrize("name", list_skus())
def test_rates_of_which_no_figure_is_published_are_learned_too(tmp_path: Path, name: str) -> None:
    calibration, sku = learn(fleet(16), ()), load_sku(name)
    (found,) = calibration.learned
    known = {each.metric for each in sku.figures} | {each.metric for each in sku.physical_peaks}
    rates = {(each.metric, each.device, each.unit) for each in sku.limits if each.unit in RATE_UNITS}
    learned = [
        dataclasses.replace(found, metric=metric, kind=kind, unit=unit, labels=(), fail=1.0, warn=1.1)
        for metric, kind, unit in rates
        if metric not in known
    ]
    calibration = dataclasses.replace(calibration, learned=tuple(learned))
    (tmp_path / "learned").mkdir()
    text = as_file(name, calibration, "standard", 1, TODAY, sku.limits, sku_work(sku, "standard"))
    (tmp_path / "learned" / f"{name}-0001.yaml").write_text(text)
    assert learned
    assert lint_sku(name, [tmp_path]) == []


@pytest.mark.parametrize("nodes", [0, 1, 15])
def test_fewer_than_sixteen_nodes_teach_nothing(nodes: int) -> None:
    calibration = learn(fleet(nodes), ())
    assert calibration.learned == ()
    assert calibration.refused
    assert (calibration.nodes, calibration.needed) == (nodes, 16)


def test_sixteen_nodes_teach_floors_that_no_healthy_device_is_below() -> None:
    readings = fleet(16)
    found = learn(readings, ()).learned[0]
    assert (found.name, found.basis.nodes, found.basis.devices) == (METRIC, 16, 128)
    assert 0.89 * found.basis.median < found.fail <= 0.90 * found.basis.median
    assert found.fail < found.warn <= 0.95 * found.basis.median
    assert found.warn < readings["value"].min()


def test_wide_spread_lowers_the_floor_rather_than_failing_healthy_nodes() -> None:
    readings = fleet(32, spread=0.04)
    found = learn(readings, ()).learned[0]
    assert found.fail < 0.85 * found.basis.median
    assert found.fail <= readings["value"].min()


def test_readings_of_two_models_teach_no_floor() -> None:
    slow, fast = fleet(16, rate=200.0), fleet(16, rate=740.0, first=16)
    calibration = learn(as_readings(pd.concat([slow, fast], ignore_index=True)), ())
    assert not calibration.learned
    assert [(note.code, note.metric) for note in calibration.notes] == [(Remark.TOO_WIDE, METRIC)]


@pytest.mark.parametrize("rate", [0.001, 500.0])
def test_no_published_figure_of_another_message_size_refuses_a_learned_floor(tmp_path: Path, rate: float) -> None:
    collective = {
        "metric": "collective_busbw",
        "labels": "bytes=8,nvls=on,op=all_reduce",
        "unit": "GB/s",
        "device": "node",
    }
    written(learn(as_readings(fleet(16, rate=rate).assign(**collective)), ()), tmp_path)
    assert lint_sku("h200-sxm-8", [tmp_path]) == []


def test_nodes_that_stand_out_below_are_left_out_and_named() -> None:
    calibration = learn(fleet(20, slow=(4, 11)), ())
    assert calibration.left_out == ("n004", "n011")
    assert calibration.learned[0].basis.nodes == 18
    assert calibration.learned[0].fail == pytest.approx(learn(fleet(20), ()).learned[0].fail, rel=0.01)


def test_too_few_left_after_that_teach_nothing_of_the_metric() -> None:
    calibration = learn(fleet(17, slow=(1, 2)), ())
    assert calibration.learned == ()
    (note,) = calibration.notes
    assert (note.code, note.metric) == (Remark.TOO_FEW_NODES, METRIC)


def test_a_new_stack_is_a_canary_until_most_nodes_run_it(tmp_path: Path) -> None:
    before = written(learn(fleet(40), ()), tmp_path)
    few = pd.concat([fleet(30), fleet(16, driver=NEW, rate=700.0, first=100)], ignore_index=True)
    calibration = learn(as_readings(few), [before], "driver=580.2")
    assert (calibration.stack, calibration.canary, calibration.nodes) == ("driver=580.2", True, 16)
    assert [(note.code, note.metric) for note in calibration.notes] == [(Remark.FLOOR_LOWERED, METRIC)]
    file = written(calibration, tmp_path, 2)
    assert {limit.breach for limit in file.limits} == {"warn"}
    assert floors_of(file)[0].fail == calibration.learned[0].fail

    own = {limit.value for limit in load_sku("h200-sxm-8").limits if limit.labels == LABELS and limit.key == "floor"}
    floors = {(limit.breach, limit.value) for limit in loaded(tmp_path, "driver=580.2")}
    assert floors == {*(("fail", each) for each in own), ("warn", calibration.learned[0].fail)}

    assert learn(as_readings(few), [file, before], "driver=580.2").canary, "as few as before"
    most = pd.concat([fleet(10), fleet(30, driver=NEW, rate=600.0, first=100)], ignore_index=True)
    grown = learn(as_readings(most), [file, before])
    assert not grown.canary
    assert (grown.learned[0].fail, grown.learned[0].warn) == (calibration.learned[0].fail,) * 2, "the canary's is kept"


def test_a_new_stack_needs_a_twentieth_of_a_large_fleet(tmp_path: Path) -> None:
    before = [written(learn(fleet(16), ()), tmp_path)]
    large = pd.concat([fleet(400), fleet(20, driver=NEW, first=500)], ignore_index=True)
    calibration = learn(as_readings(large), before, "driver=580.2")
    assert calibration.refused
    assert (calibration.nodes, calibration.needed) == (20, 21)


def test_a_floor_does_not_sink_in_silence(tmp_path: Path) -> None:
    before = written(learn(fleet(16), ()), tmp_path)
    (was,) = floors_of(before)
    calibration = learn(fleet(16, rate=700.0), [before])
    assert calibration.learned[0] == was
    assert [note.code for note in calibration.notes] == [Remark.FLOOR_KEPT]
    assert learn(fleet(16, rate=760.0), [before]).learned[0].fail > was.fail


def test_a_floor_does_not_sink_after_another_stack_was_tried_and_rolled_back(tmp_path: Path) -> None:
    written(learn(fleet(30), ()), tmp_path)
    both = as_readings(pd.concat([fleet(30), fleet(16, driver=NEW, first=100)], ignore_index=True))
    written(learn(both, in_force([tmp_path], "h200-sxm-8")[1], "driver=580.2"), tmp_path, 2)
    known = in_force([tmp_path], "h200-sxm-8")[1]
    assert [(each.stack, each.canary) for each in known] == [("driver=580.2", True), ("driver=570.1", False)]

    calibration = learn(fleet(30, rate=710.0), known)
    assert calibration.learned[0] == floors_of(known[1])[0]
    assert not calibration.canary


@pytest.mark.parametrize(
    ("rate", "spread", "reading", "notes"),
    [(866.0, 0.027, 808.0, [Remark.FLOOR_KEPT]), (1300.0, 0.01, 1100.0, [])],
    ids=["the SKU's own", "the learned one"],
)
def test_the_higher_of_the_skus_floor_and_the_learned_one_fails(
    tmp_path: Path, rate: float, spread: float, reading: float, notes: list[Remark]
) -> None:
    limits = load_sku("h200-sxm-8").limits
    calibration = learn(fleet(40, rate=rate, spread=spread, dtype="fp8"), (), limits=limits)
    (found,) = calibration.learned
    assert min(FP8_FLOOR, found.fail) < reading < max(FP8_FLOOR, found.fail)
    assert [note.code for note in calibration.notes] == notes
    written(calibration, tmp_path)
    assert lint_sku("h200-sxm-8", [tmp_path]) == []

    sku = load_sku("h200-sxm-8", [tmp_path])
    assert gravity(sku, "standard", reading, dtype="fp8") == {Severity.CRITICAL}


def test_a_warn_floor_of_the_sku_stays_in_force_too(tmp_path: Path) -> None:
    (own,) = (limit for limit in load_sku("h200-sxm-8").limits if limit.number == FP8_FLOOR)
    warns = own.model_copy(update={"breach": "warn"})
    calibration = learn(fleet(40, rate=833.0, dtype="fp8"), (), limits=[warns])
    assert calibration.learned[0].warn < FP8_FLOOR
    assert [note.code for note in calibration.notes] == [Remark.FLOOR_KEPT]
    assert warns in with_learned([warns], written(calibration, tmp_path))


@pytest.mark.parametrize("canary", [False, True])
def test_learned_floors_judge_nodes_of_their_own_stack_only(tmp_path: Path, canary: bool) -> None:
    slow, fast = (learn(fleet(40, rate=rate, driver=of), ()) for rate, of in ((740.0, OLD), (900.0, NEW)))
    written(slow, tmp_path)
    written(dataclasses.replace(fast, canary=canary), tmp_path, 2)
    sku = load_sku("h200-sxm-8", [tmp_path])
    cases = []
    for name, driver in (("old", "570.1"), ("new", "580.2"), ("other", "590.3")):
        node = Case(sku, healthy_raw(sku, "performance", "standard"))
        node.set("gemm_rate", value=740.0)
        node.raw |= {
            "node": name, "environment": {"driver": driver}, "measurements": list(node.rows("gemm_rate", **LABELS)),
        }  # fmt: skip
        cases.append(JudgeCase(sku, "performance", "standard", node.result()))
    judged = judge_all(cases, evaluate=violations)
    found = [{each.severity for each in one.findings if each.rule == "floor"} for one in judged]
    assert found == [set(), {Severity.WARNING if canary else Severity.CRITICAL}, set()]
    assert {one.sku_version for one in judged} == {sku.revision}
    assert [any("no floors were learned" in note for note in one.notes) for one in judged] == [False, False, True]

    readings = [
        readings_of(
            [row for row in rows_of(each.result, sku) if row.metric == "gemm_rate"], node=each.result.node, at=0.0,
            run="now", sku=sku.name, environment=each.result.environment, zone="z",
        )
        for each in cases if each.result
    ]  # fmt: skip
    assert small_margins(together(readings), sku, "performance", "standard") == {"new"}
    assert small_margins(together(readings), sku, "performance", "short") == set()


def test_learned_floors_judge_tests_of_their_own_level_only(tmp_path: Path) -> None:
    fast = learn(fleet(16, rate=900.0), ())
    written(fast, tmp_path, level="short")
    sku = load_sku("h200-sxm-8", [tmp_path])
    assert [gravity(sku, level, 740.0, dtype="bf16") for level in ("short", "standard")] == [{Severity.CRITICAL}, set()]

    written(learn(fleet(16), ()), tmp_path, 2, level="standard")
    written(fast, tmp_path, 3, level="short")
    known = in_force([tmp_path], "h200-sxm-8")[1]
    assert [(each.level, each.revision) for each in known] == [("short", 3), ("standard", 2)]


def test_floors_of_a_probe_whose_parameters_changed_apply_to_nothing_and_bind_no_later_learning(tmp_path: Path) -> None:
    file = written(learn(fleet(16), ()), tmp_path)
    assert outdated_notes(load_sku("h200-sxm-8", [tmp_path])) == []
    text = (SHIPPED / "programmes" / "gpu-node.yaml").read_text()
    (tmp_path / "programmes").mkdir()
    seconds = "          seconds: {demo: 0.6, short: 60,"
    changed = text.replace(seconds, f"          size: 4096\n{seconds}", 1)
    (tmp_path / "programmes" / "gpu-node.yaml").write_text(changed)
    assert changed != text

    sku = load_sku("h200-sxm-8", [tmp_path])
    assert sku.on("driver=570.1", "standard").limits == sku.limits
    assert (outdated(sku, file), len(outdated_notes(sku))) == ({"gemm_rate"}, 1)
    again = learn(fleet(16, rate=600.0), [without(file, outdated(sku, file))])
    assert (again.notes, again.learned[0].fail < 0.9 * floors_of(file)[0].fail) == ((), True)


def test_a_learned_file_with_a_problem_is_named(tmp_path: Path) -> None:
    written(learn(fleet(16), ()), tmp_path)
    path = tmp_path / "learned" / "h200-sxm-8-0001.yaml"
    path.write_text(path.read_text().replace("metric: gemm_rate", "metric: gemm_rate_old"))
    assert {problem.file for problem in lint_sku("h200-sxm-8", [tmp_path])} == {"learned/h200-sxm-8-0001.yaml"}


def test_a_kept_revision_judges_as_the_files_did(tmp_path: Path) -> None:
    written(learn(fleet(16), ()), tmp_path)
    sku = load_sku("h200-sxm-8", [tmp_path])
    kept = Sku.model_validate_json(sku.model_dump_json())
    on = "driver=570.1", "standard"
    assert kept.on(*on).limits == sku.on(*on).limits != sku.limits


def test_what_was_learned_is_in_force_with_its_provenance_and_changes_the_revision(tmp_path: Path) -> None:
    before = load_sku("h200-sxm-8", [tmp_path]).revision
    calibration = learn(fleet(16), ())
    (basis,) = written(calibration, tmp_path).basis
    assert (basis.devices, basis.nodes) == (128, 16)
    sku = load_sku("h200-sxm-8", [tmp_path])
    assert sku.revision != before
    assert lint_sku("h200-sxm-8", [tmp_path]) == []
    floors = loaded(tmp_path, "driver=570.1")
    assert [(limit.breach, limit.number) for limit in floors] == [
        ("fail", calibration.learned[0].fail), ("warn", calibration.learned[0].warn)
    ]  # fmt: skip
    assert floors[0].stack == "driver=570.1"


def test_floors_learned_on_an_unknown_stack_are_in_force_and_say_so(tmp_path: Path) -> None:
    written(dataclasses.replace(learn(fleet(16), ()), stack=""), tmp_path)
    assert {(limit.meaning, limit.stack) for limit in loaded(tmp_path, "")} == {
        (TOO_SLOW, "not stated"), (SLOW, "not stated")
    }  # fmt: skip


def test_the_highest_number_is_in_force_together_with_the_skus_own(tmp_path: Path) -> None:
    calibration = learn(fleet(16), ())
    own = calibration.learned[0]
    fp8 = dataclasses.replace(own, labels=(("dtype", "fp8"),), fail=1000.0, warn=1050.0)
    written(calibration, tmp_path, 1)
    written(dataclasses.replace(calibration, learned=(own, fp8)), tmp_path, 2)
    (file,) = in_force([tmp_path], "h200-sxm-8")[1]
    assert file.revision == 2
    limits = load_sku("h200-sxm-8", [tmp_path]).on("driver=570.1", "standard").limits
    numbers = [limit.number for limit in limits if limit.labels == {"dtype": "fp8"} and limit.key == "floor"]
    assert numbers == [FP8_FLOOR, 1000.0, 1050.0]


@pytest.mark.parametrize("case", ["not YAML", "incomplete", "of another SKU"])
def test_a_calibration_that_cannot_be_used_is_refused(tmp_path: Path, case: str) -> None:
    (tmp_path / "learned").mkdir()
    (tmp_path / "learned" / "h200-sxm-8-0001.yaml").write_text(unusable()[case])
    with pytest.raises(SkuError):
        load_sku("h200-sxm-8", [tmp_path])
