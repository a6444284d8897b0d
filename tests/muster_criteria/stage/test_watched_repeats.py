"""What a repeat's load did to the node: watched as in the whole stage, and judged with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster_criteria.measured import StageResult
from muster_criteria.model import Judgement, Lack, Severity, Verdict
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.case import Case as JudgeCase
from muster_criteria.stage.prefilter import conspicuous
from muster_criteria.stage.retests import arranged, repeatable, repeated_rows
from tests.muster_criteria.nodes import Case, MakeCase

BEGAN, REPEATED = 100.0, 300.0
"""Seconds since boot of the newest line of the kernel's log before the stage, and before its repeat."""


def log(made: Case, *xids: tuple[int, float], began: float = BEGAN) -> Case:
    """A stage that began then, with these XIDs of gpu3 (code, seconds since boot) in its log."""
    made.add("inventory", "kernel_log_time", "node", began, "s")
    for number, (code, at) in enumerate(xids):
        labels = {"kind": "xid", "code": str(code), "pci": "0000:1b:00", "at": f"{at:.6f}", "n": str(number)}
        made.add("device_events", "xid", "gpu3", "what the driver wrote", "text", labels=labels, samples=1)
    return made.set("xid_total", value=float(len(xids)))


def repeat(made: Case) -> StageResult:
    """As a repeat of the thermal stage is: its only load, and all that watch it."""
    made.raw |= {"repeat": True, "started_at": 0.0}  # the node's clock went back
    return made.result()


def judged(case: MakeCase, again: Case, *xids: tuple[int, float]) -> Judgement:
    return log(case("thermal"), *xids).judge(others=(repeat(again),))


@pytest.mark.parametrize(
    ("code", "at", "verdict"), [(79, 400.0, Verdict.FAIL), (31, 400.0, Verdict.WARN), (31, 200.0, Verdict.PASS)]
)
def test_what_a_repeat_logged_counts(case: MakeCase, code: int, at: float, verdict: Verdict) -> None:
    judgement = judged(case, log(case("thermal"), (code, at), began=REPEATED))
    assert judgement.verdict is verdict, judgement.reason
    assert [each.observed.endswith("(in a repeat)") for each in judgement.findings] == [True]


@pytest.mark.parametrize("at", [250.0, 400.0])
def test_a_code_that_a_repeat_logged_more_gravely_counts(case: MakeCase, at: float) -> None:
    """NVIDIA's XID 154 tells by its text what the driver asks for."""
    texts = [("3 (Drain P2P)", 200.0), ("2 (Node Reboot Required)", at)]

    def logged(count: int, began: float) -> Case:
        made = log(case("thermal"), *((154, seconds) for _, seconds in texts[:count]), began=began)
        rows = [row for row in made.raw["measurements"] if row["metric"] == "xid"]
        for row, (action, _) in zip(rows, texts[:count], strict=True):
            row["text"] = f"NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x0 (None) to 0x{action}"
        return made

    assert logged(1, BEGAN).judge().verdict is Verdict.WARN
    assert logged(1, BEGAN).judge(others=(repeat(logged(2, REPEATED)),)).verdict is Verdict.FAIL


def test_what_the_stage_had_logged_itself_is_reported_once(case: MakeCase) -> None:
    judgement = judged(case, log(case("thermal"), (31, 200.0), began=REPEATED), (31, 200.0))
    assert [dict(each.labels)["when"] for each in judgement.findings] == ["during"]
    again = judged(case, log(case("thermal"), (31, 50.0), (31, 400.0), began=REPEATED), (31, 50.0))
    assert [dict(each.labels)["when"] for each in again.findings] == ["during", "before"]


@pytest.mark.parametrize(
    ("metric", "value", "severity"),
    [
        ("ecc_uncorrected_delta", 1.0, Severity.CRITICAL),
        ("foreign_processes", 1.0, Severity.WARNING),
    ],
)
def test_what_the_watch_of_a_repeat_saw_counts(case: MakeCase, metric: str, value: float, severity: Severity) -> None:
    again = log(case("thermal"), began=REPEATED).set(metric, "gpu5", value=value)
    (finding,) = judged(case, again).findings
    assert (finding.metric, finding.device, finding.severity) == (metric, "gpu5", severity)


def _ended(probe: str) -> Callable[[Case], Case]:
    return lambda made: made.end(probe, "crashed", "it crashed")


@pytest.mark.parametrize(
    "spoil",
    [
        _ended("gpu_watch"),
        _ended("device_events"),
        lambda made: made.drop("ecc_uncorrected_delta", "gpu5"),
        lambda made: made.set("xid_total", value=3.0),
    ],
)
def test_a_repeat_of_which_it_is_not_known_what_it_did_decides_nothing(
    case: MakeCase, spoil: Callable[[Case], Case]
) -> None:
    judgement = judged(case, spoil(log(case("thermal"), began=REPEATED)))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert all("in a repeat" in gap.why for gap in judgement.coverage.missing)
    assert not any(gap.code is Lack.JUDGE_FAILED for gap in judgement.coverage.missing)


def test_a_repeat_that_reported_nothing_at_all_decides_nothing(case: MakeCase) -> None:
    again = log(case("thermal"), began=REPEATED)
    again.raw["measurements"] = []
    judgement = judged(case, again)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert not any(gap.code is Lack.JUDGE_FAILED for gap in judgement.coverage.missing)


def test_a_load_that_did_not_end_in_a_repeat_is_no_gap(case: MakeCase) -> None:
    """The first reading stands: the second one was to confirm it."""
    assert judged(case, log(case("thermal"), began=REPEATED).end("thermal_soak", "crashed")).verdict is Verdict.PASS


def test_a_repeat_before_the_last_whole_measurement_was_judged_before(case: MakeCase) -> None:
    whole, earlier = log(case("thermal"), began=500.0), log(case("thermal")).result()
    before = repeat(_ended("gpu_watch")(log(case("thermal"), (31, 400.0), began=REPEATED)))
    attempts = [(Verdict.INCONCLUSIVE, earlier), (Verdict.INCONCLUSIVE, before)]
    base, others = arranged(attempts, whole.result())
    assert base == whole.result()
    assert len(others) == 2
    judgement = whole.judge(others=others)
    assert (judgement.verdict, judgement.findings) == (Verdict.PASS, ())


def test_a_repeat_of_a_stages_only_load_is_no_whole_measurement(case: MakeCase, h100: Sku) -> None:
    first, again = log(case("thermal")).result(), repeat(log(case("thermal"), began=REPEATED))
    assert {end.probe for end in first.probes} == {end.probe for end in again.probes}
    assert arranged([(Verdict.WARN, first)], again) == (first, (again,))


def test_what_watches_a_repeat_is_no_second_reading(case: MakeCase, h100: Sku) -> None:
    probes = {row.probe for row in repeated_rows(repeat(log(case("thermal"))), h100)}
    assert probes <= set(repeatable(h100, "thermal", "demo")) | {""}


def test_a_node_with_a_repeat_goes_to_the_judge(case: MakeCase, h100: Sku) -> None:
    base = log(case("thermal")).result()
    assert conspicuous(JudgeCase(h100, "thermal", "demo", base, others=(repeat(log(case("thermal"))),)))
