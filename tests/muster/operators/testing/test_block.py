"""What a block is judged by: the fleet's own programme, cited; members that differ in driver or firmware are named."""

from __future__ import annotations

import dataclasses
import datetime
import json
import logging
from collections.abc import Collection
from pathlib import Path

import pytest
import yaml
from airflow.sdk.exceptions import AirflowException

from muster import store
from muster.admission import service
from muster.errors import Refusal, UnknownRun
from muster.model.runs import Job, RunKey
from muster.model.states import State
from muster.operators.testing import block, block_results, qualification
from muster.remote.job import outcome
from muster.reporting import mailing
from muster_criteria.measured import parse_result
from muster_criteria.model import Action, Judgement, Verdict
from muster_criteria.sku_files.skus import SHIPPED, load_sku
from tests.muster import copied, fleet
from tests.muster_criteria import cluster_results
from tests.support import node_list
from tests.support.refusals import illegal

pytestmark = pytest.mark.usefixtures("sqlite_db")

NAMES = ["gpu-0001", "gpu-0002"]
RUN = RunKey("cluster_qualification", "block")


@pytest.mark.parametrize("what", ["driver", "vbios", "nic", "kernel", "cuda", "torch", "nccl"])
@pytest.mark.parametrize(("versions", "differ"), [(("580.1", "580.1"), False), (("580.1", "590.1"), True)])
def test_members_that_differ_are_named_before_they_train_and_in_the_verdict(
    what: str, versions: tuple[str, str], differ: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for name, version in zip(NAMES, versions, strict=True):
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name, environment={what: version})
    with caplog.at_level(logging.WARNING):
        block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"})
    assert ("590.1 on gpu-0002" in caplog.text) is differ
    block.judge(RUN)
    for name in NAMES:
        (stage,) = store.reporting.run(RUN, node=name).stages
        found = [each for each in stage.judgement.findings if each.rule == "versions_differ"]
        assert [each.action for each in found] == [Action.FIX_SOFTWARE] * differ


def test_a_block_that_is_judged_again_is_found_the_same() -> None:
    for name, version in zip(NAMES, ("580.1", "590.1"), strict=True):
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name, environment={"driver": version})
    block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"})
    block.judge(RUN)
    before = store.reporting.judgements(RUN, node=NAMES[0])
    block.judge(RUN)
    assert store.reporting.judgements(RUN, node=NAMES[0]) == before


def test_a_fleets_own_programme_judges_the_block_and_is_cited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "programmes").mkdir()
    programme = yaml.safe_load((SHIPPED / "programmes" / "block.yaml").read_text())
    programme["probes"]["cluster_training"]["require"].append({"metric": "step_input", "devices": "node"})
    (tmp_path / "programmes" / "block.yaml").write_text(yaml.safe_dump(programme))
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path))
    copied.qualified(*NAMES)
    block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"})
    block.judge(RUN)
    for name in NAMES:
        (stage,) = store.reporting.run(RUN, node=name).stages
        cited = store.revisions.load(stage.judgement.sku, stage.judgement.sku_version)
        assert any("step_input" in gap.what for gap in stage.judgement.coverage.missing)
        assert cited.block.probes["cluster_training"].require[-1].metric == "step_input"
        assert cited.revision != load_sku(cited.name).revision


@pytest.mark.parametrize(
    ("verdict", "asked"),
    [(Verdict.PROVISIONAL, True), (Verdict.WARN, True), (Verdict.INCONCLUSIVE, False), (Verdict.FAIL, False)],
)
def test_a_person_is_asked_about_what_was_compared_with_nothing(verdict: Verdict, asked: bool) -> None:
    copied.qualified(*NAMES)
    block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"})
    for name in NAMES:
        fleet.do_stage(store.leases.get(name), "cluster_validation", verdict)
        store.runs.finish(RUN, verdict, "As it is.", node=name)
    qualification.release(RUN)
    assert [each["conf"]["node"] for each in block.questions(RUN, "short")] == (NAMES if asked else [])


def test_the_scheduler_of_a_member_that_failed_shows_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tmp_path / "nodes"
    shown.write_text("".join(f"{name}\n" for name in NAMES))
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"list": node_list.chosen(shown)}))
    for name in NAMES:
        store.nodes.add(fleet.new_node(name))
        store.schedulers.assign(name, "list", name, "Ada", "it is in this cluster")
        fleet.qualify(name)
        service.carry_out(name)
    block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"})
    for name, verdict in zip(NAMES, (Verdict.PASS, Verdict.FAIL), strict=True):
        fleet.do_stage(store.leases.get(name), "cluster_validation", verdict)
        store.runs.finish(RUN, verdict, f"So {name} ended.", node=name)
    qualification.release(RUN)
    reasons = dict(line.split(" ", 1) for line in shown.read_text().splitlines())
    assert f"So {NAMES[1]} ended." in reasons[NAMES[1]]


@pytest.mark.parametrize("later", [[], ["taken by a job"]])
def test_a_question_put_before_the_members_are_released_stays_open(later: list[str]) -> None:
    """The DAG asks first and releases last; a later block that took no verdict shows nothing new either."""
    name, asks = NAMES[0], RunKey("admission", "after-the-block")
    copied.qualified(*NAMES)
    block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"})
    for each in NAMES:
        fleet.do_stage(store.leases.get(each), "cluster_validation", Verdict.PROVISIONAL)
        store.runs.finish(RUN, Verdict.PROVISIONAL, "As it is.", node=each)
    assert block.questions(RUN, "short")
    store.questions.put(asks, name, store.questions.newest(name), "Admit it?", ("Admit", "RMA"))
    qualification.release(RUN)
    assert store.nodes.get(name).state is State.QUALIFIED
    for reason in later:
        again = RunKey(RUN.dag_id, reason)
        block.claim(again, {"nodes": NAMES, "level": "short", "reason": reason})
        store.runs.begin_stage(again, "cluster_validation", node=name)
        assert store.nodes.get(name).state is State.CLUSTER_VALIDATION
        for each in NAMES:
            store.runs.finish(again, Verdict.SKIPPED, "A user's job came.", node=each)
        qualification.release(again)
        assert store.nodes.get(name).state is State.QUALIFIED
    assert [question.key for question, _ in store.questions.waiting()] == [asks]
    store.questions.check(asks)
    store.nodes.move(name, State.QUARANTINE, "Ada", "its fan is loud")
    assert store.questions.waiting() == []
    with illegal(Refusal.OUTDATED):
        store.questions.check(asks)


def test_a_block_that_was_cleared_asks_again() -> None:
    copied.qualified(*NAMES)
    asked = []
    for _ in range(2):
        block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"})
        for name in NAMES:
            lease = store.leases.get(name)
            fleet.do_stage(lease, "cluster_validation", Verdict.WARN)
            store.runs.finish(RUN, Verdict.WARN, "It warns.", node=name)
        qualification.release(RUN)
        found = [block.questions(RUN, "short") for _ in range(2)]
        assert found[0] == found[1]  # a retry
        asked += [each["trigger_run_id"] for each in found[0]]
    assert len(set(asked)) == 4


FOUR = ["n0", "n1", "n2", "n3"]
FAULT = "the key of the controller cannot be read"


def meets(try_number: int, unable: Collection[str] = (), only: Collection[str] = FOUR, slow: str = "") -> None:
    """The block is claimed and its members, or ``only`` these, return what they measured with the seed of this try, but
    for the members that the controller was ``unable`` to log in to. All wait for a GPU of the ``slow`` one."""
    block.claim(RUN, {"nodes": FOUR, "level": "short", "reason": "x"}, try_number)
    for name, each in cluster_results.block(len(FOUR)).items():
        if name not in only:
            continue
        job = Job(RUN.dag_id, RUN.run_id, block.STAGE, f"{try_number}.0", outcome.SUBMITTED, "", node=name)
        store.runs.record_job(job)
        if name in unable:
            store.attempts.note_fault(RUN, block.STAGE, FAULT, node=name)
            continue
        begun = dataclasses.replace(job, state=outcome.RUNNING, started_at=store.clock.now())
        store.runs.record_job(begun)
        each.digests = {at: f"seed {try_number} {text}" for at, text in each.digests.items()}
        if slow:
            each.compute["gpu1"], each.wait = (1.3, 0.02) if name == slow else (1.0, 0.32)
        raw = json.dumps(each.raw()).encode()
        fleet.record(RUN, parse_result(raw), fleet.judgement(block.STAGE, Verdict.PASS), raw, node=name)
        store.runs.record_job(dataclasses.replace(begun, state=outcome.FINAL, ended_at=store.clock.now()))


def first_pass() -> None:
    """All is well, and then a person clears the run."""
    for name in FOUR:
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
    meets(1)
    for name in FOUR:
        store.runs.finish(RUN, Verdict.PASS, "It passed.", node=name)
    qualification.release(RUN)


def judged(name: str) -> Judgement:
    (stage,) = store.reporting.run(RUN, node=name).stages
    return stage.judgement


def test_a_member_that_holds_the_others_up_is_quarantined_and_no_other() -> None:
    for name in FOUR:
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
    meets(1, slow="n2")
    block.judge(RUN)
    assert [(each.rule, each.device) for each in judged("n2").findings] == [("straggler", "gpu1")]
    assert {name for name in FOUR if store.runs.get(RUN, node=name).verdict is Verdict.FAIL} == {"n2"}
    assert "gpu1" in store.runs.get(RUN, node="n2").headline
    qualification.release(RUN)
    expected = {**dict.fromkeys(FOUR, State.QUALIFIED), "n2": State.QUARANTINE}
    assert {name: store.nodes.get(name).state for name in FOUR} == expected


def test_a_cleared_block_that_the_controller_could_not_test_is_not_judged_by_its_earlier_pass() -> None:
    first_pass()
    meets(2, unable=FOUR)
    for _ in range(2):  # its worker is killed before the task ends
        block.judge(RUN)
        assert {store.runs.get(RUN, node=name).verdict for name in FOUR} == {Verdict.SKIPPED}
        assert all(FAULT in str(judged(name)) for name in FOUR)


def test_a_member_that_was_not_tested_again_is_not_compared_with_the_seed_of_another_pass() -> None:
    first_pass()
    meets(2, unable=["n2"])
    block.judge(RUN)
    assert store.runs.get(RUN, node="n2").verdict is Verdict.SKIPPED
    assert "same_batch" not in {each.rule for name in FOUR for each in judged(name).findings}
    assert not judged("n2").observations
    assert all(judged(name).observations for name in FOUR if name != "n2")


def test_nor_is_one_whose_task_never_began() -> None:
    first_pass()
    before = store.runs.get_job(RUN, block.STAGE, node="n2")
    meets(2, unable=["n2"])
    store.attempts.forget_fault(RUN, block.STAGE, node="n2")
    assert before is not None
    store.runs.record_job(dataclasses.replace(before, attempt_key="2.0"))
    block.judge(RUN)
    assert not judged("n2").observations


def test_a_person_who_clears_one_member_alone_charges_no_other() -> None:
    """A member cannot be measured without the others, and Airflow clears the claim with it."""
    first_pass()
    meets(2, only=["n2"])
    block.judge(RUN)
    assert {name: store.runs.get(RUN, node=name).verdict for name in FOUR} == dict.fromkeys(FOUR, Verdict.SKIPPED)
    assert [store.nodes.get(name).inconclusive for name in FOUR] == [0] * len(FOUR)
    assert all(block_results.NOT_AGAIN in str(judged(name)) for name in FOUR if name != "n2")


@pytest.mark.parametrize(("after_s", "charged"), [(0, True), (130, False)])
def test_a_member_whose_task_began_when_the_others_waited_no_more_is_not_charged(after_s: int, charged: bool) -> None:
    """Its first worker was killed."""
    for name in FOUR:
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
    meets(1, only=FOUR[:3])
    begun = store.clock.now() + datetime.timedelta(seconds=after_s)
    store.runs.record_job(
        Job(RUN.dag_id, RUN.run_id, block.STAGE, "1.0", outcome.RUNNING, "", node="n3", started_at=begun)
    )
    block.judge(RUN)
    assert store.nodes.get("n3").inconclusive == int(charged)
    assert [store.nodes.get(name).inconclusive for name in FOUR[:3]] == [0, 0, 0]


@pytest.mark.parametrize("late", ["n0", "n1"])
def test_nor_is_the_partner_of_such_a_member_in_a_block_of_two(late: str) -> None:
    """Both return a result, in which each reports the other."""
    two = FOUR[:2]
    for name in two:
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
    block.claim(RUN, {"nodes": two, "level": "short", "reason": "x"}, 1)
    claimed_at = (store.clock.now() - datetime.timedelta(seconds=300)).isoformat()
    store.attempts.keep_block(RUN, {**store.attempts.block_of(RUN), "claimed_at": claimed_at})
    for name, each in cluster_results.block(2).items():
        (other,) = {*two} - {name}
        begun = store.clock.now() - datetime.timedelta(seconds=0 if name == late else 130)
        job = Job(RUN.dag_id, RUN.run_id, block.STAGE, "1.0", outcome.RUNNING, "", node=name, started_at=begun)
        store.runs.record_job(job)
        raw = json.dumps(each.lose(other).raw()).encode()
        fleet.record(RUN, parse_result(raw), fleet.judgement(block.STAGE, Verdict.PASS), raw, node=name)
    block.judge(RUN)
    assert [store.nodes.get(name).inconclusive for name in two] == [0, 0]


def test_a_block_whose_judgement_alone_is_made_again_is_judged_by_what_it_returned() -> None:
    """Airflow claims it once more, since the claim is its setup."""
    first_pass()
    block.claim(RUN, {"nodes": FOUR, "level": "short", "reason": "x"}, 2)
    for _ in range(2):
        block.judge(RUN)
        assert all(judged(name).observations for name in FOUR)


def test_how_a_block_meets_is_in_the_records_alone() -> None:
    """Its secret stands in no XCom, which whoever may look at the run may read, and whoever may start one may write."""
    copied.qualified(*NAMES)
    assert block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"}) == NAMES
    kept = store.attempts.block_of(RUN)
    assert kept["members"] == NAMES
    assert len(kept["session"]) == 32
    block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"}, 2)
    again = store.attempts.block_of(RUN)
    assert again["session"] != kept["session"], "what an earlier try left over joins no later one"
    with pytest.raises(UnknownRun):
        store.attempts.block_of(RunKey("cluster_qualification", "another"))


def test_a_member_whose_report_cannot_be_mailed_keeps_no_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    copied.qualified(*NAMES)
    block.claim(RUN, {"nodes": NAMES, "level": "short", "reason": "x"})
    sent: list[str] = []

    def send(_key: RunKey, *, node: str, **_: object) -> str:
        if node == NAMES[0]:
            raise ValueError("odd")
        sent.append(node)
        return "1 sent, 0 waiting, 0 refused"

    monkeypatch.setattr(mailing, "send_report", send)
    with pytest.raises(AirflowException, match=f"{NAMES[0]}: odd"):
        block.report(RUN)
    assert sent == NAMES[1:]
