"""A restart or a loss that others may have caused is no evidence about the node, for every task that tests nodes."""

from __future__ import annotations

import contextlib
import datetime
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster import store
from muster.admission import service, silence
from muster.admission.backend import Seen
from muster.model.schedulers import ABSENT
from muster.operators.testing.member import MusterMemberOperator
from muster.operators.testing.pair import MusterPairOperator
from muster.operators.testing.remote_job import RemoteJobOperator
from muster.operators.testing.stage import MusterStageOperator
from muster.remote.job import attempt as remote
from muster.remote.job import jobs, outcome
from muster.remote.job.outcome import Ended, Kind
from tests.muster import fleet
from tests.support import node_list

NODE = "gpu-0001"
START = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)
BEFORE, LATER = START - datetime.timedelta(hours=1), START + datetime.timedelta(hours=1)


@pytest.fixture(autouse=True)
def there(sqlite_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "list"
    path.write_text(f"{NODE}\n")
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": node_list.chosen(path)}))
    store.nodes.add(fleet.new_node(NODE))
    store.schedulers.assign(NODE, "alpha", NODE, "Ada", "rack 1")
    return path


def shown(monkeypatch: pytest.MonkeyPatch, **seen: Any) -> None:
    monkeypatch.setattr(node_list.NodeList, "look", lambda _, names: dict.fromkeys(names, Seen(open=False, **seen)))


@pytest.mark.parametrize(
    ("seen", "says_nothing"),
    [
        ({"apart": "rebooting", "worked_on": "rebooting"}, True),
        # As slurmctld closes a node that comes back from a crash without a GPU, and people one that crashed.
        ({"foreign": "drained by slurm: gres/gpu count reported lower than configured", "foreign_since": LATER}, False),
        ({"foreign": "drained by ada: muster:verify", "foreign_since": BEFORE}, False),
        ({"ours": True, "apart": "down"}, False),  # as a node is that crashed
        ({"foreign": "set to FAIL by ada: GPU fell off the bus", "apart": "failing", "kept": "failing"}, False),
        ({"ours": True}, False),
    ],
)
def test_others_explain_it_if_they_are_at_work_on_the_node(
    monkeypatch: pytest.MonkeyPatch, seen: dict[str, Any], says_nothing: bool
) -> None:
    shown(monkeypatch, **seen)
    assert bool(silence.explained(NODE, START)) is says_nothing


def test_a_scheduler_that_is_silent_too_explains_it(there: Path) -> None:
    assert not silence.explained(NODE, START)
    there.unlink()
    assert silence.explained(NODE, START)


@pytest.mark.parametrize("looks", [0, 1])
def test_a_node_that_its_scheduler_forgot_meanwhile_is_removed_there(there: Path, looks: int) -> None:
    service.reconcile()
    began = store.clock.now()
    there.write_text("")
    for _ in range(looks):
        service.reconcile()
    assert silence.explained(NODE, began)


def test_a_node_that_its_scheduler_never_knew_may_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are tested before they join their cluster."""
    monkeypatch.setattr(node_list.NodeList, "look", lambda *_: {})
    began = store.clock.now()
    service.reconcile()
    place = store.schedulers.place(NODE)
    assert place is not None
    assert place.shown == ABSENT
    assert not silence.explained(NODE, began)


@pytest.mark.parametrize(("worked_on", "says_nothing"), [("rebooting", True), ("", False)])
def test_what_the_scheduler_has_forgotten_stands_in_the_nodes_history(
    monkeypatch: pytest.MonkeyPatch, worked_on: str, says_nothing: bool
) -> None:
    began = store.clock.now()
    with monkeypatch.context() as patched:
        shown(patched, ours=True, apart=worked_on or "not responding", worked_on=worked_on)
        service.reconcile()
    assert bool(silence.explained(NODE, began)) is says_nothing
    assert not silence.explained(NODE, store.clock.now())


@pytest.mark.parametrize("kind", [Kind.REBOOTED, Kind.LOST, Kind.VANISHED])
@pytest.mark.parametrize(
    "operator",
    [
        MusterStageOperator(task_id="burn_in", stage="burn_in"),
        MusterMemberOperator(task_id="train", member=NODE),
        MusterPairOperator(task_id="pairs", member=NODE),
    ],
    ids=lambda each: each.task_id,
)
@pytest.mark.parametrize("worked_on", ["", "rebooting"])
def test_each_task_judges_an_end_that_is_explained(
    monkeypatch: pytest.MonkeyPatch, operator: RemoteJobOperator, kind: Kind, worked_on: str
) -> None:
    shown(monkeypatch, apart=worked_on, worked_on=worked_on)
    attempt: Any = SimpleNamespace(node=store.nodes.get(NODE), job=SimpleNamespace(started_at=START))
    found = remote.Finished(Ended(kind, "as the node shows it"), jobs.Collected(None, None))
    recorded: list[Ended] = []
    monkeypatch.setattr(remote, "collected", lambda *_, **__: contextlib.nullcontext(found))
    for name in ("_is_last", "_finish"):
        monkeypatch.setattr(type(operator), name, lambda *_: False)

    def record(_: object, __: object, done: remote.Finished) -> tuple[Any, str]:
        recorded.append(done.end)
        return object(), ""  # a judgement of a stage or a member, or a pair's side

    monkeypatch.setattr(type(operator), "_record", record)
    operator._settle({}, attempt, Kind.DONE)  # type: ignore[typeddict-item]
    excused = worked_on and kind is not Kind.VANISHED
    assert [each.kind for each in recorded] == [Kind.EXPLAINED if excused else kind]
    assert (recorded[0].sentence == "as the node shows it") is not excused


def test_an_end_that_is_explained_is_no_evidence() -> None:
    assert outcome.evidence(Kind.EXPLAINED, job="j", stage="burn_in", loads=True, losses=2, neighbours="n2") == ()
    assert outcome.final(Kind.EXPLAINED) != outcome.LOST, "no second loss makes a failure of it"
