"""Goldens in the records: what devices gave makes them, a verdict cites them, a person withdraws them."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.orm import Session

from muster import acting, store
from muster.errors import NoPerson, UnknownGolden
from muster.judging.case import NO_PEERS
from muster.judging.reevaluate import reevaluate
from muster.model.runs import OpenFinding
from muster.model.states import State
from muster.model.statistics import KeptGolden
from muster.store.database import access
from muster.store.database.digests import DigestRow
from muster.store.database.engine import reading
from muster.store.database.models import NodeRow
from muster.store.fleet.suspects import suspects_on
from muster_criteria.context.goldens import Goldens, golden_id
from muster_criteria.measured import parse_result
from muster_criteria.model import Action, Finding, Judgement, Severity, Verdict
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from tests.muster import fleet
from tests.muster.cli.conftest import muster  # noqa: F401 - a fixture
from tests.muster_criteria.nodes import healthy_raw, measurement
from tests.muster_criteria.violations import violations

pytestmark = pytest.mark.usefixtures("fleet_db")

STAGE, LEVEL, OP, KEY = "integrity", "demo", "attention", "driver=570; torch=2.8"
GPUS = tuple(f"gpu{slot}" for slot in range(8))
ID = golden_id(KEY, OP, simulated=False)


@functools.cache
def h100() -> tuple[Sku, dict[str, Any]]:
    sku = load_sku("h100-sxm-8")
    return sku, healthy_raw(sku, STAGE, LEVEL)


def visited(
    node: str, run: str = "1", *, key: str = KEY, ops: Sequence[str] = (OP,), simulated: bool = False, **digests: str
) -> Judgement:
    """A visit whose GPUs gave ``digests`` ("right", by default), judged and recorded as the task does."""
    sku, healthy = h100()
    measured = [measurement("full_entropy", "golden_key", gpu, key, "text") for gpu in GPUS]
    measured += [
        measurement("full_entropy", "full_entropy_digest", gpu, digests.get(gpu, "right"), "text", labels={"op": op})
        for gpu in GPUS
        for op in ops
    ]
    identity = {"boot_id": "b", "serials": {"system": node, **{gpu: f"{node}-{gpu}" for gpu in GPUS}}}
    raw = json.dumps(
        {**healthy, "node": node, "identity": identity, "simulated": simulated, "notes": [run],
         "measurements": healthy["measurements"] + measured}
    ).encode()  # fmt: skip
    result = parse_result(raw)
    if node not in {each.name for each in store.nodes.find()}:
        store.nodes.add(fleet.new_node(node, sku=sku.name, simulated=simulated))
    lease = fleet.begin(node, f"{node}__{run}")
    known = store.goldens.matching(result, lease.run_id, simulated=simulated)
    judgement = judge(Case(sku, result.stage, result.level, result, goldens=known), evaluate=violations)
    fleet.record(lease.key, result, judgement, raw)
    store.leases.release(lease.key, "over")
    return judgement


def findings(judgement: Judgement) -> list[tuple[str, Severity, Action]]:
    return [(each.device, each.severity, each.action) for each in judgement.findings]


def suspects(node: str) -> list[OpenFinding]:
    with reading() as session:
        return suspects_on(session, access.node_row(session, node))


def only() -> KeptGolden:
    (record,) = store.goldens.find()
    return record


class TestPromotion:
    @pytest.mark.both_dialects
    def test_the_third_node_that_agrees_makes_it(self) -> None:
        for node in ("a", "b"):
            assert visited(node).verdict is Verdict.PASS
        assert only().digest == ""
        visited("c")
        golden = only()
        assert (golden.id, golden.digest, golden.devices, golden.nodes) == (ID, "right", 24, 3)
        assert len(golden.agreed) == 24

    def test_the_same_node_three_times_does_not(self) -> None:
        for run in "123":
            visited("a", run)
        assert only().nodes == 1

    @pytest.mark.both_dialects
    @pytest.mark.parametrize("of_c", ["right", "wrong"])
    def test_the_digests_of_other_nodes_are_not_read_where_each_result_is_recorded(
        self, of_c: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for node in ("a", "b"):
            visited(node)
        visited("c", gpu5=of_c)
        assert bool(only().digest) is (of_c == "right")
        monkeypatch.setattr(store.goldens, "matching", lambda *_, **__: Goldens())
        read = []

        def loaded(row: DigestRow, _context: object) -> None:
            read.append(row.node)

        event.listen(DigestRow, "load", loaded)
        try:
            visited("a", "2")
        finally:
            event.remove(DigestRow, "load", loaded)
        assert set(read) == {"a"}

    def test_a_device_that_differs_from_then_on_fails_and_the_golden_cited(self) -> None:
        for node in ("a", "b", "c"):
            visited(node)
        judgement = visited("d", gpu5="wrong")
        assert judgement.verdict is Verdict.FAIL
        assert findings(judgement) == [("gpu5", Severity.CRITICAL, Action.RMA)]
        assert judgement.findings[0].source.startswith(f"golden {ID} of ")
        assert only().digest == "right", "and the golden stands"

    def test_one_who_dissents_before_holds_it(self) -> None:
        for node in ("a", "b"):
            visited(node)
        assert findings(visited("c", gpu5="wrong")) == [("gpu5", Severity.WARNING, Action.RETEST)]
        visited("d")
        assert only().digest == ""

    @pytest.mark.parametrize("leaves", ["replaced", State.QUARANTINE, State.RETIRED])
    def test_a_machine_that_is_gone_has_no_vote(self, leaves: str) -> None:
        for node in ("a", "b"):
            visited(node)
        visited("c", gpu5="wrong")
        if leaves == "replaced":
            store.adoption.replace("c", "Ada", "another machine", host_key=fleet.host_key("new"))
        else:
            store.nodes.move("c", State(leaves), "Ada", "it smokes")
        assert only().nodes == 2
        visited("d")
        assert (only().digest, only().nodes) == ("right", 3)

    def test_real_and_simulated_nodes_never_vote_together(self) -> None:
        for node, simulated in (("a", False), ("b", False), ("c", True)):
            visited(node, simulated=simulated)
        assert {(each.simulated, each.nodes, each.digest) for each in store.goldens.find()} == {
            (False, 2, ""), (True, 1, ""),
        }  # fmt: skip

    def test_a_suspect_has_no_voice(self) -> None:
        visited("a")
        failing = Finding(
            "exactly", "gemm_mismatches", "gpu5", Severity.CRITICAL, fleet.FINDING.fault_class, Action.RMA,
            "4", "0", "by definition", "gpu5 computes wrong results.",
        )  # fmt: skip
        lease = fleet.begin("a", "a__sdc")
        sent = fleet.result(node="a", serials={gpu: f"a-{gpu}" for gpu in GPUS})
        fleet.record(lease.key, sent[0], fleet.judgement(findings=(failing,)), sent[1])
        store.leases.release(lease.key, "over")
        visited("a", "2", gpu5="wrong")
        for node in ("b", "c"):
            visited(node)
        assert only().digest == "right"
        assert not [each for each in only().agreed if "a-gpu5" in each]


class TestWithdrawal:
    def test_from_then_on_devices_have_to_agree_afresh(self) -> None:
        for node in ("a", "b", "c"):
            visited(node)
        with acting.under("os:ada"):
            withdrawn, cleared = store.goldens.withdraw(ID, "Ada", "another cuBLAS")
        assert cleared == []
        (event,) = (each for each in store.audit.batch("siem", 500) if not each.node)
        assert (event.actor, event.evidence["golden"], event.evidence["reason"]) == ("Ada", ID, "another cuBLAS")
        given = (withdrawn.withdrawn_by, withdrawn.withdrawn_login, withdrawn.withdrawn_reason)
        assert given == ("Ada", "os:ada", "another cuBLAS")
        assert store.goldens.find() == []
        (kept,) = store.goldens.find(withdrawn=True)
        assert kept.withdrawn_at is not None
        for node in ("a", "b", "c"):
            assert visited(node, "2", **dict.fromkeys(GPUS, "other")).verdict is Verdict.PASS
        assert only().digest == "other"

    @pytest.mark.both_dialects
    @pytest.mark.parametrize("other_too", [False, True])
    def test_its_suspects_end_with_the_last_golden_from_which_they_differ(self, other_too: bool) -> None:
        """A golden that was wrong stays held against no device: its FAIL is superseded by the next test."""
        ops = (OP, "softmax") if other_too else (OP,)
        for node in ("a", "b", "c"):
            visited(node, ops=ops)
        visited("d", gpu5="wrong", ops=ops)
        for op in ops:
            assert {each.finding.device for each in suspects("d")} == {"gpu5"}
            _, cleared = store.goldens.withdraw(golden_id(KEY, op, simulated=False), "Ada", "another cuBLAS")
            assert len(cleared) == (op == ops[-1]), "the person who withdraws it sees which part is trusted again"
        assert suspects("d") == []
        assert store.nodes.events("d")[-1].actor == "Ada"

    @pytest.mark.both_dialects
    def test_a_withdrawal_locks_nodes_before_it_takes_its_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a task that records a stage: in the other order each would wait for the other."""
        for node in ("a", "b", "c"):
            visited(node)
        visited("d", gpu5="wrong")
        steps: list[str] = []
        locks, turns = access.node_row, access.take_turns

        def locked(session: Session, name: str, *, lock: bool = False) -> NodeRow:
            steps.extend([name] if lock else [])
            return locks(session, name, lock=lock)

        def taken(session: Session, at: str) -> None:
            steps.append(at)
            turns(session, at)

        monkeypatch.setattr(access, "node_row", locked)
        monkeypatch.setattr(access, "take_turns", taken)
        store.goldens.withdraw(ID, "Ada", "another cuBLAS")
        assert steps[:2] == ["d", "golden"]
        assert suspects("d") == []

    def test_a_suspect_by_other_evidence_stays(self) -> None:
        for node in ("a", "b", "c"):
            visited(node)
        visited("d", gpu5="wrong")
        corrupt = fleet.finding(metric="gemm_mismatches", device="gpu5")
        lease = fleet.begin("d", "d__sdc")
        fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(corrupt,))
        store.leases.release(lease.key, "over")
        store.goldens.withdraw(ID, "Ada", "another cuBLAS")
        assert [each.finding.metric for each in suspects("d")] == ["gemm_mismatches"]

    def test_what_holds_a_key_without_a_golden_is_forgotten_too(self) -> None:
        visited("a")
        visited("b", gpu5="wrong")
        assert store.goldens.withdraw(ID, "Ada", "a driver in between")[0].digest == ""
        for node in ("a", "c", "d"):
            visited(node, "2")
        assert only().digest == "right"

    def test_no_named_person_and_no_evidence_are_refused(self) -> None:
        visited("a")
        for person, reason in (("root", "because"), ("Ada", " ")):
            with pytest.raises(NoPerson):
                store.goldens.withdraw(ID, person, reason)
        with pytest.raises(UnknownGolden):
            store.goldens.withdraw("g-0", "Ada", "because")


class TestReplay:
    def test_by_what_was_known_then_it_is_the_same_again(self) -> None:
        for node in ("a", "b", "c"):
            visited(node)
        judgement = visited("d", gpu5="wrong")
        store.goldens.withdraw(ID, "Ada", "because")
        visited("e", "1", **dict.fromkeys(GPUS, "other"))
        (again,) = reevaluate(store.runs.by_id("d__1"))
        assert again.differences == ()
        assert again.outcome is not None
        assert again.outcome.findings[0].source == judgement.findings[0].source

    def test_without_peers_the_golden_counts_all_the_same(self) -> None:
        for node in ("a", "b", "c"):
            visited(node)
        visited("d", gpu5="wrong")
        (again,) = reevaluate(store.runs.by_id("d__1"), as_of=NO_PEERS)
        assert again.differences == ()

    def test_a_dissent_before_there_was_a_golden_stays_one(self) -> None:
        visited("a")
        visited("b", gpu5="wrong")
        visited("c")
        (again,) = reevaluate(store.runs.by_id("b__1"))
        assert again.differences == ()


@pytest.mark.both_dialects
def test_two_that_complete_it_at_once_make_one_golden() -> None:
    visited("a")
    for node in ("b", "c"):
        store.nodes.add(fleet.new_node(node, sku="h100-sxm-8"))
    both = [threading.Thread(target=visited, args=(node,)) for node in ("b", "c")]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert only().digest == "right"


def test_the_command_lists_and_withdraws(muster: Any) -> None:  # noqa: F811 - the fixture
    for node in ("a", "b", "c"):
        visited(node)
    code, out, _ = muster("golden", "list")
    assert code == 0
    assert all(part in out for part in (ID, OP, "right", "golden of 24 devices on 3 nodes"))
    code, out, _ = muster("golden", "withdraw", ID, "--reason", "new cuBLAS", "--as", "Ada", "--dry-run")
    assert (code, only().digest) == (0, "right")
    code, out, _ = muster("golden", "withdraw", ID, "--reason", "new cuBLAS", "--as", "Ada")
    assert (code, store.goldens.find()) == (0, [])
    assert "Ada" in muster("golden", "list", "--withdrawn")[1]
    code, _, err = muster("golden", "withdraw", "g-0", "--reason", "x", "--as", "Ada")
    assert code == 1
    assert "g-0" in err
