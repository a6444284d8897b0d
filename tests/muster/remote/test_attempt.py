"""What an attempt means, as tables: which job it belongs to, what its end says of the node, what comes next."""

from __future__ import annotations

import pytest

from muster.records import JobRecord
from muster.remote import attempt
from muster.remote.attempt import Kind, Next
from muster.remote.jobs import Look, State
from muster_criteria.model import Verdict


def job(generation: str, state: str) -> JobRecord:
    return JobRecord("d", "r", "burn_in", generation, state, "")


@pytest.mark.parametrize(
    ("max_tries", "latest", "expected"),
    [
        (2, None, "2.0"),
        (2, job("2.0", attempt.SUBMITTED), "2.0"),  # the worker died before the job was started
        (2, job("2.0", attempt.RUNNING), "2.0"),  # the worker died meanwhile: the node must not burn twice
        (2, job("2.0", attempt.FINAL), "2.0"),  # the worker died after the verdict was recorded
        (2, job("2.0", attempt.INCONCLUSIVE), "2.1"),  # a retry after an INCONCLUSIVE measures anew
        (2, job("2.1", attempt.LOST), "2.2"),
        (2, job("2.0", attempt.STOPPED), "2.1"),
        (2, job("2.1", attempt.REPEAT), "2.1r1"),  # its noisy tests alone, once more
        (2, job("2.1r9", attempt.REPEAT), "2.1r10"),
        (2, job("2.1r9", attempt.RUNNING), "2.1r9"),
        (2, job("2.1r9", attempt.INCONCLUSIVE), "2.2"),
        (5, job("2.1r9", attempt.REPEAT), "5.0"),
        (5, job("2.1", attempt.RUNNING), "5.0"),  # a user's Clear
        (5, job("2.0", attempt.FINAL), "5.0"),
    ],
)
def test_generation(max_tries: int, latest: JobRecord | None, expected: str) -> None:
    assert attempt.generation(max_tries, latest) == expected


def look(state: State, exit_code: int | None = None) -> Look:
    return Look("/h", "/h/.muster", "boot", "ok", state, exit_code)


@pytest.mark.parametrize(
    ("seen", "hint", "kind"),
    [
        (look(State.DONE, 0), Kind.DONE, Kind.DONE),
        (look(State.DONE, 0), Kind.LOST, Kind.DONE),  # it came back, and had gone on working
        (look(State.DONE, 0), Kind.REBOOTED, Kind.DONE),
        (look(State.REBOOTED), Kind.DONE, Kind.REBOOTED),
        (look(State.REBOOTED), Kind.LOST, Kind.REBOOTED),
        (look(State.GONE), Kind.VANISHED, Kind.VANISHED),
        (look(State.ABSENT), Kind.DONE, Kind.VANISHED),
        (look(State.RUNNING), Kind.OVERDUE, Kind.OVERDUE),
        (look(State.RUNNING), Kind.LOST, None),  # it is back and still at work: wait on
        (look(State.RUNNING), Kind.DONE, None),
    ],
)
def test_a_fresh_look_decides_how_a_job_ended(seen: Look, hint: Kind, kind: Kind | None) -> None:
    end = attempt.ended(seen, hint)
    assert (end.kind if end else None) == kind


@pytest.mark.parametrize(
    ("kind", "loads", "losses", "neighbours", "established"),
    [
        (Kind.REBOOTED, True, 0, "", "uncommanded_reboot"),
        (Kind.REBOOTED, False, 0, "", None),
        (Kind.LOST, True, 1, "n2", None),  # once may be the network
        (Kind.LOST, True, 2, "n2", "lost_under_load_twice"),
        (Kind.LOST, True, 2, "", None),  # nobody else answered: it may be the network
        (Kind.LOST, False, 2, "n2", None),
        (Kind.VANISHED, True, 2, "n2", None),
        (Kind.REFUSED, True, 2, "n2", None),
        (Kind.DONE, True, 2, "n2", None),
    ],
)
def test_only_what_was_positively_established_is_evidence(
    kind: Kind, loads: bool, losses: int, neighbours: str, established: str | None
) -> None:
    found = attempt.evidence(kind, stage="burn_in", loads=loads, losses=losses, neighbours=neighbours)
    assert [each.kind for each in found] == ([established] if established else [])


@pytest.mark.parametrize(
    ("verdict", "end", "last", "expected"),
    [
        (Verdict.FAIL, "completed", False, Next.FAIL),
        (Verdict.INCONCLUSIVE, "completed", False, Next.RETRY),
        (Verdict.INCONCLUSIVE, "busy", False, Next.RETRY),
        (Verdict.INCONCLUSIVE, "fenced", False, Next.FAIL),
        (Verdict.INCONCLUSIVE, "completed", True, Next.FAIL),
        (Verdict.PASS, "completed", False, Next.GO_ON),
        (Verdict.WARN, "completed", True, Next.GO_ON),
        (Verdict.PROVISIONAL, "completed", True, Next.GO_ON),
    ],
)
def test_whats_next(verdict: Verdict, end: str, last: bool, expected: Next) -> None:
    assert attempt.whats_next(verdict, end, last) is expected


def test_a_repeat_goes_before_everything_but_a_fail() -> None:
    assert attempt.whats_next(Verdict.FAIL, "completed", False, repeat=True) is Next.FAIL
    assert attempt.whats_next(Verdict.INCONCLUSIVE, "completed", True, repeat=True) is Next.REPEAT
    assert attempt.state_after(Kind.DONE, Verdict.INCONCLUSIVE, repeat=True) == attempt.REPEAT


@pytest.mark.parametrize(
    ("generation", "of"), [("2.0", None), ("2.0r1", "2.0"), ("2.0r2", "2.0r1"), ("12.10r10", "12.10r9")]
)
def test_a_repeat_is_of_the_job_before_it(generation: str, of: str | None) -> None:
    assert attempt.repeated(generation) == of


def test_only_a_blocking_fail_or_a_lasting_inconclusive_stops_what_follows() -> None:
    assert attempt.stopped_by([]) == ""
    assert attempt.stopped_by([("intake", Verdict.WARN, True), ("burn_in", Verdict.FAIL, False)]) == ""
    assert "burn_in failed" in attempt.stopped_by([("intake", Verdict.PASS, True), ("burn_in", Verdict.FAIL, True)])
    assert "intake has no verdict" in attempt.stopped_by([("intake", None, False)])
    assert "intake stayed inconclusive" in attempt.stopped_by([("intake", Verdict.INCONCLUSIVE, False)])


def test_a_result_of_another_job_is_not_taken() -> None:
    expected = attempt.plan(
        key="k", node="n", stage="burn_in", level="demo", fence=3, deadline_s=9, calls=(), force_reason=None
    )
    assert attempt.checked_result(None, expected) == (None, "")
    result, why = attempt.checked_result(b"{}", expected)
    assert result is None
    assert why


def test_the_seed_is_fresh_for_each_job_and_the_same_for_the_same() -> None:
    assert attempt.seed("a") == attempt.seed("a") != attempt.seed("b")


def test_states_of_a_judged_job() -> None:
    assert attempt.state_after(Kind.DONE, Verdict.PASS) == attempt.FINAL
    assert attempt.state_after(Kind.REBOOTED, Verdict.FAIL) == attempt.FINAL
    assert attempt.state_after(Kind.DONE, Verdict.INCONCLUSIVE) == attempt.INCONCLUSIVE
    assert attempt.state_after(Kind.LOST, Verdict.FAIL) == attempt.LOST
