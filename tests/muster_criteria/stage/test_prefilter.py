"""The prefilter leaves out no node of which the judge finds anything, and few besides."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import numpy as np
from hypothesis import Phase, given
from hypothesis import strategies as st

from muster_criteria.devices import kind_of
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.series.readings import DAY_S, readings_of, together
from muster_criteria.fleet.single import derived
from muster_criteria.kinds.kind import Times
from muster_criteria.measured import parse_result
from muster_criteria.rows import rows_of
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.stage.case import Case as JudgeCase
from muster_criteria.stage.judge import judge_all
from muster_criteria.stage.prefilter import conspicuous, shape, small_margins
from tests.muster_criteria.conftest import DAY
from tests.muster_criteria.nodes import Case, MakeCase
from tests.muster_criteria.violations import violations
from tests.support.examples import examples

SEEDS = st.integers(0, 2**32)
STAGES = ("intake", "burn_in", "integrity", "performance", "thermal")


def spoil(spoilt: Case, dice: random.Random) -> None:
    """Up to three measurements changed: figures a little or much, texts, spreads; or said twice, or by another unit."""
    for row in dice.sample(spoilt.raw["measurements"], dice.randrange(4)):
        way = dice.randrange(6)
        if row["text"] is not None:
            row["text"] = dice.choice([row["text"], "other", ""])
        elif way == 0:
            spoilt.raw["measurements"].append(dict(row, probe=dice.choice([row["probe"], "gemm_rate"])))
        elif way == 1:
            row["unit"] = "furlong"
        elif way == 2:
            row["spread"] = dice.choice([0.0, 0.05, 0.5])
        elif row["value"] is not None:
            row["value"] = (row["value"] or dice.choice([0, 1])) * dice.choice(
                [0.0, 0.05, 0.5, 0.9, 0.97, 1.02, 1.5, 3]
            )


def sieved(cases: list[JudgeCase], sku: Sku, stage: str, references: References | None) -> set[str]:
    """The nodes that go to the judge, of one frame of all readings."""
    frames = []
    for case in cases:
        assert case.result is not None
        rows = [row for row in rows_of(case.result, sku) if not row.refused]
        frames.append(
            readings_of(
                [*rows, *derived(rows, sku.programme.derive)],
                node=case.result.node, at=DAY * DAY_S, run="now", sku=sku.name, environment=case.result.environment,
            )
        )  # fmt: skip
    by = (references.snapshot, references.history) if references else (None, None)
    return small_margins(together(frames), sku, stage, cases[0].level, *by) | {
        case.result.node for case in cases if case.result and conspicuous(case)
    }


def cases_of(
    case: MakeCase, stage: str, references: References | None, dice: random.Random, nodes: int
) -> list[JudgeCase]:
    cases = []
    for number in range(nodes):
        spoilt = case(stage)
        compared = {each.metric for each in spoilt.sku.programme.compare}
        for row in spoilt.raw["measurements"]:
            if row["metric"] in compared:
                row["value"] *= dice.gauss(1.0, 0.003)
        if dice.random() < 0.7:
            spoil(spoilt, dice)
        spoilt.raw["node"] = f"node-{number}"
        result = parse_result(json.dumps(spoilt.raw).encode())
        cases.append(JudgeCase(spoilt.sku, stage, result.level, result, references=references))
    return cases


@examples(6, phases=(Phase.generate,))
@given(seed=SEEDS, stage=st.sampled_from(STAGES), alone=st.booleans(), nodes=st.integers(1, 12))
def test_no_node_is_left_out_of_which_the_judge_finds_anything(
    case: MakeCase, references: References, h100: Sku, seed: int, stage: str, alone: bool, nodes: int
) -> None:
    by = None if alone else references
    cases = cases_of(case, stage, by, random.Random(seed), nodes)

    found = {
        each.result.node
        for each, judgement in zip(cases, judge_all(cases, evaluate=violations), strict=True)
        if each.result and judgement.findings
    }
    assert found <= sieved(cases, h100, stage, by)


@examples(3, phases=(Phase.generate,))
@given(seed=SEEDS, stage=st.sampled_from(STAGES))
def test_nodes_left_out_that_measured_the_same_have_the_same_verdict(
    case: MakeCase, references: References, h100: Sku, seed: int, stage: str
) -> None:
    cases = cases_of(case, stage, references, random.Random(seed), 12)
    named = sieved(cases, h100, stage, references)
    verdicts: dict[Any, set[Any]] = {}
    for each, judgement in zip(cases, judge_all(cases, evaluate=violations), strict=True):
        if each.result and each.result.node not in named:
            verdicts.setdefault(shape(each), set()).add((judgement.verdict, judgement.coverage))

    assert all(len(found) == 1 for found in verdicts.values())


def test_most_healthy_nodes_are_left_out(case: MakeCase, references: References, h100: Sku) -> None:
    dice = np.random.default_rng(4)
    compared = {each.metric for each in h100.programme.compare}
    cases = []
    for number in range(40):
        spoilt = case("performance")
        spoilt.raw["node"] = f"node-{number}"
        for row in spoilt.raw["measurements"]:
            if row["value"] and row["metric"] in compared:
                row["value"] *= 1.0 + 0.001 * dice.standard_normal()
        result = spoilt.result()
        without = dataclasses.replace(references, history=None)
        cases.append(JudgeCase(spoilt.sku, "performance", result.level, result, references=without))

    assert len(sieved(cases, h100, "performance", dataclasses.replace(references, history=None))) < 10


def test_limits_relative_to_others_are_looked_at(case: MakeCase, h100: Sku) -> None:
    """A shipped limit of each way: a share of the siblings, and a multiple of another measurement."""
    relative = [each for each in h100.limits if each.key.startswith("siblings_") or _refers(each)]
    assert {_refers(each) for each in relative} == {True, False}
    looked_at = set()
    for limit in relative:
        for stage in limit.stages or STAGES:
            spoilt = case(stage)
            rows = [row for row in spoilt.raw["measurements"] if _is_about(limit, row)]
            if rows:
                rows[0]["value"] = 1e-3 if limit.kind.side == "lower" else 1e6
                result = spoilt.result()
                assert sieved([JudgeCase(spoilt.sku, stage, result.level, result)], h100, stage, None)
                looked_at.add(_refers(limit))
    assert looked_at


def _is_about(limit: Limit, row: dict[str, Any]) -> bool:
    return limit.applies_to(row["metric"], kind_of(row["device"]), row["labels"])


def _refers(limit: Any) -> bool:
    return isinstance(limit.value, Times)
