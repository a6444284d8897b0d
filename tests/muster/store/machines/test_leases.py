"""One run at a time holds a node, however many race for it, and its token never goes back."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import threading

import pytest
from sqlalchemy import delete, update

from muster import store
from muster.errors import LeaseLost, MusterError, NodeLeased, UnknownNode
from muster.model.runs import RunKey
from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import writing
from muster.store.database.models import LeaseRow, NodeRow
from muster_criteria.model import Verdict
from tests.muster import fleet

RACER = """
import sys
from muster import store
from muster.errors import NodeLeased
from muster.model.runs import RunKey
store.nodes.find()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(10):
    try:
        print(store.leases.acquire("gpu-0001", RunKey("dag", sys.argv[1])).token, flush=True)
        store.leases.release(RunKey("dag", sys.argv[1]), "over")
    except NodeLeased:
        print("leased", flush=True)
"""


@pytest.mark.usefixtures("fleet_db")
class TestLeases:
    def test_the_holder_gets_its_lease_again_and_another_run_is_refused(self) -> None:
        store.nodes.add(fleet.new_node())
        first = store.leases.acquire("gpu-0001", RunKey("dag", "one"))
        assert store.leases.acquire("gpu-0001", RunKey("dag", "one")) == first
        with pytest.raises(NodeLeased):
            store.leases.acquire("gpu-0001", RunKey("dag", "two"))
        assert store.leases.live() == [first]

    def test_the_token_grows_across_releases(self) -> None:
        store.nodes.add(fleet.new_node())
        tokens = []
        for run in ("one", "two", "one"):
            tokens.append(store.leases.acquire("gpu-0001", RunKey("dag", run)).token)
            assert store.leases.release(RunKey("dag", run), "over") == ["gpu-0001"]
        assert tokens == sorted(set(tokens))
        assert store.leases.get("gpu-0001") is None

    def test_records_that_were_restored_or_rebuilt_give_no_token_that_was_given_before(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A hundred leases, then records that know of none: the node has seen the tokens, and refuses lower ones."""
        store.nodes.add(fleet.new_node())
        for number in range(100):
            last = store.leases.acquire("gpu-0001", RunKey("dag", str(number))).token
            store.leases.release(RunKey("dag", str(number)), "over")
        with writing() as session:
            session.execute(delete(LeaseRow))
            session.execute(update(NodeRow).values(fence=0))
        later = access.now() + datetime.timedelta(minutes=10)
        monkeypatch.setattr(access, "now", lambda: later)
        assert store.leases.acquire("gpu-0001", RunKey("dag", "restored")).token > last

    def test_a_fence_that_the_node_has_seen_is_passed_and_an_absurd_one_is_not_believed(self) -> None:
        store.nodes.add(fleet.new_node())
        seen = store.leases.acquire("gpu-0001", RunKey("dag", "one")).token + 10**6
        store.leases.release(RunKey("dag", "one"), "over")
        for person, token in (("root", seen), ("Ada", 2**52)):
            with pytest.raises(MusterError):
                store.leases.raise_fence("gpu-0001", token, person, "restored from Sunday")
        store.leases.raise_fence("gpu-0001", seen, "Ada", "restored from Sunday")
        assert store.leases.acquire("gpu-0001", RunKey("dag", "two")).token > seen
        store.leases.raise_fence("gpu-0001", 1, "Ada", "once more")
        assert store.leases.acquire("gpu-0001", RunKey("dag", "two")).token > seen, "it never goes back"

    def test_a_node_is_not_charged_for_jobs_that_it_fenced(self) -> None:
        """As after records were restored: the whole fleet would go to triage after three runs."""
        store.nodes.add(fleet.new_node())
        for number in range(4):
            lease = fleet.begin(run_id=f"run-{number}")
            store.runs.begin_stage(lease.key, "intake")
            parsed, raw = fleet.result(note=str(number))
            fenced = parsed.model_copy(update={"end": "fenced"})
            fleet.record(lease.key, fenced, fleet.judgement("intake", Verdict.INCONCLUSIVE), raw)
            store.runs.finish(lease.key, Verdict.INCONCLUSIVE, "fenced")
            store.leases.release(lease.key, "over")
        node = store.nodes.get("gpu-0001")
        assert (node.state, node.inconclusive) == (State.REGISTERED, 0)

    def test_releasing_what_is_not_held_is_harmless(self) -> None:
        store.nodes.add(fleet.new_node())
        store.leases.acquire("gpu-0001", RunKey("dag", "one"))
        assert store.leases.release(RunKey("dag", "two"), "over") == []
        assert store.leases.get("gpu-0001") is not None

    def test_an_unknown_node_cannot_be_leased(self) -> None:
        with pytest.raises(UnknownNode):
            store.leases.acquire("absent", RunKey("dag", "one"))

    @pytest.mark.both_dialects
    def test_threads_that_race_for_one_node(self) -> None:
        """All start at once: one gets the lease, each other is refused, nothing else happens to any of them."""
        store.nodes.add(fleet.new_node())
        outcomes: list[object] = []
        barrier = threading.Barrier(8)

        def race(run: str) -> None:
            barrier.wait()
            try:
                outcomes.append(store.leases.acquire("gpu-0001", RunKey("dag", run)).token)
            except NodeLeased:
                outcomes.append("leased")

        threads = [threading.Thread(target=race, args=(f"run-{index}",)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(str, outcomes))[1:] == ["leased"] * 7

    @pytest.mark.both_dialects
    def test_processes_that_race_for_one_node(self) -> None:
        """Three processes take and free it ten times each: no token is given out twice."""
        store.nodes.add(fleet.new_node())
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", RACER, f"run-{index}"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ.copy(),
            )
            for index in range(3)
        ]  # fmt: skip
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        answers = [racer.communicate(timeout=60)[0].split() for racer in racers]
        assert [racer.returncode for racer in racers] == [0, 0, 0]
        assert [len(answer) for answer in answers] == [10, 10, 10]
        tokens = sorted(int(word) for answer in answers for word in answer if word != "leased")
        assert len(tokens) == len(set(tokens)) > 0

    @pytest.mark.parametrize("stage", ["intake", "burn_in", "integrity"])
    @pytest.mark.both_dialects
    def test_a_run_that_ends_without_a_verdict_lets_its_node_go(self, stage: str) -> None:
        store.nodes.add(fleet.new_node())
        lease = fleet.begin()
        for before in ("intake", "burn_in", "integrity"):
            store.runs.begin_stage(lease.key, before)
            if before == stage:
                break
        assert store.leases.release(lease.key, "marked failed") == ["gpu-0001"]
        assert store.nodes.get("gpu-0001").state is State.REGISTERED
        run = store.runs.get(lease.key)
        assert (run.verdict, run.state_after) == (Verdict.INCONCLUSIVE, State.REGISTERED)

    def test_a_run_that_lost_its_lease_can_do_nothing(self) -> None:
        store.nodes.add(fleet.new_node())
        lease = fleet.begin()
        store.runs.begin_stage(lease.key, "intake")
        store.leases.release(lease.key, "marked failed")
        with pytest.raises(LeaseLost):
            store.runs.begin_stage(lease.key, "burn_in")
        parsed, raw = fleet.result()
        with pytest.raises(LeaseLost):
            fleet.record(lease.key, parsed, fleet.judgement(), raw)
        store.runs.finish(lease.key, Verdict.FAIL, "too late")
        assert store.nodes.get("gpu-0001").state is State.REGISTERED


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
@pytest.mark.parametrize("by", [State.QUARANTINE, State.REPAIR, State.RMA, State.RETIRED, None])
def test_no_run_goes_on_past_a_repair(by: State | None) -> None:
    """It would pass by what it measured before."""
    store.nodes.add(fleet.new_node())
    run = fleet.begin().key
    for stage in ("intake", "burn_in"):
        store.runs.begin_stage(run, stage)
        fleet.record(run, None, fleet.judgement(stage, Verdict.PASS))
    if by is not None:
        store.nodes.move("gpu-0001", by, "Ada", "fan 3 stands still")
    with pytest.raises(NodeLeased):
        store.nodes.move("gpu-0001", State.REGISTERED, "Ada", "fan 3 is new")
    assert store.nodes.get("gpu-0001").state is (by or State.BURN_IN)
    store.leases.release(run, "over")
    if by is not None:
        store.nodes.move("gpu-0001", State.REGISTERED, "Ada", "fan 3 is new")
    with pytest.raises(LeaseLost):
        store.runs.begin_stage(run, "integrity")
