"""Wrong sums, weights and losses: which of them a member that corrupts can have caused."""

from __future__ import annotations

import pytest

from muster_criteria.cluster.model import MemberResult
from muster_criteria.model import Lack
from tests.muster_criteria.cluster_results import Sent, block, judge_block, members
from tests.muster_criteria.cluster_verdicts import cleared, inconclusive


def test_different_weights_after_the_same_sums_pass_none_and_name_none() -> None:
    """A ring forwards what one of its links corrupted: the odd one may only lie behind that link."""
    sent = block(8)
    for name in ("n3", "n4"):
        sent[name].weights = "other"
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert inconclusive(judgement) == {key: {Lack.WRONG_SUM} for key in sent}


def test_a_gpu_that_differs_from_itself_explains_different_weights() -> None:
    sent = block(4)
    sent["n2"].flip(erratic=True)
    sent["n2"].weights = "other"
    judgement = judge_block(members(sent))
    assert (set(judgement.failed), cleared(judgement)) == ({"n2"}, ("n0", "n1", "n3"))


def test_a_loss_that_is_no_number_is_explained_by_the_member_that_corrupts_or_not_at_all() -> None:
    sent = block(3)
    for each in sent.values():
        each.loss = None
    assert inconclusive(judge_block(members(sent))) == {key: {Lack.LOSS_NOT_FINITE} for key in sent}
    sent["n1"].flip("gpu1", erratic=True)
    judgement = judge_block(members(sent))
    assert set(judgement.failed) == {"n1"}
    assert cleared(judgement) == ("n0", "n2")


@pytest.mark.parametrize("loss", [False, True])
def test_a_member_that_fails_for_its_pace_explains_no_wrong_sum(loss: bool) -> None:
    sent = block(4)
    for each in sent.values():
        each.loss = None if loss else each.loss
        each.wait = 0.001 if each.name == "n1" else 2.0
    sent["n3"].weights = "w" if loss else "other"
    sent["n1"].compute["gpu0"] = 3.0
    judgement = judge_block(members(sent))
    assert set(judgement.failed) == {"n1"}
    assert inconclusive(judgement) == {
        key: {Lack.LOSS_NOT_FINITE if loss else Lack.WRONG_SUM} for key in ("n0", "n2", "n3")
    }


def test_wrong_payloads_of_a_member_explain_different_weights() -> None:
    sent = block(4)
    for name in ("n0", "n2", "n3"):
        sent[name].mismatches["all_to_all", "n1"] = 3.0
    sent["n1"].weights = "other"
    judgement = judge_block(members(sent))
    assert (set(judgement.failed), cleared(judgement)) == ({"n1"}, ("n0", "n2", "n3"))


def with_corrupter(rule: str) -> dict[str, Sent]:
    """A block of four in which n1 corrupts what it computes, or what it sends."""
    sent = block(4)
    if rule == "payload":
        for name in ("n0", "n2", "n3"):
            sent[name].mismatches["all_to_all", "n1"] = 3.0
    else:
        sent["n1"].flip("gpu1", erratic=rule == "repeats_itself")
    assert [each.rule for each in judge_block(members(sent)).failed["n1"]] == [rule]
    return sent


@pytest.mark.parametrize("rule", ["repeats_itself", "same_batch", "payload"])
def test_a_member_that_corrupts_explains_no_loss_of_another_where_the_rest_are_finite(rule: str) -> None:
    sent = with_corrupter(rule)
    sent["n1"].loss = sent["n3"].loss = None
    judgement = judge_block(members(sent))
    assert set(judgement.failed) == {"n1"}
    assert inconclusive(judgement) == {"n3": {Lack.LOSS_NOT_FINITE}}


def test_a_loss_that_others_did_not_report_explains_nothing() -> None:
    sent = with_corrupter("repeats_itself")
    sent["n3"].loss = None
    for name in ("n0", "n1", "n2"):
        sent[name].dropped.add("loss")
    assert Lack.LOSS_NOT_FINITE in inconclusive(judge_block(members(sent)))["n3"]


def test_a_member_without_a_result_takes_no_explanation_from_the_others() -> None:
    sent = with_corrupter("repeats_itself")
    for each in sent.values():
        each.loss = None
    rest = [each.member() for name, each in sent.items() if name != "n3"]
    judgement = judge_block([*rest, MemberResult("n3", None)])
    assert not [codes for codes in inconclusive(judgement).values() if Lack.LOSS_NOT_FINITE in codes]


@pytest.mark.parametrize("rule", ["repeats_itself", "same_batch"])
def test_a_member_that_computes_wrong_explains_its_own_weights_alone(rule: str) -> None:
    sent = with_corrupter(rule)
    sent["n3"].weights = "other"
    judgement = judge_block(members(sent))
    assert set(judgement.failed) == {"n1"}
    assert inconclusive(judgement) == {name: {Lack.WRONG_SUM} for name in ("n0", "n2", "n3")}
