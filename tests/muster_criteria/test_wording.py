"""The wording of all messages of stage, context and sku_files: one snapshot, renewed by ``make wording``."""

from __future__ import annotations

import dataclasses
import datetime
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from syrupy.assertion import SnapshotAssertion

from muster_criteria.context.alike import Neighbour, compared_with
from muster_criteria.context.goldens import Golden, Goldens, Sighting, golden_id
from muster_criteria.context.waivers import Machine, Waiver, waive
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.series.readings import as_readings
from muster_criteria.measured import BadResult, parse_result
from muster_criteria.model import Evidence, Judgement
from muster_criteria.sku_files.learn import learn
from muster_criteria.sku_files.model import Sku, SkuError
from muster_criteria.sku_files.skus import SHIPPED, lint_sku, load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_criteria.stage.verdict import overall
from tests.muster_criteria.nodes import Case as Node
from tests.muster_criteria.nodes import MakeCase
from tests.muster_criteria.sku_files.test_learn import NEW, fleet, unusable, written
from tests.muster_criteria.sku_files.test_skus import WRONG, WRONG_PROGRAMMES, rewrite

NOW = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)
KEY, OP = "gpu=H100; sms=132", "attention"
GOLDEN = Golden(golden_id(KEY, OP, simulated=False), "right", NOW, ("gpu 1 on a", "gpu 2 on b", "gpu 3 on c"))
SEEN = tuple(
    Sighting(GOLDEN.id, KEY, OP, "right", f"gpu {number}", "gpu0", node, f"dag/{node}", NOW)
    for number, node in enumerate("ab")
)
LABELS = {"dtype": "bf16"}
COUNTS = re.compile(r"\d+(?= required)|(?<=\()\d+(?= of \d+ required)|(?<=\(and )\d+(?= more\))")
"""Counts that change with every new requirement of a SKU."""
LISTED = re.compile(r"\((known are|it has) [a-z_0-9, ]+\)")
"""Lists that change with every new probe or parameter."""


def lines(judgement: Judgement) -> list[str]:
    """The judgement's messages, at most three findings of each code."""
    found: dict[str, list[str]] = {}
    for each in judgement.findings:
        text = f"{each.code} ({each.severity}, {each.action}): {each.summary} [{each.expected}]"
        found.setdefault(each.code, []).append(f"{text}{f' [waived {each.waived}]' if each.waived else ''}")
    coverage = judgement.coverage
    reason = COUNTS.sub("N", judgement.reason)
    return [
        f"{judgement.verdict}: {reason}",
        *(text for texts in found.values() for text in texts[:3]),
        *(f"missing: {each}" for each in coverage.missing[:3]),
        *(f"unjudged: {each}" for each in coverage.unjudged[:3]),
        *(f"note: {each}" for each in judgement.notes),
    ]


def limits(case: MakeCase) -> Iterator[tuple[str, Node]]:
    yield "healthy", case("intake")
    yield "an exact figure", case("integrity").set("gemm_mismatches", "gpu5", value=4.0, **LABELS)
    yield "a floor", case("performance").set("gemm_rate", "gpu6", value=500.0, **LABELS)
    yield "beyond physics", case("performance").set("gemm_rate", "gpu2", value=1400.0, **LABELS)
    yield "a share of siblings", case("performance").set("pcie_bandwidth", "gpu2", value=40.0, direction="h2d")
    yield "a text", case("intake").set("gpu_model", "gpu3", value="NVIDIA H20")
    yield "a setting", case("intake").set("persistence_mode", "gpu0", value=0.0)
    yield "twice its siblings", case("thermal").set("power_mean", "gpu3", value=1500.0)
    hot = case("thermal").set("throttle_time", "gpu2", value=30.0, reason="hw_thermal")
    yield "a hot inlet", hot.add("thermal_soak", "inlet_temperature", "node", 38.0, "°C")
    yield (
        "noise",
        case("performance", level="short").add(
            "nccl_tests", "nccl_busbw", "node", 400.0, "GB/s", labels={"op": "all_reduce", "nvls": "on"}
        ),
    )


def missing(case: MakeCase) -> Iterator[tuple[str, Node]]:
    for status in ("skipped", "crashed", "timed_out"):
        yield f"a probe that {status}", case("burn_in").end("gpu_burn", status, "no privilege.")
    yield "not reported", case("performance").drop("gemm_rate", "gpu3", **LABELS)
    yield "no sensor", case("thermal").drop("temperature_max", "gpu4")
    yield "no value", case("burn_in").set("ecc_uncorrected_delta", "gpu2", value=None)
    yield "contradiction", case("integrity").add("exact_gemm", "gemm_mismatches", "gpu0", 1.0, "count", labels=LABELS)
    unit = case("performance")
    next(unit.rows("memory_bandwidth", "gpu1", op="copy"))["unit"] = "MB/s"
    yield "another unit", unit
    lost = case("intake")
    lost.raw["measurements"] = [row for row in lost.raw["measurements"] if row["device"] != "gpu3"]
    yield "a GPU that does not answer", lost
    gone = case("intake")
    gone.raw["measurements"] = [row for row in gone.raw["measurements"] if not row["device"].startswith("gpu")]
    yield "no GPU answers", gone
    early = case("integrity")
    early.raw |= {"end": "deadline", "partial": True, "notes": ["the deadline passed"]}
    yield "a job that ended early", early
    yield "an impossible count", case("burn_in", "cpu-generic").set("cpu_threads", value=1e12)
    yield "an extra GPU", case("intake").add("inventory", "gpu_uuid", "gpu8", "GPU-9", "text")


def reruns(case: MakeCase) -> Iterator[tuple[str, Node]]:
    for name, on in {
        "confirmed": {"gpu5": (10, 10), "gpu6": (0, 2), "gpu7": (0, 2)},
        "intermittent": {"gpu5": (0, 10), "gpu6": (0, 2), "gpu7": (0, 2)},
        "too few siblings": {"gpu5": (10, 10), "gpu6": (0, 2)},
        "siblings wrong too": {"gpu5": (10, 10), "gpu6": (2, 2), "gpu7": (0, 2)},
    }.items():
        made = case("integrity").set("gemm_mismatches", "gpu5", value=4.0, **LABELS)
        for device, (wrong, runs) in on.items():
            labels = {**LABELS, "on": device}
            made.add("exact_gemm", "gemm_rerun", "gpu5", float(wrong), "count", labels=labels, samples=runs)
        yield name, made


def digests(case: MakeCase, **other: str) -> Node:
    made = case("integrity")
    for gpu in (f"gpu{slot}" for slot in range(8)):
        made.add("full_entropy", "golden_key", gpu, KEY, "text")
        made.add("full_entropy", "full_entropy_digest", gpu, other.get(gpu, "right"), "text", labels={"op": OP})
    return made


@pytest.mark.parametrize("group", [limits, missing, reruns])
def test_wording_of_a_stage(group, case: MakeCase, snapshot: SnapshotAssertion) -> None:  # type: ignore[no-untyped-def]
    assert {name: lines(made.judge()) for name, made in group(case)} == snapshot


def test_wording_of_the_context(case: MakeCase, h100: Sku, snapshot: SnapshotAssertion) -> None:
    promoted, unknown = Goldens({GOLDEN.id: GOLDEN}), Goldens(seen=SEEN)
    all_wrong = digests(case, **{f"gpu{slot}": "wrong" for slot in range(8)})
    wrong = case("integrity").set("gemm_mismatches", "gpu5", value=4.0, **LABELS)
    failed = wrong.judge()
    neighbours = [Neighbour(name, {"rack": "r1"}, frozenset({"gpu gemm_rate[dtype=bf16]"})) for name in ("b", "c")]
    slow = case("performance").set("gemm_rate", "gpu6", value=500.0, **LABELS).judge()
    finding = failed.findings[0]
    waiver = Waiver(
        1, "n1", "", finding.rule, finding.metric, finding.device, finding.labels, "Ada", "it is returned next week",
        NOW, NOW + datetime.timedelta(days=7),
    )  # fmt: skip
    machine = Machine("n1", {})
    evidence = (Evidence("uncommanded_reboot", "The node rebooted by itself under load."),)
    assert {
        "golden": lines(digests(case, gpu5="wrong").judge(goldens=promoted)),
        "all differ": lines(all_wrong.judge(goldens=promoted)),
        "alone": lines(digests(case, gpu5="wrong").judge(goldens=unknown)),
        "disagreement": lines(all_wrong.judge(goldens=unknown)),
        "failed before": lines(wrong.judge(previous_faults={"gpu5": 2})),
        "neighbours": lines(compared_with(slow, "a", {"rack": "r1"}, neighbours)),
        "waived": lines(waive(failed, [waiver], machine, NOW)),
        "evidence": lines(judge(Case(h100, "burn_in", "demo", why_missing="the job is gone", evidence=evidence))),
        "no result": lines(judge(Case(h100, "burn_in", "demo"))),
        "headline": overall([failed, slow], ("integrity", "performance", "thermal")),
        "incomplete": overall([], ("thermal",)),
    } == snapshot


def test_wording_of_the_comparisons(case: MakeCase, references: References, snapshot: SnapshotAssertion) -> None:
    def slowed(share: float, metric: str = "memory_bandwidth") -> list[str]:
        made = case("performance")
        for row in made.rows(metric, "gpu3"):
            row["value"] *= 1.0 - share
        alone = dataclasses.replace(references, history=None) if metric == "gemm_rate" else references
        return lines(made.judge(references=alone))

    found = {"retest": slowed(0.029), "fails": slowed(0.08), "rare": slowed(0.085, "gemm_rate")}
    assert "peers.rare" in str(found["rare"])
    assert found == snapshot


def test_wording_of_sku_files(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    problems_by_name = {}
    for number, (name, spoil) in enumerate([*WRONG, *WRONG_PROGRAMMES]):
        folder = tmp_path / str(number)
        shutil.copytree(SHIPPED, folder)
        rewrite(folder, spoil, "programmes/gpu-node" if number >= len(WRONG) else "h100-sxm-8")
        problems = [str(problem) for problem in lint_sku("h100-sxm-8", [folder])][:2]
        problems_by_name[name] = [LISTED.sub(r"(\1 …)", problem) for problem in problems]
    for name in ("h100-smx-8", "zzz"):
        with pytest.raises(SkuError) as error:
            load_sku(name)
        problems_by_name[name] = [str(error.value)]
    assert problems_by_name == snapshot


def test_wording_of_results_that_cannot_be_used(snapshot: SnapshotAssertion) -> None:
    problems_by_name = []
    for raw in (b"", b"[]", b"{}", b"x" * 6_000_000):
        with pytest.raises(BadResult) as error:
            parse_result(raw)
        problems_by_name.append(str(error.value))
    assert problems_by_name == snapshot


def test_wording_of_calibrations(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    before = [written(learn(fleet(16), ()), tmp_path)]
    own = load_sku("h200-sxm-8").limits
    slower = pd.concat([fleet(30), fleet(16, driver=NEW, rate=700.0, first=100)], ignore_index=True)
    calibrations = {
        "none": learn(fleet(0), ()),
        "too few": learn(fleet(15), ()),
        "too few left": learn(fleet(17, slow=(1, 2)), ()),
        "a floor would sink": learn(fleet(16, rate=700.0), before),
        "a slower stack": learn(as_readings(slower), before, "driver=580.2"),
        "a floor below the SKU's own": learn(fleet(16, rate=833.0, dtype="fp8"), (), limits=own),
    }
    path = tmp_path / "learned" / "h200-sxm-8-0001.yaml"
    unused = {}
    for name, text in unusable().items():
        path.write_text(text)
        with pytest.raises(SkuError) as error:
            load_sku("h200-sxm-8", [tmp_path])
        unused[name] = str(error.value)
    assert {
        "calibrations": {name: [each.refused, *map(str, each.notes)] for name, each in calibrations.items()},
        "source": written(calibrations["a slower stack"], tmp_path).limits[0].source,
        "unused": unused,
    } == snapshot
