"""Earlier failures of a part are in its findings, and decide nothing."""

from __future__ import annotations

import dataclasses

from tests.muster_criteria.nodes import MakeCase


def test_what_is_found_says_so_and_nothing_else_changes(case: MakeCase) -> None:
    spoilt = case("thermal").set("temperature_max", "gpu3", value=95.0).set("temperature_max", "gpu4", value=95.0)
    plain = spoilt.judge()
    judgement = spoilt.judge(previous_faults={"gpu3": 2, "gpu4": 1, "gpu5": 7})

    by_device = {each.device: each.summary for each in judgement.findings}
    assert by_device["gpu3"].endswith(". It failed in 2 runs before.")
    assert by_device["gpu4"].endswith(". It failed in 1 run before.")
    assert "before" not in " ".join(each.summary for each in plain.findings)
    without = [dataclasses.replace(each, summary="") for each in judgement.findings]
    assert without == [dataclasses.replace(each, summary="") for each in plain.findings]
    assert judgement.verdict is plain.verdict


def test_a_past_alone_fails_none(case: MakeCase) -> None:
    assert case("thermal").judge(previous_faults={"gpu3": 9}) == case("thermal").judge()
