"""A block whose members differ in driver or firmware is named before it trains, and no member passes unseen."""

from __future__ import annotations

import logging

import pytest

from muster import records
from muster.operators import block
from muster_criteria.model import Action
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("sqlite_db")

NAMES = ["gpu-0001", "gpu-0002"]
RUN = ("cluster_qualification", "block")


@pytest.mark.parametrize(("drivers", "differ"), [(("580.1", "580.1"), False), (("580.1", "590.1"), True)])
def test_members_that_differ_are_named_before_they_train_and_in_the_verdict(
    drivers: tuple[str, str], differ: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for name, driver in zip(NAMES, drivers, strict=True):
        records.add_node(fleet.new_node(name))
        fleet.qualify(name, environment={"driver": driver})
    with caplog.at_level(logging.WARNING):
        block.claim(*RUN, {"nodes": NAMES, "level": "short", "reason": "x"})
    assert ("590.1 on gpu-0002" in caplog.text) is differ
    block.judge(*RUN, NAMES, {})
    for name in NAMES:
        (stage,) = records.run_report(*RUN, node=name).stages
        found = [each for each in stage.judgement.findings if each.rule == "versions_differ"]
        assert [each.action for each in found] == [Action.FIX_SOFTWARE] * differ
