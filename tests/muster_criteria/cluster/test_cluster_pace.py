"""The pace of a block: the member that delays the others is named, and a difference without a fault fails none."""

from __future__ import annotations

import json
import statistics
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.cluster.model import COLLECTIVES, MemberResult
from muster_criteria.measured import parse_result
from muster_criteria.model import Lack, Verdict
from muster_node.workloads.common import spread
from tests.muster_criteria.cluster_results import OPS, PROGRAMME, Sent, block, judge_block, members, row
from tests.muster_criteria.cluster_verdicts import cleared, verdicts
from tests.support.examples import examples


def slow(sent: dict[str, Sent], name: str, gpu: str = "gpu1", factor: float = 1.25) -> None:
    """A slow GPU, and its effect: its node waits for no other, all others wait for it."""
    sent[name].compute[gpu] = factor
    for other in sent.values():
        other.wait = 0.001 if other.name == name else factor - 1.0


@examples(13)
@given(st.data(), st.integers(4, 8))
def test_one_slow_rank_is_always_the_one_that_fails(data: Any, count: int) -> None:
    sent = block(count)
    name = data.draw(st.sampled_from(sorted(sent)))
    slow(sent, name, factor=data.draw(st.floats(1.06, 5.0)))
    judgement = judge_block(members(sent))
    ((failed, (finding,)),) = judgement.failed.items()
    assert (failed, finding.rule, finding.device) == (name, "straggler", "gpu1")
    assert set(cleared(judgement)) == set(sent) - {name}


@examples(20)
@given(st.data())
def test_whatever_a_slow_member_leaves_out_the_others_are_judged(data: Any) -> None:
    sent = block(5)
    slow(sent, "n4")
    raws = {name: each.raw() for name, each in sent.items()}
    rows = raws["n4"]["measurements"]
    kinds = sorted({(each["metric"], each["device"] == "node") for each in rows})
    lacking = data.draw(st.sets(st.sampled_from(kinds), min_size=1, max_size=4) | st.just({("step_compute", False)}))
    raws["n4"]["measurements"] = [each for each in rows if (each["metric"], each["device"] == "node") not in lacking]
    judgement = judge_block([MemberResult(name, parse_result(json.dumps(raw).encode())) for name, raw in raws.items()])
    gaps = [gap.code for member in judgement.members.values() for gap in member.coverage.missing]
    assert Lack.JUDGE_FAILED not in gaps
    if lacking == {("step_compute", False)}:
        assert {name: found[0].device for name, found in judgement.failed.items()} == {"n4": "node"}


def test_slow_without_anybody_waiting_for_it_only_warns() -> None:
    sent = block(4)
    slow(sent, "n1")
    sent["n1"].wait = 0.3
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    ((name, member),) = [each for each in judgement.members.items() if each[1].verdict is not Verdict.PASS]
    assert (name, member.verdict) == ("n1", Verdict.WARN)


@pytest.mark.parametrize("count", [2, 3])
def test_with_fewer_than_three_others_the_slower_one_is_warned_only(count: int) -> None:
    sent = block(count)
    slow(sent, "n1")
    judgement = judge_block(members(sent))
    ((name, warned),) = [each for each in judgement.members.items() if each[1].verdict is not Verdict.PASS]
    assert (name, warned.verdict, warned.findings[0].confidence) == ("n1", Verdict.WARN, 0.5)


def test_a_difference_that_every_step_shows_fails_none() -> None:
    sent = block(4)
    slow(sent, "n1", factor=1.2)
    for each in sent.values():
        each.spread = 0.3
    assert verdicts(judge_block(members(sent))) == {Verdict.PASS}


@pytest.mark.parametrize(("steps", "factor", "verdict"), [
    (4, 1.11, Verdict.PASS), (20, 1.11, Verdict.WARN), (200, 1.11, Verdict.WARN), (20, 1.13, Verdict.FAIL),
])  # fmt: skip
def test_more_steps_show_a_smaller_difference_and_it_fails_a_member_only_beyond_their_spread(
    steps: int, factor: float, verdict: Verdict
) -> None:
    sent = block(5)
    slow(sent, "n1", factor=factor)
    for each in sent.values():
        each.spread, each.steps = 0.12, steps
    assert judge_block(members(sent)).members["n1"].verdict is verdict


@pytest.mark.parametrize("steps", [20, 200])
@pytest.mark.parametrize("seed", range(10))
def test_steps_of_two_levels_fail_no_healthy_member(seed: int, steps: int) -> None:
    """As of a clock that toggles: the median of a member is near one level or the other, whatever their number."""
    sent, random = block(5), Random(seed)
    times = {
        name: [random.gauss(1.0, 0.004) * random.choice((1.0, 1.10)) for _ in range(steps)] for name in sent
    }  # fmt: skip
    whole = [max(each) for each in zip(*times.values(), strict=True)]
    for name, each in sent.items():
        each.compute = dict.fromkeys(each.compute, statistics.median(times[name]))
        each.wait = statistics.median(most - own for most, own in zip(whole, times[name], strict=True))
        each.spread, each.steps = spread(times[name]) or 0.0, steps
    assert judge_block(members(sent)).failed == {}


def test_small_differences_warn_from_where_healthy_nodes_end() -> None:
    found = []
    for factor in (1.035, 1.045, 1.055):
        sent = block(4)
        slow(sent, "n1", factor=factor)
        found.append(verdicts(judge_block(members(sent))))
    assert found == [{Verdict.PASS}, {Verdict.PASS, Verdict.WARN}, {Verdict.PASS, Verdict.FAIL}]


def test_the_limits_are_those_of_the_programme() -> None:
    sent = block(4)
    slow(sent, "n1", factor=1.055)
    wide = [limit.model_copy(update={"value": 20.0}) for limit in PROGRAMME.limits]
    generous = PROGRAMME.model_copy(update={"limits": tuple(wide)})
    assert verdicts(judge_block(members(sent), generous)) == {Verdict.PASS}


def test_a_single_device_may_differ_more_than_a_whole_node() -> None:
    found = []
    for factor in (1.04, 1.08, 1.12):
        sent = block(4, gpus=1)
        slow(sent, "n1", "gpu0", factor)
        found.append(verdicts(judge_block(members(sent))))
    assert found == [{Verdict.PASS}, {Verdict.PASS, Verdict.WARN}, {Verdict.PASS, Verdict.FAIL}]


def test_different_models_are_not_compared() -> None:
    sent = block(4)
    for name in ("n2", "n3"):
        sent[name].apart("gpu_model=NVIDIA H200")
        sent[name].compute = dict.fromkeys(sent[name].gpus, 0.7)
    assert verdicts(judge_block(members(sent))) == {Verdict.PASS}


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("with_another_driver", [("n0",), ("n0", "n1", "n2")])
def test_a_straggler_fails_where_drivers_differ(with_another_driver: tuple[str, ...], gpus: int) -> None:
    """Which change the bits of a healthy device: its pace is what they must not make slower."""
    sent = block(6, gpus)
    slow(sent, "n0", "gpu0", factor=1.12)
    for name in with_another_driver:
        sent[name].apart("driver_version=575")
    judgement = judge_block(members(sent))
    assert {name: [each.rule for each in found] for name, found in judgement.failed.items()} == {"n0": ["straggler"]}
    assert set(cleared(judgement)) == set(sent) - {"n0"}


@pytest.mark.parametrize(("factor", "slower"), [(1.0, False), (1.03, False), (1.5, True)])
def test_a_member_with_other_libraries_than_all_others_is_not_called_fast_enough(factor: float, slower: bool) -> None:
    sent = block(8)
    slow(sent, "n7", factor=factor)
    sent["n7"].apart("torch=2.14")
    judgement = judge_block(members(sent))
    assert set(cleared(judgement)) == set(sent) - {"n7"}
    member = judgement.members["n7"]
    assert member.verdict is Verdict.PROVISIONAL
    ((gap),) = member.coverage.unjudged
    assert (gap.code, gap.what) == (Lack.NOT_COMPARED, "step_compute of cluster_training")
    assert "2.14" in gap.why
    assert "H100" not in gap.why
    assert ("1.5 s a step, 50.0 % more" in gap.why) == slower
    assert [note.startswith("n7: ") for note in judgement.notes if "libraries" in note] == [True] * slower


def test_whoever_is_alone_with_its_times_is_compared_with_none() -> None:
    sent = block(3)
    for name in ("n0", "n1"):
        sent[name].status["cluster_training"] = "skipped"
    (gap,) = judge_block(members(sent)).members["n2"].coverage.unjudged
    assert gap.code is Lack.NOT_COMPARED


@pytest.mark.parametrize("compute", [0.0, -1.0])
def test_a_time_of_a_step_that_none_has_is_no_time(compute: float) -> None:
    sent = block(4)
    sent["n1"].compute = dict.fromkeys(sent["n1"].gpus, compute)
    judgement = judge_block(members(sent))
    assert judgement.members["n1"].verdict is Verdict.INCONCLUSIVE
    assert Lack.REFUSED in {gap.code for gap in judgement.members["n1"].coverage.missing}
    assert set(cleared(judgement)) == set(sent) - {"n1"}


def test_who_comes_late_to_most_collectives_is_warned_of() -> None:
    sent = block(3)
    sent["n2"].lags = dict.fromkeys(OPS, 0.4)
    judgement = judge_block(members(sent))
    ((name, member),) = [each for each in judgement.members.items() if each[1].verdict is not Verdict.PASS]
    assert (name, member.verdict, member.findings[0].rule) == ("n2", Verdict.WARN, "late")
    sent["n2"].lags["all_reduce"] = sent["n2"].lags["all_gather"] = sent["n2"].lags["send_recv"] = 0.0
    assert verdicts(judge_block(members(sent))) == {Verdict.PASS}


def test_collectives_that_one_member_names_alone_make_it_no_less_late() -> None:
    sent = block(3)
    sent["n2"].lags = dict.fromkeys(OPS, 0.4)
    raws = {name: each.raw() for name, each in sent.items()}
    for at in range(2 * len(OPS)):
        labels = {"op": f"op{at}", "bytes": "1024"}
        raws["n2"]["measurements"] += [
            row(COLLECTIVES, "arrival_lag", value=0.0, labels=labels),
            row(COLLECTIVES, "collective_time", value=0.001, labels=labels),
        ]
    judgement = judge_block([MemberResult(name, parse_result(json.dumps(raw).encode())) for name, raw in raws.items()])
    assert [each.rule for each in judgement.members["n2"].findings] == ["late"]


def test_one_member_that_reports_false_times_gets_no_other_failed() -> None:
    """In a block of three its report is half of what each other member is compared with."""
    for count, others in ((3, Verdict.WARN), (4, Verdict.PASS)):
        sent = block(count)
        sent["n0"].compute = dict.fromkeys(sent["n0"].gpus, 0.5)
        sent["n0"].wait = 10.0
        judgement = judge_block(members(sent))
        assert judgement.failed == {}
        assert {member.verdict for name, member in judgement.members.items() if name != "n0"} == {others}
