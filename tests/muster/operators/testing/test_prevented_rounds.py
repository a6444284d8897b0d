"""Pairs that were prevented, or broke: made up for, else a gap; what was prevented is measured again once cleared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.model.rounds import Outcome, PlannedRound, Side
from muster.model.states import State
from muster.operators.testing import block, rounds
from muster.operators.testing.pair import MusterPairOperator, NotMeasured
from muster_criteria.cluster.plan import PAIRS
from muster_criteria.measured import Measured
from muster_criteria.model import Verdict
from tests.muster.operators.testing.test_rounds import RUN, claim, enrol, figures, measure

pytestmark = pytest.mark.usefixtures("sqlite_db")


def prevent(number: int, *names: str, why: str = "the controller was busy") -> None:
    """Ends a round in which these nodes could not be measured, and their partners met no other node."""
    planned = store.rounds.planned(RUN)[number - 1]
    for pair in planned.pairs:
        for name in pair:
            if name not in names and name in store.rounds.sides(RUN, number).get(number, {}):
                continue
            (other,) = set(pair) - {name}
            alone = other in names
            good = Side(
                name, Outcome.MEASURED, "no partner" if alone else "", () if alone else figures(other, {"network": 1.0})
            )
            store.rounds.record(RUN, number, Side(name, Outcome.UNMEASURED, why) if name in names else good)


def rebooted(name: str, number: int = 1) -> None:
    """A node that rebooted by itself during a round."""
    evidence = (("uncommanded_reboot", "it rebooted by itself", "job-1"),)
    store.rounds.record(RUN, number, Side(name, Outcome.SILENT, "rebooted", (), evidence))


def left_out(*names: str) -> None:
    """The rounds are over, and these nodes were left out of what follows."""
    untested = dict.fromkeys(names, "left out after round 2: the controller was busy")
    store.attempts.keep_block(RUN, {**store.attempts.block_of(RUN), "untested": untested})


def across(pair: tuple[str, str]) -> bool:
    """Whether its nodes, as ``enrol`` names them, are on two leaves of four."""
    return len({int(name.removeprefix("gpu-")) // 4 for name in pair}) == 2


def broken(breaks: Callable[[PlannedRound, tuple[str, str]], bool], silent: str = "") -> int:
    """All rounds, of which these pairs break before any rail was measured, or one is ``silent``. Returns how many."""
    while rounds.next_round(RUN):
        planned = store.rounds.planned(RUN)[-1]
        for pair in planned.pairs:
            for name, other in (pair, pair[::-1]):
                side = Side(name, Outcome.MEASURED, "", figures(other, {"r0": 100.0}))
                if breaks(planned, pair):
                    lost = Outcome.SILENT if name == silent else Outcome.MEASURED
                    side = Side(name, lost, "the connection was closed")
                store.rounds.record(RUN, planned.number, side)
    return len(store.rounds.planned(RUN))


def gaps(name: str) -> list[str]:
    (stage,) = store.reporting.run(RUN, node=name).stages
    return [gap.what for gap in stage.judgement.coverage.missing if gap.what.startswith("round ")]


def test_who_lost_a_partner_meets_another_one_and_nobody_meets_who_is_gone() -> None:
    names = enrol(8)
    claim(names)
    rounds.next_round(RUN)
    prevent(1, names[2])
    rounds.next_round(RUN)
    second = store.rounds.planned(RUN)[1]
    assert set(second.members) < set(names) - {names[2]}
    assert len(second.pairs) == 3, "one of seven rests"


def test_a_round_that_was_prevented_is_made_up_for() -> None:
    names = enrol(16)
    claim(names)
    rounds.next_round(RUN)
    prevent(1, names[2])
    (partner,) = set(store.rounds.planned(RUN)[0].pair_of(names[2]) or ()) - {names[2]}
    assert measure({}, ("network",)) == 4
    last = store.rounds.planned(RUN)[-1]
    assert last.pair_of(partner)
    assert not last.pair_of(names[2])
    block.judge(RUN)
    assert gaps(partner) == []


def test_a_round_that_was_prevented_and_not_made_up_for_is_a_gap_of_both() -> None:
    names = enrol(16)
    claim(names)
    rounds.next_round(RUN)
    prevent(1, names[2])
    (partner,) = set(store.rounds.planned(RUN)[0].pair_of(names[2]) or ()) - {names[2]}
    block.judge(RUN)
    assert gaps(partner) == [f"round 1 of {PAIRS}"]
    other = next(name for name in names if name not in (partner, names[2]))
    assert gaps(other) == []


@pytest.mark.parametrize(("silent", "made"), [("", 5), ("gpu-0000", 4)])
def test_a_node_whose_pairs_break_under_one_kind_of_load_does_not_pass_and_its_partners_do(
    silent: str, made: int
) -> None:
    names = enrol(16, rails="r0@10.1.0.{at}", leaf="leaf{leaf}")
    claim(names)
    assert broken(lambda planned, pair: names[0] in pair and across(pair), silent) == made
    block.judge(RUN)
    assert len(gaps(names[0])) == made - 2
    assert [name for name in names[1:] if gaps(name)] == []
    last = store.rounds.planned(RUN)[-1]
    assert not last.pair_of(names[0])
    lost = [pair for each in store.rounds.planned(RUN)[1:] for pair in each.pairs if names[0] in pair]
    assert all(across(last.pair_of(name) or pair) for pair in lost[-1:] for name in set(pair) - {names[0]})


def test_a_node_that_none_could_join_is_not_the_master() -> None:
    """As behind a firewall: none of the others would reach it, and the block would end without a training."""
    names = enrol(16, leaf="leaf{leaf}", block_address="10.0.0.{at}")
    claim(names)
    broken(lambda planned, pair: names[0] in pair)
    left = rounds.members_left(RUN)
    assert sorted(left) == names
    assert left[0] != names[0]
    assert store.attempts.block_of(RUN)["members"] == left
    assert store.attempts.block_of(RUN)["master_addr"] == f"10.0.0.{names.index(left[0])}"


def test_a_node_with_a_dead_rail_is_named_though_each_of_its_pairs_breaks() -> None:
    names = enrol(16, rails="r0@10.1.0.{at} r1@10.2.0.{at}", leaf="leaf{leaf}")
    claim(names)
    while rounds.next_round(RUN):
        planned = store.rounds.planned(RUN)[-1]
        for pair in planned.pairs:
            rates, why = {"r0": 100.0, "r1": 100.0}, ""
            if names[0] in pair:
                rates, why = {"r0": 0.0}, "the time is up"
            for name, other in (pair, pair[::-1]):
                store.rounds.record(RUN, planned.number, Side(name, Outcome.MEASURED, why, figures(other, rates)))
    assert len(store.rounds.planned(RUN)) == rounds.SUSPECT_MISSED_MAX
    block.judge(RUN)
    assert {name for name in names if store.runs.get(RUN, node=name).verdict is Verdict.FAIL} == {names[0]}


def test_a_pair_that_broke_once_is_made_up_for_by_both_and_what_it_had_measured_stays() -> None:
    names = enrol(16, rails="r0@10.1.0.{at}", leaf="leaf{leaf}")
    claim(names)
    assert broken(lambda planned, pair: planned.number == 2 and names[0] in pair) == 4
    second, last = (store.rounds.planned(RUN)[at] for at in (1, 3))
    pair = second.pair_of(names[0])
    assert pair is not None
    assert across(pair)
    again = [last.pair_of(name) for name in pair]
    assert all(each and each != pair and across(each) for each in again)
    block.judge(RUN)
    assert [gaps(name) for name in pair] == [[], []]


def test_what_a_pair_measured_before_it_broke_still_counts() -> None:
    names = enrol(2, rails="r0@10.1.0.{at} r1@10.2.0.{at}")
    claim(names)
    rounds.next_round(RUN)
    for name, other in (names, names[::-1]):
        figure = figures(other, {"r0": 100.0})
        store.rounds.record(RUN, 1, Side(name, Outcome.MEASURED, "the connection was closed", figure))
    known = rounds.rounds_of(RUN, store.attempts.block_of(RUN))
    assert known is not None
    assert known.results[0].alone[0, 0, 0] == 100.0
    block.judge(RUN)
    assert [gaps(name) for name in names] == [[f"round 1 of {PAIRS}"]] * 2


def test_the_task_of_a_node_without_a_pair_fails_so_that_the_next_round_is_planned() -> None:
    names = enrol(8)
    claim(names)
    rounds.next_round(RUN)
    prevent(1, names[2])
    rounds.next_round(RUN)
    ti = SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id)
    with pytest.raises(NotMeasured):
        MusterPairOperator(task_id="pairs_2", member=names[2]).execute(cast("Any", {"ti": ti}))
    assert names[2] not in rounds.left_out(store.rounds.sides(RUN))


def test_a_block_whose_every_pair_breaks_ends() -> None:
    names = enrol(16, rails="r0@10.1.0.{at}", leaf="leaf{leaf}")
    claim(names)
    assert broken(lambda planned, pair: True) == rounds.MISSED_MAX
    block.judge(RUN)
    assert all(gaps(name) for name in names)


def test_what_was_prevented_is_measured_again_once_a_person_clears_it() -> None:
    names = enrol(8)
    claim(names)
    first = rounds.next_round(RUN)
    prevent(1, names[2])
    assert names[2] in rounds.left_out(store.rounds.sides(RUN))
    claim(names, 2)
    again = rounds.next_round(RUN)
    pair = store.rounds.planned(RUN)[0].pair_of(names[2])
    assert pair is not None
    assert {each["member"] for each in again} == set(pair)
    assert again[0] in first
    measure({}, ("network",))
    assert names[2] not in rounds.left_out(store.rounds.sides(RUN))


def test_a_node_that_a_person_clears_alone_is_in_the_next_round_again() -> None:
    names = enrol(8)
    claim(names)
    rounds.next_round(RUN)
    prevent(1, names[2], names[3])
    rounds.next_round(RUN)
    prevent(2)
    store.rounds.reopen(RUN, names[2])
    assert set(rounds.left_out(store.rounds.sides(RUN)).prevented) == {names[3]}
    assert names[2] in {each["member"] for each in rounds.next_round(RUN)}


@pytest.mark.parametrize("count", [2, 8])
def test_a_reboot_is_held_against_its_node_though_a_later_round_was_prevented(count: int) -> None:
    names = enrol(count)
    claim(names)
    rounds.next_round(RUN)
    rebooted(names[0])
    prevent(1)
    rounds.next_round(RUN)
    prevent(2, names[0], names[1])
    with contextlib.suppress(AirflowFailException):
        rounds.members_left(RUN)
    block.judge(RUN)
    assert [store.runs.get(RUN, node=name).verdict for name in names[:2]] == [Verdict.FAIL, Verdict.SKIPPED]
    assert store.nodes.get(names[0]).state is State.QUARANTINE
    (stage,) = store.reporting.run(RUN, node=names[0]).stages
    assert "it rebooted by itself" in [each.summary for each in stage.judgement.findings]
    assert "controller was busy" in str(stage.judgement.coverage.missing)
    block.judge(RUN)
    assert store.runs.get(RUN, node=names[0]).verdict is Verdict.FAIL


def test_so_is_a_part_of_it_that_the_rounds_named() -> None:
    names = enrol(16, rails="r0@10.1.0.{at} r1@10.2.0.{at}", leaf="leaf{leaf}")
    claim(names)
    measure({(names[5], "r1"): 0.4})
    left_out(names[4], names[5])
    block.judge(RUN)
    assert [store.runs.get(RUN, node=name).verdict for name in names[4:6]] == [Verdict.SKIPPED, Verdict.FAIL]


def test_what_prevents_a_later_try_of_a_round_takes_no_evidence_away() -> None:
    names = enrol(2)
    claim(names)
    rounds.next_round(RUN)
    rebooted(names[0])
    prevent(1, *names)
    claim(names, 2)
    assert list(rounds.evidence_of(RUN)[names[0]])
    assert names[1] not in store.rounds.sides(RUN)[1]


def test_a_reboot_stays_when_its_pair_is_measured_again_until_the_rounds_are_forgotten() -> None:
    names = enrol(2)
    claim(names)
    rounds.next_round(RUN)
    rebooted(names[0])
    rebooted(names[0])
    store.rounds.record(RUN, 1, Side(names[0], Outcome.MEASURED, "", figures(names[1], {"r0": 100.0})))
    assert store.rounds.sides(RUN)[1][names[0]].outcome is Outcome.MEASURED
    assert len(rounds.evidence_of(RUN)[names[0]]) == 1
    store.rounds.forget(RUN)
    assert not rounds.evidence_of(RUN)


def test_why_a_rail_was_not_tried_is_in_the_gap() -> None:
    names = enrol(2, rails="r0@10.1.0.{at} r1@10.2.0.{at}")
    claim(names)
    rounds.next_round(RUN)
    for name, other in (names, names[::-1]):
        missed = Measured(
            probe=PAIRS, metric="pair_bandwidth", device="nic:r1", unit="Gb/s", value=None, note="no right to eth1",
            labels={"rail": "r1", "mode": "alone", "variant": "0", "partner": other},
        )  # fmt: skip
        store.rounds.record(RUN, 1, Side(name, Outcome.MEASURED, "", (*figures(other, {"r0": 100.0}), missed)))
    block.judge(RUN)
    (stage,) = store.reporting.run(RUN, node=names[0]).stages
    missing = [gap.why for gap in stage.judgement.coverage.missing if gap.what.startswith("pair_bandwidth")]
    assert missing == ["no right to eth1"]


@pytest.mark.parametrize("mode", ["alone", "together"])
def test_a_rail_that_could_not_be_tried_again_is_a_gap_of_its_node_and_made_up_for_by_its_partners(mode: str) -> None:
    """Such as one whose NIC fell off the bus after the first round."""
    names = enrol(16, rails="r0@10.1.0.{at} r1@10.2.0.{at}", leaf="leaf{leaf}")
    claim(names)
    while rounds.next_round(RUN):
        planned = store.rounds.planned(RUN)[-1]
        for pair in planned.pairs:
            lost = planned.number > 1 and names[0] in pair
            for name, other in (pair, pair[::-1]):
                rows = [
                    row.model_copy(update={"labels": {**row.labels, "mode": each}})
                    for each in ("alone", "together")
                    for row in figures(other, {"r0": 100.0, "r1": 100.0})
                ]
                rows = [
                    row.model_copy(update={"value": None, "note": "no mlx5_1"})
                    if lost and row.labels["rail"] == "r1" and row.labels["mode"] == mode
                    else row
                    for row in rows
                ]
                store.rounds.record(RUN, planned.number, Side(name, Outcome.MEASURED, "", tuple(rows)))
    block.judge(RUN)
    assert [bool(gaps(name)) for name in names] == [True, *[False] * 15]
