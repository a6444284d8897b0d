"""The claim rule: a run that would bypass its node's pool holds nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from muster import store
from muster.admission import answers, service
from muster.admission.startable import asked, together
from muster.errors import LeftAlone, MusterError, NeverClosed, SchedulerDown
from muster.integration import runid
from muster.model import dags
from muster.model.repairs import Fault
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import admission, arrival, held, repair, revalidation
from muster.operators.testing import claims, qualification
from muster_criteria.cluster.plan import MEMBERS_MAX, SOAK_MINUTES_MAX, Asked
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("sqlite_db")

NODE = "gpu-0001"


def serving() -> None:
    fleet.qualify()
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "needed now")


@pytest.mark.parametrize(("pool", "taken"), [(None, False), ("", False), ("rack-8", False), ("rack-7", True)])
def test_a_run_outside_its_nodes_pool_is_refused(pool: str | None, taken: bool) -> None:
    """The pool bounds a rack's watts, and the policy sees the run's conf only."""
    store.nodes.add(fleet.new_node(NODE, pool="rack-7"))
    params = {"node": NODE, "level": "demo", "reason": "x", "pool": pool}
    if taken:
        assert qualification.claim(RunKey("node_qualification", "run"), params)["node"] == NODE
    else:
        with pytest.raises(AirflowFailException):
            qualification.claim(RunKey("node_qualification", "run"), params)
    assert [lease.node for lease in store.leases.live()] == ([NODE] if taken else [])


@pytest.mark.parametrize("wrong", [{"levle": "long"}, {"Level": "long"}, {"stages": ["integrity"]}])
def test_a_misspelt_key_of_a_run_does_not_leave_the_default(wrong: dict[str, Any]) -> None:
    """Airflow takes what the form lacks: a test at another level than was asked for would be recorded as a pass."""
    store.nodes.add(fleet.new_node(NODE))
    params = {"node": NODE, "level": "demo", "reason": "x", "pool": None, "force_reason": None}
    with pytest.raises(AirflowFailException, match=f"unknown key '{next(iter(wrong))}'"):
        qualification.claim(RunKey("node_qualification", "run"), params | wrong)
    assert next(iter(wrong)) in store.nodes.events(NODE)[-1].reason, "as `muster status` shows it"
    assert not store.leases.live()
    assert qualification.claim(RunKey("node_qualification", "run"), params)["node"] == NODE


def test_a_test_of_a_node_that_serves_needs_no_pool() -> None:
    store.nodes.add(fleet.new_node(NODE, pool="rack-7"))
    serving()
    params = {"node": NODE, "level": "demo", "reason": "x"}
    assert revalidation.claim(RunKey("node_revalidation", "run"), params)["node"] == NODE


@pytest.mark.parametrize(("waited", "windows"), [(60, ""), (0, "Mon-Sun 00:00-24:00"), (0, "")])
def test_a_test_that_was_chosen_of_idle_nodes_begins_soon_and_in_no_blackout_or_not_at_all(
    waited: int, windows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While node_revalidation is paused or no worker is free, runs wait, and would all begin at once later."""
    monkeypatch.setenv("MUSTER_REVALIDATION_BLACKOUTS", windows)
    store.nodes.add(fleet.new_node(NODE))
    serving()
    left = revalidation.LATEST - datetime.timedelta(minutes=waited)
    params = claims.beginning_within(left, {"node": NODE, "level": "demo", "reason": "x"})
    behind = store.clock.now() - datetime.timedelta(hours=2)  # by the clock of Airflow's machine
    key = RunKey("node_revalidation", runid.of_pick(NODE, "idle", "scheduled__2026-06-01T00:00:00+00:00"))
    with pytest.raises(AirflowSkipException) if waited or windows else contextlib.nullcontext():
        revalidation.claim(key, params, run_after=behind)
    if not waited and not windows:
        monkeypatch.setenv("MUSTER_REVALIDATION_BLACKOUTS", "Mon-Sun 00:00-24:00")
        late = claims.beginning_within(-left, params)
        revalidation.claim(key, late, run_after=behind)  # a retried task
        return
    assert not store.runs.find(node=NODE, run=key)
    by_hand = RunKey("node_revalidation", runid.run_id(NODE, "idle in rack 7"))
    assert revalidation.claim(by_hand, params, run_after=behind)["node"] == NODE


@pytest.mark.parametrize(("left", "begins"), [(1, True), (-1, False), (None, True)])
def test_a_test_that_muster_started_and_that_begins_late_is_refused_and_that_is_shown(
    left: int | None, begins: bool
) -> None:
    """As that which proves a repair: a person may have the node by then, and no other run takes its place."""
    store.nodes.add(fleet.new_node(NODE))
    asked = {"node": NODE, "level": "demo", "reason": "proves a repair"}
    params = asked if left is None else claims.beginning_within(datetime.timedelta(hours=left), asked)
    key = RunKey("node_qualification", "proof")
    with contextlib.nullcontext() if begins else pytest.raises(AirflowFailException):
        qualification.claim(key, params)
    assert [lease.key for lease in store.leases.live()] == [key] * begins
    since = store.clock.now() - datetime.timedelta(hours=1)
    assert set(store.signs.refusals(since)) == (set() if begins else {NODE})
    if begins:  # and is repeated by Airflow, or cleared by a person
        qualification.claim(key, claims.beginning_within(datetime.timedelta(days=-2), asked))


@pytest.mark.parametrize("by", ["2026-11-30T09:00:00", "soon", 7])
def test_a_time_by_which_a_run_begins_that_is_none_is_refused(by: object) -> None:
    store.nodes.add(fleet.new_node(NODE))
    with pytest.raises(AirflowFailException):
        qualification.claim(
            RunKey("node_qualification", "run"), {"node": NODE, "level": "demo", "reason": "x", claims.BEGIN_BY: by}
        )


@pytest.mark.parametrize(
    ("refused", "noted"), [(LeftAlone("a job waits for it"), True), (SchedulerDown("no answer"), True), (None, False)]
)
def test_a_test_that_is_refused_before_it_begins_is_not_picked_again_at_once(
    refused: MusterError | None, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node that no test can take would keep the place of the others."""
    monkeypatch.setenv("MUSTER_REVALIDATION_AFTER_HOURS", "0")
    store.nodes.add(fleet.new_node(NODE))
    serving()

    def take(*_: str) -> None:
        if refused:
            raise refused

    monkeypatch.setattr(service, "take_for_test", take)
    params = {"node": NODE, "level": "demo", "reason": "x"}
    with pytest.raises(AirflowException) if refused else contextlib.nullcontext():
        revalidation.claim(RunKey("node_revalidation", "run"), params)
    store.leases.release(RunKey("node_revalidation", "run"), "over")
    assert bool(store.signs.refusals(datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1))) is noted
    assert (revalidation.pick("later", {"level": "demo"}) == []) is noted


@pytest.mark.parametrize(
    ("refused", "listed"),
    [(LeftAlone("a job waits"), []), (SchedulerDown("no answer"), [NODE]), (NeverClosed("in shadow mode"), [NODE])],
)
def test_a_node_in_service_that_no_test_can_take_is_listed_unless_it_is_in_use(
    refused: MusterError, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node(NODE))
    serving()

    def take(*_: str) -> None:
        raise refused

    monkeypatch.setattr(service, "take_for_test", take)
    for turn in ("first", "second", "third"):
        assert store.attention.collect() == []
        with pytest.raises(AirflowException):
            revalidation.claim(RunKey("node_revalidation", turn), {"node": NODE, "level": "demo", "reason": "x"})
    assert [each.node for each in store.attention.collect()] == listed


def test_no_more_tests_are_started_at_once_than_airflow_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more, and the whole task fails, so that no node at all is tested."""
    from airflow.configuration import conf

    assert conf.getint("core", "max_map_length") >= dags.MAPPED_MAX
    monkeypatch.setenv("MUSTER_REVALIDATION_SHARE", "1")
    monkeypatch.setattr(dags, "MAPPED_MAX", 2)
    names = ["n1", "n2", "n3"]
    store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node(name)) for name in names])
    picked = revalidation.pick("now", {"level": "demo"})
    assert len(picked) == 2
    assert not any(claims.late(RunKey("node_revalidation", each["trigger_run_id"]), each["conf"]) for each in picked)


def repairs_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policies name each node in quarantine."""
    monkeypatch.setattr(repair.policies, "health", lambda: SimpleNamespace(mode_of=lambda _labels: "repair"))
    monkeypatch.setattr(repair, "_next_fault", lambda _node: {"fault": "gpu_memory", "reason": "XID 95"})


@pytest.mark.parametrize("meanwhile", ["nothing", "out of service again", "paused", "held", "another fault"])
def test_a_repair_begins_if_the_sweep_would_begin_it_now(meanwhile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its run waited for a worker, or its claim for the records: a person may have the node by then."""
    monkeypatch.setattr(repair.policies, "health", lambda: SimpleNamespace(mode_of=lambda _labels: "repair"))
    store.nodes.add(fleet.new_node(NODE))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
    store.repairs.open_incident(NODE, Fault("gpu_memory", "gpu3"), "XID 95", ("intake",), "standard")
    (run,) = repair.wanted()
    key, conf, now = RunKey("repair", run["trigger_run_id"]), run["conf"], store.clock.now
    monkeypatch.setattr(store.clock, "now", lambda: now() + datetime.timedelta(days=1))
    if meanwhile == "out of service again":
        store.nodes.move(NODE, State.REGISTERED, "Ada", "gpu3 was replaced")
        store.nodes.move(NODE, State.QUARANTINE, "Ada", "its chassis is open")
    elif meanwhile == "paused":
        store.pauses.pause(NODE, now() + datetime.timedelta(days=3), "Ada", "its chassis is open")
    elif meanwhile == "held":
        store.leases.acquire(NODE, RunKey("repair", "other"))
    elif meanwhile == "another fault":
        conf |= {"device": "gpu4"}
    before = store.leases.live()
    if meanwhile == "nothing":
        assert repair.claim(key, conf) == repair.claim(key, conf), "a retried task"
        return
    with pytest.raises(AirflowSkipException):
        repair.claim(key, conf)
    assert store.leases.live() == before
    if meanwhile == "out of service again":
        assert repair.claim(RunKey("repair", "by-hand"), conf), "a person wants it"


@pytest.mark.parametrize(("asked", "starts"), [([False], True), ([True], False), ([], False)])
def test_runs_start_only_where_their_dag_is_known_to_begin_them(asked: list[bool], starts: bool) -> None:
    """A DAG that cannot be asked about fails no sweep, and without a run it is not asked."""
    assert repair.unless_paused([], lambda: 1 / 0 > 0) == []
    assert repair.unless_paused([{}], lambda: asked[0]) == [{}] * starts


def test_no_more_repairs_are_started_at_once_than_airflow_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those come first that left service first."""
    repairs_wanted(monkeypatch)
    for name in ("n3", "n2", "n1"):
        store.nodes.add(fleet.new_node(name))
        store.nodes.move(name, State.QUARANTINE, "Ada", "XID 95")
    assert len(repair.wanted()) == 3
    monkeypatch.setattr(dags, "MAPPED_MAX", 2)
    assert [each["conf"]["node"] for each in repair.wanted()] == ["n3", "n2"]


@pytest.mark.parametrize(
    "params",
    [{"soak_minutes": -1}, {"soak_minutes": 0.5}, {"soak_minutes": SOAK_MINUTES_MAX + 1}, {"fault_run": True}],
)
def test_what_a_block_cannot_do_beyond_its_level_is_refused_before_it_begins(params: dict[str, Any]) -> None:
    with pytest.raises(MusterError):
        asked(params)


def test_a_block_has_from_two_to_the_most_members_each_once() -> None:
    store.nodes.add(fleet.new_node(NODE))
    fleet.qualify()
    nodes = [dataclasses.replace(store.nodes.get(NODE), name=f"n{number}") for number in range(MEMBERS_MAX + 1)]
    together(nodes[:2])
    together(nodes[1:])
    for wrong in (nodes, nodes[:1], [*nodes[:2], nodes[0]], []):
        with pytest.raises(MusterError):
            together(wrong)


def test_a_block_is_asked_for_nothing_beyond_its_level_unless_somebody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked({"soak_minutes": None}) == Asked()
    monkeypatch.setenv("MUSTER_SHARED_PATH", "/shared")
    assert asked({"soak_minutes": 30, "fault_run": True}) == Asked(30, True)


def test_a_paused_node_is_left_alone_and_a_decision_about_it_is_carried_out() -> None:
    store.nodes.add(fleet.new_node(NODE))
    serving()
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    store.pauses.pause(NODE, later, "Ada", "a technician is there")
    params = {"node": NODE, "level": "demo", "reason": "x"}
    assert revalidation.pick("now", {"level": "demo"}) == []
    with pytest.raises(AirflowSkipException):
        revalidation.claim(RunKey("node_revalidation", "run"), params)
    with pytest.raises(AirflowFailException):
        qualification.claim(RunKey("node_qualification", "run"), params)
    with pytest.raises(AirflowSkipException):
        arrival.receive(f"{NODE}__PO-1", [], lambda run_id: False)
    assert (store.leases.live(), store.nodes.get(NODE).state) == ([], State.PRODUCTION)
    with claims.leased_for_decision(NODE, RunKey("held_verdict", "run"), "Withdraw", "Ada"):
        assert store.nodes.move(NODE, State.QUARANTINE, "Ada", "believed").state is State.QUARANTINE


def test_a_retest_is_started_in_the_nodes_pool() -> None:
    """By the admission DAG, whose runs have no pool of their own."""
    store.nodes.add(fleet.new_node(NODE, pool="rack-7"))
    fleet.qualify()
    store.questions.put(RunKey("admission", "asked"), NODE, store.questions.newest(NODE))
    store.questions.answer(RunKey("admission", "asked"), answers.RETEST, "Ada", "to be sure")
    assert admission.tests(RunKey("admission", "asked"), "demo") == [], "not before it is carried out"
    admission.carry_out(RunKey("admission", "asked"))
    (started,) = admission.tests(RunKey("admission", "asked"), "demo")
    assert (started["conf"]["node"], started["conf"]["pool"]) == (NODE, "rack-7")


@pytest.mark.parametrize(
    "task",
    [
        lambda: qualification.claim(
            RunKey("node_qualification", "run"), {"node": "none", "level": "demo", "reason": "x"}
        ),
        lambda: revalidation.claim(
            RunKey("node_revalidation", "run"), {"node": "none", "level": "demo", "reason": "x"}
        ),
        lambda: admission.look("none"),
        lambda: held.look("none"),
    ],
    ids=["qualify", "revalidate", "admission", "held"],
)
def test_an_unknown_node_is_one_sentence_in_the_log_without_its_causes(
    task: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Airflow itself logs a traceback of every failed task, each cause included."""
    with pytest.raises(AirflowFailException) as refused:
        task()
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    logged = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert logged == [str(refused.value)]
