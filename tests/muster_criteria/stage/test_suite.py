"""Great Expectations finds exactly the rows that the rules name, and whatever goes wrong in it is never a pass."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from great_expectations.execution_engine import PandasExecutionEngine
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from muster_criteria.model import Lack, Verdict
from muster_criteria.stage import suite
from muster_criteria.stage.rules import RULES
from muster_criteria.stage.suite import SuiteError, build_suite, unexpected_rows
from tests.muster_criteria.nodes import MakeCase
from tests.muster_criteria.violations import violations

MARGINS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1e300, float("nan")])
)


@settings(max_examples=30)
@given(data=st.data(), rows=st.integers(1, 12), rules=st.sets(st.sampled_from(RULES), min_size=1, max_size=3))
def test_great_expectations_agrees_with_the_rules_on_any_margins(data: st.DataObject, rows: int, rules: Any) -> None:
    columns = {
        rule.column: data.draw(arrays.arrays(np.float64, rows, elements=MARGINS)) for rule in RULES if rule in rules
    }
    frame = pd.DataFrame(columns)
    expectations = tuple(rule for rule in RULES if rule.column in frame and frame[rule.column].notna().any())

    found = unexpected_rows(frame, expectations)

    assert {column: sorted(at) for column, at in found.items()} == violations(frame, expectations)


@pytest.mark.parametrize("stage", ["intake", "burn_in", "integrity", "performance", "thermal"])
def test_great_expectations_gives_the_same_judgements(case: MakeCase, stage: str) -> None:
    spoilt = case(stage)
    for row in spoilt.raw["measurements"]:
        if row["device"] == "gpu5" and row["value"] is not None:
            row["value"] = row["value"] * 0.8 + 0.5

    judgement = spoilt.judge(evaluate=unexpected_rows)

    assert judgement.verdict is Verdict.FAIL
    assert judgement == spoilt.judge()
    healthy = case(stage).judge(evaluate=unexpected_rows)
    assert healthy == case(stage).judge()
    assert not healthy.findings


def test_one_expectation_for_each_rule_with_its_gravity_and_claim() -> None:
    suite = build_suite(RULES)

    written = [(e["kwargs"]["column"], e["severity"], e["meta"]["claim"]) for e in suite.to_json_dict()["expectations"]]
    severities = {"fail": "critical", "warn": "warning", "invalid": "warning"}
    assert written == [(rule.column, severities[rule.breach], rule.claim) for rule in RULES]


@pytest.mark.parametrize("broken", [(), (1,), (0, 2), (0, 1, 2)])
def test_only_rules_with_a_negative_margin_have_an_expectation_of_their_own(
    broken: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    answers = suite._results

    def seen(frame: pd.DataFrame, *others: Any) -> dict[str, Any]:
        asked.append(list(frame.columns))
        return answers(frame, *others)

    monkeypatch.setattr(suite, "_results", seen)
    names = [rule.column for rule in RULES[:3]]
    frame = pd.DataFrame({name: [1.0, -1.0 if at in broken else np.nan] for at, name in enumerate(names)})
    unexpected_rows(frame, RULES[:3])
    assert asked == [[names[at] for at in broken] + [suite.LEAST] * (len(broken) < 3)]


def test_a_frame_that_breaks_no_rule_is_one_expectation(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    resolve = PandasExecutionEngine.resolve_metrics

    def counted(engine: Any, metrics_to_resolve: Any, *others: Any, **more: Any) -> Any:
        computed.extend(metric.metric_name for metric in metrics_to_resolve)
        return resolve(engine, metrics_to_resolve, *others, **more)

    monkeypatch.setattr(PandasExecutionEngine, "resolve_metrics", counted)
    whole = case("performance").judge(evaluate=unexpected_rows)
    assert (whole.verdict, whole.coverage.missing) == (case("performance").judge().verdict, ())
    assert "column.min" in computed
    assert [name for name in computed if name.startswith("column_values.")] == [], "a metric for each row costs twice"


def test_no_rules_need_no_great_expectations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "great_expectations", None)
    suite._frames.cache_clear()
    assert unexpected_rows(pd.DataFrame(), ()) == {}


def test_a_column_that_cannot_be_compared_is_an_error_not_a_pass() -> None:
    with pytest.raises(TypeError):
        unexpected_rows(pd.DataFrame({RULES[0].column: ["not", "numbers"]}), RULES[:1])


def test_a_column_that_is_not_there_is_an_error_not_a_pass(case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError):
        unexpected_rows(pd.DataFrame({"other": [1.0]}), RULES[:1])


def test_an_answer_that_is_left_out_is_an_error_not_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster_criteria.stage.suite.build_suite", lambda rules, least: build_suite(rules[:1]))
    frame = pd.DataFrame({rule.column: [-1.0] for rule in RULES[:2]})

    with pytest.raises(SuiteError, match=f"no answer for {RULES[1].column}"):
        unexpected_rows(frame, RULES[:2])


@pytest.mark.parametrize("margin", [1.0, -1.0])
def test_an_answer_that_contradicts_the_margins_is_an_error_not_a_pass(
    margin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = suite._results

    def contradicted(*asked: Any) -> dict[str, Any]:
        found = answers(*asked)
        for each in found.values():
            each.success, each.result = not each.success, {}
        return found

    monkeypatch.setattr(suite, "_results", contradicted)
    with pytest.raises(SuiteError):
        unexpected_rows(pd.DataFrame({RULES[0].column: [margin]}), RULES[:1])


def test_a_metric_that_is_not_computed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr(PandasExecutionEngine, "resolve_metrics", broken)
    with pytest.raises(SuiteError, match=r"does not confirm.*column\.min"):
        unexpected_rows(pd.DataFrame({RULES[0].column: [1.0]}), RULES[:1])


def test_great_expectations_that_raises_makes_the_verdict_inconclusive(
    case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    from great_expectations.core.batch_definition import BatchDefinition

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr(BatchDefinition, "get_batch", broken)
    judgement = case("burn_in").judge(evaluate=unexpected_rows)

    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert {gap.code for gap in judgement.coverage.missing} == {Lack.JUDGE_FAILED}


def test_it_is_silent(case: MakeCase, capfd: pytest.CaptureFixture[str]) -> None:
    case("performance").judge(evaluate=unexpected_rows)
    capfd.readouterr()
    case("performance").judge(evaluate=unexpected_rows)

    assert "".join(capfd.readouterr()) == ""


def test_every_frame_is_judged_by_its_own_rows(case: MakeCase) -> None:
    """What takes frames is made once, and must keep nothing of the frame before."""
    rules = RULES[:2]
    for bad in ([], [0, 2], [1]):
        frame = pd.DataFrame({rule.column: [1.0, 1.0, 1.0] for rule in rules})
        frame.loc[bad, rules[1].column] = -1.0
        assert unexpected_rows(frame, rules) == {rules[0].column: [], rules[1].column: bad}


def test_collections_do_not_look_at_what_was_imported() -> None:
    before = gc.get_freeze_count()
    kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    suite._frames.cache_clear()

    suite._frames()

    assert gc.get_freeze_count() >= before + len(kept)
