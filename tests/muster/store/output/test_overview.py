"""The fleet at a glance: which run, which reason, which moves and which runs under way it shows."""

from __future__ import annotations

import datetime

import pytest

from muster import store
from muster.judging import policies
from muster.model.figures import FleetRow
from muster.model.runs import Job
from muster.model.states import State
from muster_criteria.model import Verdict
from muster_node.contract import Measurement
from tests.muster import fleet
from tests.support import lives

NODE = "gpu-0001"


def only() -> FleetRow:
    (row,) = store.overview.rows()
    return row


def skip(run_id: str) -> None:
    lease = fleet.begin(run_id=run_id)
    store.runs.finish(lease.key, Verdict.SKIPPED, "A job took the node.")
    store.leases.release(lease.key, "over")


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.both_dialects
class TestTheLastRun:
    def test_what_was_skipped_hides_no_verdict(self) -> None:
        store.nodes.add(fleet.new_node())
        assert store.runs.last(NODE) is None
        skip("a")
        assert (store.runs.last(NODE), only().verdict) == (None, None)
        fleet.qualify(run_id="b")
        skip("c")
        last = store.runs.last(NODE)
        assert last is not None
        assert (last.run_id, only().run_id, only().verdict) == ("b", "b", Verdict.PASS)
        assert [each.verdict for each in store.figures.fleet(policies.health()).nodes] == ["PASS"]

    def test_another_machine_of_the_name_begins_without_a_run(self) -> None:
        store.nodes.add(fleet.new_node())
        fleet.qualify(run_id="a")
        fleet.fail(run_id="b")
        assert store.figures.fleet(policies.health()).nodes[0].passed_at is not None
        store.adoption.replace(NODE, "Ada", "swapped", host_key=fleet.host_key("new"))
        assert store.runs.last(NODE) is None
        assert (only().verdict, only().run_id, only().headline) == (None, "", "")
        (figures,) = store.figures.fleet(policies.health()).nodes
        assert (figures.verdict, figures.passed_at) == ("", None)


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.both_dialects
def test_a_person_s_reason_stands_until_a_test_moves_the_node_or_ends() -> None:
    store.nodes.add(fleet.new_node())
    assert only().moved_for == ""
    fleet.qualify(run_id="a")
    assert only().moved_for == ""
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "smells of smoke")
    assert (only().moved_by, only().moved_for, only().headline) == ("Ada", "smells of smoke", "All is well.")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move(NODE, state, "Ada", "aired")
    fleet.fail(run_id="b")
    assert (only().moved_by, only().moved_for, only().latest) == ("", "", "gpu3 is slow.")


@pytest.mark.usefixtures("fleet_db")
def test_moves_are_counted_and_leave_out_idle_tests_and_other_nodes() -> None:
    since = datetime.datetime.now(datetime.UTC)
    for name in ("a", "b"):
        store.nodes.add(fleet.new_node(name))
    lives.in_production("a")
    fleet.fail("b")
    fleet.do_stage(fleet.begin("a"), "intake")
    assert store.nodes.get("a").state is State.REVALIDATION
    moves, number = store.overview.moves_since(since, 2)
    assert (moves[0].node, moves[0].to_state, len(moves)) == ("b", State.QUARANTINE, 2)
    everything, same = store.overview.moves_since(since, 100)
    assert (number, same) == (len(everything), len(everything))
    assert State.REVALIDATION not in {move.to_state for move in everything}
    assert {move.node for move in everything} == {"a", "b"}
    moves, number = store.overview.moves_since(since, 1, {"b"})
    assert ([move.node for move in moves], number) == (["b"], sum(move.node == "b" for move in everything))


@pytest.mark.usefixtures("fleet_db")
def test_the_oldest_runs_under_way_come_first_and_the_others_are_counted() -> None:
    for name in ("a", "b", "c"):
        store.nodes.add(fleet.new_node(name))
        lease = fleet.begin(name)
    began = store.clock.now()
    for attempt in (began, began + datetime.timedelta(hours=1)):
        store.runs.record_job(Job(fleet.DAG, lease.run_id, "intake", f"{attempt}", "done", "/j", started_at=attempt))
    runs, number = store.overview.runs_under_way(2)
    assert ([(run.node, at) for run, at in runs], number) == ([("a", None), ("b", None)], 3)
    runs, number = store.overview.runs_under_way(2, {"c"})
    assert ([(run.node, at) for run, at in runs], number) == ([("c", began)], 1)


@pytest.mark.usefixtures("fleet_db")
@pytest.mark.both_dialects
def test_search_finds_no_repaired_finding_and_none_of_a_former_machine() -> None:
    xid = Measurement(
        "device_events", "xid", "gpu0", "text", None, "GPU has fallen off the bus", {"kind": "xid", "code": "79"}
    )
    for name in ("repaired", "replaced", "sick", "unsure"):
        store.nodes.add(fleet.new_node(name))
        lease = fleet.begin(name)
        parsed, raw = fleet.result(node=name, measurements=[xid])
        store.runs.begin_stage(lease.key, "intake", node=name)
        judged = fleet.judgement(verdict=Verdict.FAIL, findings=(fleet.FINDING,))
        fleet.record(lease.key, parsed, judged, raw, node=name)
        store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
        store.leases.release(lease.key, "over")
    for name, verdict in (("repaired", Verdict.PASS), ("unsure", Verdict.INCONCLUSIVE)):
        for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
            store.nodes.move(name, state, "Ada", "repaired")
        fleet.do_stage(fleet.begin(name, "again"), "intake", verdict)
    store.adoption.replace("replaced", "Ada", "swapped", host_key=fleet.host_key("new"))
    assert store.overview.nodes_with("gemm_rate") == {"sick", "unsure"}
    for text in ("79", "xid 79", "XID79", "xid/79"):
        assert store.overview.nodes_with(text) == {"sick", "unsure"}, text
    assert not store.overview.nodes_with("sxid 79")
