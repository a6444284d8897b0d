"""Members that were left out after the rounds of pairs: only what these found of them counts."""

from __future__ import annotations

import pytest

from muster_criteria.cluster.model import MemberResult
from muster_criteria.cluster.ports import COMMON_MIN, port_limits
from muster_criteria.measured import Measured
from muster_criteria.model import Lack, Verdict
from muster_criteria.sku_files.skus import load_sku
from tests.muster_criteria.cluster_results import block, judge_block, members

SKU = load_sku("h100-sxm-8")
PORT = "nic:mlx5_0"


def left_out(name: str, *, downs: int = 0) -> MemberResult:
    rows = tuple(
        Measured(probe="pair_rails", metric=metric, device=PORT, unit="count", value=value, labels=labels)
        for metric, value, labels in (
            ("port_watched", 1.0, {}), ("port_errors", float(downs), {"counter": "link_downed"})
        )
    )  # fmt: skip
    limits = port_limits((*SKU.limits, *SKU.block.limits))
    return MemberResult(name, None, left_out="it was preempted", in_rounds=rows, port_limits=limits)


def test_who_was_left_out_without_a_finding_has_no_verdict_and_costs_no_other_one() -> None:
    sent = block(3)
    judgement = judge_block([*members(sent), left_out("m")])
    assert {name: each.verdict for name, each in judgement.members.items()} == dict.fromkeys(sent, Verdict.PASS)
    assert judgement.missing == ()


@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_link_that_was_lost_in_the_rounds_fails_the_node_that_was_left_out(others: int) -> None:
    sent = block(others)
    judgement = judge_block([*members(sent), left_out("m", downs=1), left_out("o")])
    assert set(judgement.members) == {*sent, "m"}
    assert set(judgement.failed) == {"m"}
    assert Lack.NO_RESULT in {gap.code for gap in judgement.members["m"].coverage.missing}
    assert not [
        gap for each in judgement.members.values() for gap in each.coverage.missing if gap.code == Lack.JUDGE_FAILED
    ]


def test_what_all_ports_of_a_rail_show_fails_none_of_their_nodes() -> None:
    judgement = judge_block([*members(block(2)), *(left_out(f"m{at}", downs=1) for at in range(COMMON_MIN))])
    assert set(judgement.members) == {"n0", "n1"}


def test_who_did_not_train_explains_no_loss() -> None:
    sent = block(3)
    for each in sent.values():
        each.loss = None
    judgement = judge_block([*members(sent), left_out("m", downs=1)])
    assert {judgement.members[name].verdict for name in sent} == {Verdict.INCONCLUSIVE}
