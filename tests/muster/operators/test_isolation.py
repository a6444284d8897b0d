"""One odd node, run, mail, report or cluster stops no other, whatever it raises."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster import store
from muster.admission import service
from muster.admission.backend import Idle, Seen
from muster.errors import MusterError, UnknownNode, apart
from muster.integration import closing
from muster.model.nodes import Lease
from muster.model.runs import RunKey
from muster.operators import provisional, upkeep
from muster.operators.testing import claims, leftovers
from muster.reporting import sending

ERRORS: list[type[Exception]] = [
    ValueError, KeyError, TypeError, RuntimeError, AssertionError, OSError, RecursionError, ZeroDivisionError,
    UnicodeError, MusterError, UnknownNode, AttributeError, StopIteration,
]  # fmt: skip
NAMES = ["a", "b", "c", "d"]


class Own(Exception):
    """Of no library that Muster knows."""


raised = st.builds(lambda kind, text: kind(text), st.sampled_from([*ERRORS, Own]), st.text(max_size=20))
places = st.sampled_from(NAMES)
drawn = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def failing(at: str, error: Exception, done: list[str]) -> Callable[..., Any]:
    def act(name: Any, *_args: object, **_kwargs: object) -> Any:
        name = getattr(name, "run_id", getattr(name, "node", name))
        if name == at:
            raise error
        done.append(name)
        return [name]

    return act


@drawn
@given(error=raised, at=places)
def test_a_run_that_cannot_be_released_keeps_no_other_lease(
    monkeypatch: pytest.MonkeyPatch, error: Exception, at: str
) -> None:
    done: list[str] = []
    live = [Lease(name, "dag", name, 1, None) for name in NAMES]  # type: ignore[arg-type]
    monkeypatch.setattr(store.leases, "live", lambda: live)
    monkeypatch.setattr(leftovers, "stop", lambda _key, _until: None)
    monkeypatch.setattr(closing, "release", failing(at, error, done))
    with pytest.raises(MusterError, match=f"dag/{at}"):
        upkeep.sweep_leases(lambda _dag, _runs: 0)
    assert done == [name for name in NAMES if name != at]


@drawn
@given(live=st.sets(st.integers(0, 249)), odd=st.sets(st.integers(0, 249), max_size=3))
def test_airflow_is_asked_about_many_runs_at_once_and_exactly_those_that_are_over_are_released(
    monkeypatch: pytest.MonkeyPatch, live: set[int], odd: set[int]
) -> None:
    names = [f"{number:03d}" for number in range(250)]
    running = {names[number] for number in live}
    unreadable = {names[number] for number in odd}
    released: list[str] = []
    leases = [Lease(name, "dag", name, 1, None) for name in names]  # type: ignore[arg-type]
    monkeypatch.setattr(store.leases, "live", lambda: leases)
    monkeypatch.setattr(leftovers, "stop", lambda _key, _until: None)
    monkeypatch.setattr(closing, "release", lambda key, _why: released.append(key.run_id) or [key.run_id])

    def count(_dag: str, run_ids: Sequence[str]) -> int:
        if unreadable & set(run_ids):
            raise ValueError("no answer")
        return len(running & set(run_ids))

    with contextlib.suppress(MusterError):
        upkeep.sweep_leases(count)
    assert released == [name for name in names if name not in running | unreadable]


def _leased(monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    """So many leases, each by a run of the node's own name; returns the names."""
    names = [f"{number:03d}" for number in range(count)]
    held = [Lease(name, "dag", name, 1, None) for name in names]  # type: ignore[arg-type]
    monkeypatch.setattr(store.leases, "live", lambda: held)
    return names


@pytest.mark.parametrize(("leases", "known", "refused"), [(0, 0, False), (1, 0, False), (2, 0, True), (250, 1, False)])
def test_an_airflow_that_knows_none_of_the_runs_ends_none_of_them(
    monkeypatch: pytest.MonkeyPatch, leases: int, known: int, refused: bool
) -> None:
    """As a second one, or one restored from an old back-up: they may run. One alone may have been deleted."""
    names = _leased(monkeypatch, leases)
    here = set(names[-known:] if known else ())
    with pytest.raises(MusterError) if refused else contextlib.nullcontext():
        upkeep.known_here(lambda _dag, run_ids: len(here & set(run_ids)))


@pytest.mark.parametrize(("leases", "known", "refused"), [(1, 0, True), (2, 0, True), (250, 0, True), (250, 1, False)])
def test_an_airflow_that_does_not_answer_is_not_taken_for_another(
    monkeypatch: pytest.MonkeyPatch, leases: int, known: int, refused: bool
) -> None:
    _leased(monkeypatch, leases)

    def count(_dag: str, run_ids: Sequence[str]) -> int:
        if "000" in run_ids:
            raise RuntimeError("API server error 500")
        return known

    with pytest.raises(MusterError, match=r"000.*500") if refused else contextlib.nullcontext() as error:
        upkeep.known_here(count)
    assert "--unknown-runs" not in str(error)  # that would end tests which are running


def test_a_run_that_a_person_clears_while_jobs_are_stopped_keeps_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    names = _leased(monkeypatch, 3)
    cleared: set[str] = set()
    monkeypatch.setattr(leftovers, "stop", lambda _key, _until: cleared.add(names[1]))
    monkeypatch.setattr(closing, "release", lambda key, _why: [key.run_id])
    freed = upkeep.sweep_leases(lambda _dag, run_ids: len(cleared & set(run_ids)))
    assert freed == [names[0], names[2]]


def test_where_all_runs_are_live_airflow_is_asked_once_for_a_hundred(monkeypatch: pytest.MonkeyPatch) -> None:
    leases = [Lease(f"{number:04d}", "dag", f"{number:04d}", 1, None) for number in range(1000)]  # type: ignore[arg-type]
    monkeypatch.setattr(store.leases, "live", lambda: leases)
    asked: list[int] = []

    def count(_dag: str, run_ids: Sequence[str]) -> int:
        asked.append(len(run_ids))
        return len(run_ids)

    assert upkeep.sweep_leases(count) == []
    assert asked == [100] * 10


@drawn
@given(error=raised, at=places)
def test_a_verdict_that_cannot_be_judged_again_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch, error: Exception, at: str
) -> None:
    done: list[str] = []
    verdicts = {name: [types.SimpleNamespace(dag_id="dag", run_id=name)] for name in NAMES}
    monkeypatch.setattr(store.reevaluations, "provisional", lambda: verdicts)
    monkeypatch.setattr(store.runs, "get", lambda key, node: types.SimpleNamespace(node=node))
    act = failing(at, error, done)
    monkeypatch.setattr(provisional, "_reevaluate_run", lambda run, _mine: act(run) and None)
    with pytest.raises(AirflowFailException, match=at):
        provisional.reevaluate_provisional()
    assert done == [name for name in NAMES if name != at]


@drawn
@given(error=raised, at=places)
def test_a_mail_that_cannot_be_read_keeps_no_other(monkeypatch: pytest.MonkeyPatch, error: Exception, at: str) -> None:
    if isinstance(error, OSError):
        return  # the connection broke: the next mail would find it broken, too
    done: list[str] = []
    failed: list[str] = []
    monkeypatch.setattr(sending, "SmtpHook", lambda **_: contextlib.nullcontext())
    monkeypatch.setattr(store.outbox, "take", lambda _seen: True)
    monkeypatch.setattr(store.outbox, "message", failing(at, error, []))
    monkeypatch.setattr(sending, "_send", lambda *_: None)
    monkeypatch.setattr(store.outbox, "sent", lambda name, _message: done.append(name))
    monkeypatch.setattr(store.outbox, "failed", lambda name, *_args, **_kwargs: failed.append(name))
    mails: Any = [types.SimpleNamespace(id=name, key=name, recipients=()) for name in NAMES]
    assert sending._send_mails(mails) == len(NAMES) - 1
    assert (done, failed) == ([name for name in NAMES if name != at], [at])


@drawn
@given(error=raised, at=places)
def test_a_cluster_that_raises_anything_leaves_the_nodes_of_others_known(
    monkeypatch: pytest.MonkeyPatch, error: Exception, at: str
) -> None:
    known: Any = {f"n-{name}": types.SimpleNamespace(cluster=name, name=f"n-{name}") for name in NAMES}
    monkeypatch.setattr(store.schedulers, "places_of", lambda _nodes: known)
    act = failing(at, error, [])
    monkeypatch.setattr(
        service, "ask", lambda cluster, names, jobs: act(cluster) and dict.fromkeys(names, Seen(open=True))
    )
    unanswered: dict[str, Idle] = {}
    seen = service.look([f"n-{name}" for name in NAMES], unanswered)
    assert set(seen) == {f"n-{name}" for name in NAMES if name != at}
    assert [name for name, idle in unanswered.items() if not idle.idle] == [f"n-{at}"]


@drawn
@given(error=raised)
def test_a_claim_that_fails_by_anything_gives_the_nodes_back_and_says_why(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    released: list[str] = []
    noted: list[str] = []
    monkeypatch.setattr(store.leases, "acquire_all", lambda names, key: list(names))
    monkeypatch.setattr(store.leases, "release", lambda key, why: released.append(why))
    monkeypatch.setattr(store.signs, "note_refusal", lambda node, why, busy: noted.append(node))

    @contextlib.contextmanager
    def claim() -> Iterator[None]:
        with claims.noting_refusal(NAMES), claims.leased(NAMES, RunKey("dag", "run")):
            yield

    with pytest.raises((type(error), RuntimeError)), claim():  # StopIteration leaves a generator as RuntimeError
        raise error
    assert (len(released), noted) == (1, NAMES)


@drawn
@given(error=raised)
def test_what_is_apart_is_told_in_one_line(error: Exception) -> None:
    failed: list[str] = []
    with apart("n1", failed):
        raise error
    (told,) = failed
    assert told.startswith("n1: ")
    assert "\n" not in told
