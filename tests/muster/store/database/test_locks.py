"""What is decided by a row that is locked, or by the rows of a locked node, is decided by what is there by then."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, event, select
from sqlalchemy.orm import Session

from muster import store
from muster.errors import DatabaseNotReady, IllegalMove
from muster.integration import closing
from muster.model.nodes import NewNode
from muster.model.repairs import Bundle, Fault, Outcome
from muster.model.runs import RunKey
from muster.model.states import State
from muster.reporting import notices
from muster.store.database import access, engine
from muster.store.database.models import NodeRow
from muster.store.database.outgoing import OutboxRow
from muster.store.queues import outbox
from muster_criteria.model import Verdict
from tests.muster import fleet

pytestmark = [pytest.mark.needs_postgresql, pytest.mark.usefixtures("postgresql_db")]

NODE, KEY = "gpu-0001", RunKey("repair", "one")

Meanwhile = Callable[[Callable[[], object]], None]


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Meanwhile:
    """What another transaction does before a node is locked the next time."""
    node_row = access.node_row

    def does(what: Callable[[], object]) -> None:
        def locked(session: Session, name: str, *, lock: bool = False) -> NodeRow:
            if lock:
                monkeypatch.setattr(access, "node_row", node_row)
                what()
            return node_row(session, name, lock=lock)

        monkeypatch.setattr(access, "node_row", locked)

    return does


@pytest.fixture
def locked() -> Iterator[list[str]]:
    """The nodes that are locked, in order."""
    names: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: dict[str, str], *_: object) -> None:
        if "FOR NO KEY UPDATE" in statement:
            names.extend(value for value in parameters.values() if value in (NODE, "gpu-0002"))

    event.listen(Engine, "before_cursor_execute", note)
    yield names
    event.remove(Engine, "before_cursor_execute", note)


def test_a_row_that_is_locked_is_read_again_and_keeps_what_was_changed() -> None:
    store.nodes.add(fleet.new_node(NODE))
    with engine.writing() as session:
        row = access.node_row(session, NODE)
        store.nodes.move(NODE, State.QUARANTINE, "Ada", "it smokes")
        row.rack = "r9"
        assert access.node_row(session, NODE, lock=True).state == State.QUARANTINE
    assert (store.nodes.get(NODE).state, store.nodes.get(NODE).rack) == (State.QUARANTINE, "r9")


def incident() -> int:
    """A fault, with its evidence, of a node that a repair holds."""
    store.nodes.add(fleet.new_node(NODE))
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
    store.leases.acquire(NODE, KEY)
    opened = store.repairs.open_incident(NODE, Fault("gpu_memory", "gpu3"), "XID 95", ("intake",), "standard")
    return store.repairs.keep_bundle(opened.id, Bundle("/archive/bundle", "ab" * 32, 100)).id


def test_no_incident_is_repaired_that_was_closed_meanwhile(meanwhile: Meanwhile) -> None:
    known = incident()
    meanwhile(lambda: store.repairs.close(known, "by hand", "Ada"))
    with pytest.raises(IllegalMove):
        store.repairs.reserve(known, "reboot", KEY)


def test_an_attempt_that_ended_meanwhile_ends_as_it_did(meanwhile: Meanwhile) -> None:
    attempt = store.repairs.reserve(incident(), "reboot", KEY).id
    meanwhile(lambda: store.repairs.settle(attempt, Outcome.PERMANENT, "it hangs"))
    assert store.repairs.settle(attempt, Outcome.SUCCEEDED, "late").outcome is Outcome.PERMANENT


def test_a_run_that_was_closed_meanwhile_counts_once(meanwhile: Meanwhile) -> None:
    store.nodes.add(fleet.new_node(NODE))
    run = fleet.begin(NODE).key
    store.runs.begin_stage(run, "intake")
    meanwhile(lambda: store.runs.finish(run, Verdict.INCONCLUSIVE, "no answer"))
    store.runs.finish(run, Verdict.INCONCLUSIVE, "no answer")
    assert store.nodes.get(NODE).inconclusive == 1


@pytest.mark.parametrize(
    "does",
    [
        lambda first, second: store.nodes.add_all([("", second), ("", first)]),
        lambda first, second: store.adoption.adopt([first.name], "Ada", "serves", enrol=[("", second)]),
    ],
)
def test_several_nodes_are_locked_in_the_order_of_their_names(
    does: Callable[[NewNode, NewNode], object], locked: list[str]
) -> None:
    described = [fleet.new_node(NODE), fleet.new_node("gpu-0002")]
    for each in described:
        store.nodes.add(each)
    locked.clear()
    does(*described)
    assert list(dict.fromkeys(locked)) == [NODE, "gpu-0002"]


def test_a_waiver_of_a_place_in_a_renamed_chassis_locks_its_nodes_in_the_order_of_their_names(
    locked: list[str],
) -> None:
    """As the end of another one about that place, which may come at the same moment."""
    store.nodes.add(fleet.new_node("gpu-0002", serials={"system": "S-1"}))
    lease = fleet.fail("gpu-0002")
    (finding,) = store.reporting.run(lease.key).stages[0].judgement.findings
    for state in (State.TRIAGE, State.RETIRED):
        store.nodes.move("gpu-0002", state, "Ada", "renamed")
    store.nodes.add(fleet.new_node(NODE, host_key=fleet.host_key("gpu-0002"), serials={"system": "S-1"}))
    locked.clear()
    store.waivers.give(finding.id, store.clock.now() + datetime.timedelta(days=9), "Ada", "known")
    assert list(dict.fromkeys(locked)) == [NODE, "gpu-0002"]


def test_of_two_mails_of_one_key_at_once_the_later_replaces_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made = outbox._made

    def late(*args: Any) -> OutboxRow:
        monkeypatch.setattr(outbox, "_made", made)
        store.outbox.add("digest", b"first")
        return made(*args)

    monkeypatch.setattr(outbox, "_made", late)
    assert store.outbox.add("digest", b"second") == "replaced"
    assert [store.outbox.message(each.id) for each in store.outbox.pending()] == [b"second"]


def test_no_line_comes_to_a_list_between_the_look_at_it_and_the_note_that_it_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_MS", 10)
    same, now = outbox._same, store.clock.now()

    def gather(line: str) -> None:
        store.outbox.gather("flood", line, line, lambda lines: " ".join(lines).encode(), now)

    def late(*args: Any) -> bool:
        with engine.hurried(), pytest.raises(DatabaseNotReady):
            gather("two")
        return same(*args)

    gather("one")
    (waiting,) = store.outbox.pending()
    monkeypatch.setattr(outbox, "_same", late)
    store.outbox.sent(waiting.id, b"one")
    assert store.outbox.pending() == []


def test_nothing_is_committed_without_its_mail_that_waits_for_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL commits nothing of a transaction after such an error, and says nothing."""
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_MS", 10)
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.org")
    store.nodes.add(fleet.new_node(NODE))
    notices.notify("smoke", "it smokes", of=False)

    def withdraw() -> None:
        with engine.hurried(), engine.transaction():
            store.nodes.move(NODE, State.QUARANTINE, "Ada", "it smokes")
            notices.notify("smoke", "it smokes", of=False)

    with engine.writing() as another:
        another.execute(select(OutboxRow).with_for_update())
        with pytest.raises(DatabaseNotReady):
            withdraw()
    assert store.nodes.get(NODE).state is State.REGISTERED


def test_no_golden_is_withdrawn_while_one_is_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_MS", 10)
    with engine.writing() as promoting:
        access.take_turns(promoting, "golden")
        with engine.hurried(), pytest.raises(DatabaseNotReady):
            store.goldens.withdraw("a golden", "Ada", "its kernel was wrong")


def test_no_verdict_is_recorded_between_the_look_for_a_fail_and_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "LOCK_TIMEOUT_MS", 10)
    store.nodes.add(fleet.new_node(NODE))
    run, release = fleet.begin(NODE).key, store.leases.release
    store.runs.begin_stage(run, "intake")

    def fails() -> None:
        with engine.hurried(), pytest.raises(DatabaseNotReady):
            fleet.record(run, None, fleet.judgement("intake", Verdict.FAIL, findings=(fleet.finding(),)))

    def late(key: RunKey, reason: str) -> list[str]:
        with ThreadPoolExecutor(1) as another:  # a thread has transactions of its own
            another.submit(fails).result()
        return release(key, reason)

    monkeypatch.setattr(store.leases, "release", late)
    assert closing.release(run, "it was marked") == [NODE]
