"""Who is named as lost where members could not join: a report counts of those that know."""

from __future__ import annotations

import dataclasses

from muster_criteria.cluster.model import MemberResult
from muster_criteria.cluster.presence import MEMBER_MISSING
from tests.muster_criteria.cluster_results import Sent, block, judge_block, members


def late(sent: dict[str, Sent], *names: str) -> None:
    """These cannot join, and the others begin without them."""
    for name, each in sent.items():
        if name in names:
            each.dropped.add("join_lag")
            each.lose("n0", "it could not be joined at 10.0.0.1:29500 within 60 s: no route")
        else:
            for lost in names:
                each.lose(lost, "it did not come up within 60 s")


def test_most_members_that_never_came_in_do_not_get_the_healthy_first_one_named() -> None:
    sent = block(5)
    late(sent, "n1", "n2", "n3")
    assert judge_block(members(sent)).missing == ("n1", "n2", "n3")


def test_a_first_member_at_which_none_could_join_is_named() -> None:
    sent = block(5)
    for name, each in sent.items():
        each.dropped.add("join_lag")
        if name != "n0":
            each.lose("n0", "it could not be joined at 10.0.0.1:29500 within 60 s: no answer")
    assert judge_block(members(sent)).missing == ("n0",)


def test_of_two_the_one_that_is_reported_is_lost_and_both_are_suspects_if_each_reports_the_other() -> None:
    sent = block(2)
    sent["n0"].lose("n1")
    assert judge_block(members(sent)).missing == ("n1",)
    sent["n1"].lose("n0")
    assert judge_block(members(sent)).missing == ()


def test_why_a_member_is_missing_does_not_grow_when_it_is_judged_again() -> None:
    sent = block(3)
    for name in ("n0", "n1"):
        sent[name].lose("n2", "it hung")

    def observed(why: str) -> str:
        lost: MemberResult = dataclasses.replace(members(sent)[2], result=None, why_missing=why)
        judged = judge_block([*members(sent)[:2], lost]).members["n2"]
        return next(each.observed for each in judged.findings if each.rule == MEMBER_MISSING)

    once = observed("its task ended")
    assert {"it hung", "its task ended"} <= set(once.split("; its own result: "))
    assert observed(once) == once
