"""The judge of a block: the member at fault is named and no other, and no member passes on doubt."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_criteria.cluster.model import REASONS_MAX, BlockFindings, MemberResult
from muster_criteria.model import Evidence, FaultClass, Lack, Severity, Verdict
from muster_criteria.stage.findings import FINDINGS_MAX, evidence_finding
from tests.muster_criteria.cluster_results import TRAINING, Sent, block, judge_block, members, row
from tests.muster_criteria.cluster_verdicts import cleared, inconclusive, reason, verdicts

FEW = settings(max_examples=40)


@FEW
@given(st.integers(2, 9), st.integers(1, 8))
def test_a_clean_block_fails_none(count: int, gpus: int) -> None:
    judgement = judge_block(members(block(count, gpus)))
    assert verdicts(judgement) == {Verdict.PASS}
    assert cleared(judgement) == tuple(sorted(f"n{number}" for number in range(count)))
    assert judgement.failed == inconclusive(judgement) == {}
    assert judgement.missing == ()


@FEW
@given(st.data(), st.integers(2, 8), st.integers(1, 4), st.booleans())
def test_one_flipped_rank_is_always_the_one_that_fails(data: Any, count: int, gpus: int, erratic: bool) -> None:
    sent = block(count, gpus)
    name = data.draw(st.sampled_from(sorted(sent)))
    gpu = data.draw(st.sampled_from(sent[name].gpus))
    sent[name].flip(gpu, data.draw(st.integers(0, 2)), erratic)
    judgement = judge_block(members(sent))
    if count * gpus == 2 and not erratic:
        # Two that differ, each sure of itself: it cannot be decided, and both are held.
        assert judgement.failed == {}
        assert set(inconclusive(judgement)) == set(sent)
        return
    ((failed, findings),) = judgement.failed.items()
    assert (failed, [f.device for f in findings]) == (name, [gpu])
    assert findings[0].fault_class is FaultClass.GPU
    others = set(sent) - {name}
    # In a pair of single devices the other one is right, but no other is left to confirm it.
    assert set(cleared(judgement)) == (others if count * gpus > 2 else set())


@FEW
@given(st.randoms(use_true_random=False), st.integers(2, 6))
def test_the_order_of_members_changes_nothing(dice: random.Random, count: int) -> None:
    sent = block(count, 2)
    for each in sent.values():
        if dice.random() < 0.3:
            each.flip(dice.choice(each.gpus), dice.randrange(3), dice.random() < 0.5)
        if dice.random() < 0.3:
            each.lose(dice.choice(sorted(sent)))
        if dice.random() < 0.3:
            each.compute["gpu0"] = dice.uniform(0.9, 1.4)
        each.wait = dice.uniform(0.0, 0.3)
        if dice.random() < 0.3:
            each.mismatches["all_to_all", dice.choice(sorted(sent))] = 3.0
        if dice.random() < 0.2:
            each.weights = dice.choice("xyz")
    given_members = [*members(sent), MemberResult("n99", None, "no answer")]
    expected = judge_block(given_members)
    for _ in range(3):
        dice.shuffle(given_members)
        assert judge_block(given_members) == expected


def test_the_odd_one_out_in_model_is_held_since_no_other_confirms_it() -> None:
    sent = block(3, gpus=1)
    sent["n2"].apart("torch=2.14")
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert cleared(judgement) == ("n0", "n1")
    assert inconclusive(judgement) == {"n2": {Lack.NOT_CONFIRMED}}
    assert "2.14" in reason(judgement, "n2")
    assert "H100" not in reason(judgement, "n2")


def test_a_whole_node_that_differs_is_held_for_its_software() -> None:
    sent = block(3)
    for gpu in sent["n1"].gpus:
        sent["n1"].flip(gpu)
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert inconclusive(judgement) == {"n1": {Lack.ALL_CORRUPT}}
    assert {f.fault_class for m in judgement.members.values() for f in m.findings} == {FaultClass.SOFTWARE}
    assert cleared(judgement) == ("n0", "n2")


def test_all_different_is_a_common_cause() -> None:
    sent = block(3, gpus=1)
    for each in sent.values():
        each.flip()
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert all(Lack.ALL_DIFFER in codes for codes in inconclusive(judgement).values())
    assert set(inconclusive(judgement)) == set(sent)
    assert judgement.notes


def test_most_of_a_block_disagreeing_with_itself_is_a_common_cause() -> None:
    sent = block(3, gpus=1)
    for name in ("n0", "n1"):
        sent[name].flip(erratic=True)
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert judgement.notes
    assert inconclusive(judgement) == {key: {Lack.MOST_ERRATIC} for key in sent}


def test_one_node_cannot_outvote_another_however_many_devices_it_has() -> None:
    sent = block(2, gpus=3)
    for gpu in sent["n1"].gpus[:2]:
        for step in range(3):
            sent["n1"].flip(gpu, step)
    del sent["n1"].gpus[2]
    sent["n1"].digests = {at: text for at, text in sent["n1"].digests.items() if at[0] != "gpu2"}
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert set(inconclusive(judgement)) == set(sent)


def test_a_tie_names_none() -> None:
    sent = block(4, gpus=1)
    for name in ("n0", "n1"):
        for at in sent[name].digests:
            sent[name].digests[at] += " other"
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert set(inconclusive(judgement)) == set(sent)


def test_more_or_fewer_digests_than_others_clear_none() -> None:
    sent = block(3, gpus=1)
    sent["n1"].digests["gpu0", "1", "activations", "99"] = "made up"
    del sent["n2"].digests["gpu0", "0", "gradients", "0"]
    judgement = judge_block(members(sent))
    assert judgement.failed == {}
    assert "n1" in inconclusive(judgement)
    assert "n2" in inconclusive(judgement)


@pytest.mark.parametrize(("step", "first"), [("2-17", "step 2-17"), ("after", "step after")])
def test_a_digest_of_several_steps_names_who_differs_in_them(step: str, first: str) -> None:
    sent = block(3, gpus=1)
    for each in sent.values():
        each.digests |= {("gpu0", label, "", ""): label for label in ("2-17", "18-33", "after")}
    sent["n1"].digests["gpu0", step, "", ""] = "another"
    judgement = judge_block(members(sent))
    ((name, (finding,)),) = judgement.failed.items()
    assert (name, finding.rule) == ("n1", "same_batch")
    assert finding.observed.endswith(first)
    assert cleared(judgement) == ("n0", "n2")


def test_the_first_difference_is_that_of_the_lowest_step() -> None:
    sent = block(3, gpus=1)
    for each in sent.values():
        each.digests = {("gpu0", str(step), "", ""): f"{step}" for step in range(12)}
    for step in ("2", "10"):
        sent["n1"].digests["gpu0", step, "", ""] = "another"
    (finding,) = judge_block(members(sent)).failed["n1"]
    assert finding.observed.endswith("first in step 2")


def test_two_answers_for_one_question_agree_with_none() -> None:
    sent = block(3, gpus=1)
    raw = sent["n1"].raw()
    labels = {"step": "0", "kind": "activations", "layer": "0"}
    raw["measurements"].append(row(TRAINING, "step_digest", "gpu0", text="another", labels=labels))
    doubled = Sent("n1", list(sent), 1)
    doubled.raw = lambda: raw  # type: ignore[method-assign]
    judgement = judge_block([sent["n0"].member(), doubled.member(), sent["n2"].member()])
    assert set(judgement.failed) == {"n1"}


@FEW
@given(st.data(), st.integers(3, 7))
def test_a_lost_member_is_named_and_no_node_passes(data: Any, count: int) -> None:
    sent = block(count)
    lost = data.draw(st.sampled_from(sorted(sent)))
    for each in sent.values():
        each.lose(lost)
    results = [each.member() for name, each in sent.items() if name != lost]
    judgement = judge_block([*results, MemberResult(lost, None, "its agent left no result")])
    assert judgement.missing == (lost,)
    assert cleared(judgement) == ()
    assert set(inconclusive(judgement)) == set(sent)
    assert Lack.LOST in inconclusive(judgement)[lost]


def test_who_was_lost_does_not_get_others_named_by_blaming_them() -> None:
    """A member that comes back from a hang finds everybody gone."""
    sent = block(4)
    for name in ("n0", "n1", "n3"):
        sent[name].lose("n2")
    sent["n2"].lose("n0").lose("n1").lose("n3")
    judgement = judge_block(members(sent))
    assert judgement.missing == ("n2",)


def test_a_pair_that_lost_each_other_are_both_suspects() -> None:
    sent = block(2)
    sent["n0"].lose("n1")
    sent["n1"].lose("n0")
    judgement = judge_block(members(sent))
    assert judgement.missing == ()
    assert all(Lack.LOST_EACH_OTHER in codes for codes in inconclusive(judgement).values())
    assert set(inconclusive(judgement)) == set(sent)


def test_a_probe_that_was_skipped_says_why_in_the_verdict() -> None:
    sent = block(3)
    sent["n1"].status[TRAINING] = "skipped"
    judgement = judge_block(members(sent))
    assert Lack.ENDED_EARLY in inconclusive(judgement)["n1"]
    assert "cluster_training skipped" in reason(judgement, "n1")


@pytest.mark.parametrize(
    "metric", ["self_mismatches", "step_digest", "step_wait", "collective_mismatches", "block_intact", "loss"]
)
def test_no_node_passes_without_having_measured(metric: str) -> None:
    sent = block(3)
    sent["n1"].dropped.add(metric)
    judgement = judge_block(members(sent))
    assert "n1" not in cleared(judgement)
    assert judgement.failed == {}


@pytest.mark.parametrize("metric", ["step_wait", "loss"])
def test_what_is_required_does_not_depend_on_what_was_measured(metric: str) -> None:
    sent = block(3)
    whole = judge_block(members(sent)).members["n1"].coverage
    sent["n1"].dropped.add(metric)
    less = judge_block(members(sent)).members["n1"].coverage
    assert (less.required, less.measured) == (whole.required, whole.measured - 1)


def test_a_gpu_that_the_sku_counts_and_no_member_tested_is_missed() -> None:
    sent = block(3, gpus=2)
    judgement = judge_block([each.member(devices=3) for each in sent.values()])
    assert cleared(judgement) == ()
    assert inconclusive(judgement) == {key: {Lack.NOT_REPORTED} for key in sent}


def test_a_member_that_tested_fewer_devices_than_its_peers_is_held() -> None:
    sent = block(3)
    sent["n1"].gpus.remove("gpu1")
    sent["n1"].digests = {at: text for at, text in sent["n1"].digests.items() if at[0] != "gpu1"}
    judgement = judge_block(members(sent))
    assert cleared(judgement) == ("n0", "n2")
    assert "n1" in inconclusive(judgement)


def on_cpus(name: str, names: Sequence[str], cores: int) -> Sent:
    """A member without GPUs, which tests its CPUs."""
    healthy = Sent(name, names, cores)
    healthy.gpus = [gpu.replace("gpu", "cpu") for gpu in healthy.gpus]
    healthy.digests = {(at[0].replace("gpu", "cpu"), *at[1:]): text for at, text in healthy.digests.items()}
    for per_device in ("wrong_in_itself", "keys", "compute"):
        figures = getattr(healthy, per_device)
        setattr(healthy, per_device, {gpu.replace("gpu", "cpu"): value for gpu, value in figures.items()})
    return healthy


def test_cpu_nodes_may_have_different_numbers_of_cores() -> None:
    names = sorted(block(3))
    sent = {name: on_cpus(name, names, cores) for name, cores in zip(names, (2, 4, 8), strict=True)}
    assert verdicts(judge_block(members(sent))) == {Verdict.PASS}


def test_cpus_are_no_gpus_where_the_driver_of_a_whole_block_is_broken() -> None:
    names = sorted(block(3))
    judgement = judge_block([on_cpus(name, names, 16).member(devices=8) for name in names])
    assert cleared(judgement) == ()
    assert inconclusive(judgement) == {key: {Lack.NOT_REPORTED} for key in names}


def test_a_block_is_at_least_two_members_with_names_of_their_own() -> None:
    with pytest.raises(ValueError):
        judge_block([MemberResult("n0", None)])
    with pytest.raises(ValueError):
        judge_block([MemberResult("n0", None), MemberResult("n0", None)])


@pytest.mark.parametrize("part", [
    "judge_presence", "judge_digests", "judge_pace", "judge_payloads", "judge_training", "judge_ports", "judge_watched",
    "_judge_loss", "judge_domains",
])  # fmt: skip
def test_a_fault_of_the_judge_passes_none(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def fails(*args: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(f"muster_criteria.cluster.judge.{part}", fails)
    judgement = judge_block(members(block(3)))
    assert cleared(judgement) == ()
    assert inconclusive(judgement) == {key: {Lack.JUDGE_FAILED} for key in ["n0", "n1", "n2"]}


def test_the_verdict_can_be_recorded_as_that_of_a_stage() -> None:
    sent = block(3)
    sent["n1"].flip("gpu1", erratic=True)
    results = [sent[name].member(level="demo", sku="h100-sxm-8", sku_version="1+abc") for name in sent]
    recorded = judge_block(results).members["n1"]
    assert (recorded.level, recorded.sku, recorded.sku_version) == ("demo", "h100-sxm-8", "1+abc")
    assert (recorded.stage, recorded.verdict, recorded.simulated) == ("cluster_validation", Verdict.FAIL, True)
    spoilt = [o for o in recorded.observations if not o.ok]
    assert [(o.metric, o.device) for o in spoilt] == [("self_mismatches", "gpu1")]
    assert recorded.findings[0].severity is Severity.CRITICAL
    lost = MemberResult("n9", None, "no answer")
    assert judge_block([*results, lost]).members["n9"].observations == ()


def test_values_that_travel_are_frozen() -> None:
    judgement = judge_block(members(block(2)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        judgement.members = {}  # type: ignore[misc]


def test_what_is_found_of_a_member_is_bounded() -> None:
    results = members(block(2))
    known = [evidence_finding(Evidence("uncommanded_reboot", f"Restart {at}.")) for at in range(FINDINGS_MAX + 9)]
    results[1] = dataclasses.replace(results[1], known=tuple(known))
    assert len(judge_block(results).members["n1"].findings) == FINDINGS_MAX + 1
    found = BlockFindings()
    for at in range(REASONS_MAX + 9):
        found.suspect(["n1"], Lack.REFUSED, f"reason {at}")
        found.note(f"note {at}")
    assert len(found.suspected["n1"]) == len(found.notes) == REASONS_MAX


def test_what_the_controller_knows_of_a_member_is_judged_with_the_block() -> None:
    results = members(block(3))
    reboot = evidence_finding(Evidence("uncommanded_reboot", "It restarted under load."))
    results[1] = dataclasses.replace(results[1], known=(reboot,))
    judgement = judge_block(results)
    assert judgement.failed == {"n1": (reboot,)}
    assert cleared(judgement) == ("n0", "n2")
