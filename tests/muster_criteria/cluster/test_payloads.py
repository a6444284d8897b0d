"""Corrupted payloads: a member that corrupts, a path, what lies between two groups, and a ring that forwards."""

from __future__ import annotations

import pytest

from muster_criteria.model import FaultClass, Lack
from tests.muster_criteria.cluster_results import block, judge_block, members
from tests.muster_criteria.cluster_verdicts import cleared, inconclusive


def test_a_sender_that_spoils_payloads_is_distinguished_from_a_receiver_and_from_a_path() -> None:
    bad_sender = block(4)
    for name in ("n0", "n1", "n3"):
        bad_sender[name].mismatches["all_to_all", "n2"] = 7.0
    bad_receiver = block(4)
    for sender in ("n0", "n1", "n3"):
        bad_receiver["n2"].mismatches["send_recv", sender] = 7.0
    for sent in (bad_sender, bad_receiver):
        judgement = judge_block(members(sent))
        assert set(judgement.failed) == {"n2"}
        assert cleared(judgement) == ("n0", "n1", "n3")
    path = block(4)
    path["n3"].mismatches["send_recv", "n2"] = 1.0
    judgement = judge_block(members(path))
    assert judgement.failed == {}
    assert inconclusive(judgement) == {"n2": {Lack.BAD_PATH}, "n3": {Lack.BAD_PATH}}


@pytest.mark.parametrize(("receivers", "failed"), [(2, set()), (3, {"n2"})])
def test_half_of_its_partners_are_not_most(receivers: int, failed: set[str]) -> None:
    sent = block(5)
    for name in ("n0", "n1", "n3")[:receivers]:
        sent[name].mismatches["all_to_all", "n2"] = 7.0
    assert set(judge_block(members(sent)).failed) == failed


@pytest.mark.parametrize("near", [2, 4])
def test_an_uplink_that_corrupts_fails_no_node_below_it(near: int) -> None:
    """What ``near`` nodes of one leaf send to those of the other leaf arrives wrong; within each leaf all is well."""
    sent = block(8)
    for receiver in range(near, 8):
        for sender in range(near):
            sent[f"n{receiver}"].mismatches["all_to_all", f"n{sender}"] = 3.0
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert cleared(judgement) == ()


def test_a_ring_that_forwards_corrupted_payloads_fails_nobody() -> None:
    sent = block(8)
    for receiver in range(3, 8):
        for sender in range(3):
            sent[f"n{receiver}"].mismatches["all_gather", f"n{sender}"] = 1.0
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert cleared(judgement) == ()


@pytest.mark.parametrize("op", ["all_to_all", "send_recv"])
def test_two_gpus_of_one_node_are_that_nodes_fault(op: str) -> None:
    sent = block(3)
    sent["n1"].mismatches[op, "n1"] = 5.0
    judgement = judge_block(members(sent))
    assert set(judgement.failed) == {"n1"}
    assert [finding.fault_class for finding in judgement.failed["n1"]] == [FaultClass.GPU]
    assert cleared(judgement) == ("n0", "n2")


def test_what_a_ring_forwards_to_its_own_sender_names_no_node() -> None:
    sent = block(3)
    sent["n1"].mismatches["all_gather", "n1"] = 5.0
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert inconclusive(judgement) == {"n1": {Lack.BAD_PATH}}


def test_two_bad_senders_are_both_named() -> None:
    sent = block(8)
    for bad in ("n2", "n5"):
        for other in set(sent) - {bad}:
            sent[other].mismatches["all_to_all", bad] = 2.0
    assert set(judge_block(members(sent)).failed) == {"n2", "n5"}


def test_a_wrong_sum_names_none_and_passes_none() -> None:
    sent = block(3)
    sent["n1"].mismatches["all_reduce", ""] = 2.0
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert inconclusive(judgement) == {key: {Lack.WRONG_SUM} for key in sent}
