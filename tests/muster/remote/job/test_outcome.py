"""What the end of a job means, as tables."""

from __future__ import annotations

import dataclasses
import re

import pytest

from muster.model.runs import Job
from muster.remote.job import outcome
from muster.remote.job.attempt_key import AttemptKey
from muster.remote.job.jobs import Look, State
from muster.remote.job.outcome import Kind, Next
from muster_criteria.model import Verdict


def job(generation: str, state: str) -> Job:
    return Job("d", "r", "burn_in", generation, state, "")


@pytest.mark.parametrize(
    ("max_tries", "latest", "expected"),
    [
        (2, None, "2.0"),
        (2, job("2.0", outcome.SUBMITTED), "2.0"),  # the worker died before the job was started
        (2, job("2.0", outcome.RUNNING), "2.0"),  # the worker died meanwhile: the node must not burn twice
        (2, job("2.0", outcome.FINAL), "2.0"),  # the worker died after the verdict was recorded
        (2, job("2.0", outcome.INCONCLUSIVE), "2.1"),  # a retry after an INCONCLUSIVE measures again
        (2, job("2.1", outcome.LOST), "2.2"),
        (2, job("2.0", outcome.STOPPED), "2.1"),
        (2, job("2.1", outcome.REPEAT), "2.1r1"),  # its noisy tests alone, once more
        (2, job("2.1r9", outcome.REPEAT), "2.1r10"),
        (2, job("2.1r9", outcome.RUNNING), "2.1r9"),
        (2, job("2.1r9", outcome.INCONCLUSIVE), "2.2"),
        (5, job("2.1r9", outcome.REPEAT), "5.0"),
        (5, job("2.1", outcome.RUNNING), "5.0"),  # a user's Clear
        (5, job("2.0", outcome.FINAL), "5.0"),
        (2, job("2.0", outcome.UNSEEN), "2.0"),  # it was the last attempt
    ],
)
def test_which_attempt_comes_next(max_tries: int, latest: Job | None, expected: str) -> None:
    assert str(outcome.next_attempt(max_tries, latest)) == expected


def look(state: State, exit_code: int | None = None) -> Look:
    return Look("/h/.muster", "boot", "ok", state, exit_code)


@pytest.mark.parametrize(
    ("seen", "overdue", "kind"),
    [
        (look(State.DONE, 0), False, Kind.DONE),
        (look(State.DONE, 0), True, Kind.DONE),  # it came back, and had gone on working
        (look(State.REBOOTED), False, Kind.REBOOTED),
        (look(State.REBOOTED), True, Kind.REBOOTED),
        (look(State.GONE), True, Kind.VANISHED),
        (look(State.ABSENT), False, Kind.VANISHED),
        (look(State.RUNNING), True, Kind.OVERDUE),
        (look(State.RUNNING), False, None),  # it is back and still at work: wait on
    ],
)
def test_a_fresh_look_decides_how_a_job_ended(seen: Look, overdue: bool, kind: Kind | None) -> None:
    end = outcome.ended(seen, overdue=overdue)
    assert (end.kind if end else None) == kind


@pytest.mark.parametrize(("exit_code", "name"), [(137, "SIGKILL"), (143, "SIGTERM"), (1, ""), (128, ""), (255, "")])
def test_a_signal_that_ended_the_node_side_is_named(exit_code: int, name: str) -> None:
    end = outcome.ended(dataclasses.replace(look(State.DONE), exit_code=exit_code))
    assert end is not None
    assert re.findall("SIG[A-Z]+", end.sentence) == ([name] if name else [])


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("before", ["", "boot", "another"])
def test_a_node_that_rebooted_and_forgot_its_job_has_rebooted(state: State, before: str) -> None:
    end = outcome.ended(look(state), boot_id=before)
    forgot = before == "another" and state in (State.ABSENT, State.GONE)
    assert (end is not None and end.kind is Kind.REBOOTED) is (forgot or state is State.REBOOTED)
    unknown = dataclasses.replace(look(State.ABSENT), boot_id="")
    assert outcome.ended(unknown, boot_id=before) == outcome.ended(look(State.ABSENT))


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("before", ["", "boot", "another"])
def test_an_orderly_reboot_says_nothing_of_the_node(state: State, before: str) -> None:
    seen = dataclasses.replace(look(state), orderly=True)
    end = outcome.ended(seen, boot_id=before)
    rebooted = state is State.REBOOTED or (before == "another" and state is not State.RUNNING)
    if rebooted:
        assert end is not None
        assert end.kind is Kind.EXPLAINED
    else:
        assert end == outcome.ended(look(state), boot_id=before)


@pytest.mark.parametrize(
    ("kind", "loads", "losses", "neighbours", "established"),
    [
        (Kind.REBOOTED, True, 0, "", "uncommanded_reboot"),
        (Kind.REBOOTED, False, 0, "", None),
        (Kind.LOST, True, 1, "n2", None),  # once may be the network
        (Kind.LOST, True, 2, "n2", "lost_under_load_twice"),
        (Kind.LOST, True, 2, "", None),  # no neighbour answered: it may be the network
        (Kind.LOST, False, 2, "n2", None),
        (Kind.VANISHED, True, 2, "n2", None),
        (Kind.REFUSED, True, 2, "n2", None),
        (Kind.DONE, True, 2, "n2", None),
    ],
)
def test_only_what_was_positively_established_is_evidence(
    kind: Kind, loads: bool, losses: int, neighbours: str, established: str | None
) -> None:
    found = outcome.evidence(kind, job="j", stage="burn_in", loads=loads, losses=losses, neighbours=neighbours)
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
    assert outcome.whats_next(verdict, end, last) is expected


def test_a_repeat_goes_before_everything_but_a_fail() -> None:
    assert outcome.whats_next(Verdict.FAIL, "completed", False, repeat=True) is Next.FAIL
    assert outcome.whats_next(Verdict.INCONCLUSIVE, "completed", True, repeat=True) is Next.REPEAT
    assert outcome.state_after(Kind.DONE, Verdict.INCONCLUSIVE, repeat=True) == outcome.REPEAT


@pytest.mark.parametrize(("text", "of"), [("2.0", None), ("2.0r1", "2.0"), ("2.0r2", "2.0r1"), ("12.10r10", "12.10r9")])
def test_a_repeat_is_of_the_attempt_before_it(text: str, of: str | None) -> None:
    key = AttemptKey.parse(text)
    assert str(key) == text
    assert key.repeats == (AttemptKey.parse(of) if of else None)


@pytest.mark.parametrize("text", ["", "2", "2.", "2.1r", "2.1x1", "-1.0", "2.0\n"])
def test_other_text_is_no_attempt_key(text: str) -> None:
    with pytest.raises(ValueError):
        AttemptKey.parse(text)


def test_attempts_name_their_jobs_apart() -> None:
    assert AttemptKey(2).job_key("d", "r", "t") == AttemptKey(2).job_key("d", "r", "t")
    others = {AttemptKey.parse(text).job_key("d", "r", "t") for text in ("2.0", "2.1", "2.1r1", "5.0")}
    assert len(others | {AttemptKey(2).job_key("d", "r", "u")}) == 5
    assert AttemptKey(2).job_key("a", "bc", "t") != AttemptKey(2).job_key("ab", "c", "t")


def test_only_a_blocking_fail_or_a_lasting_inconclusive_stops_what_follows() -> None:
    assert outcome.stopped_by([]) == ""
    assert outcome.stopped_by([("intake", Verdict.WARN, True), ("burn_in", Verdict.FAIL, False)]) == ""
    assert "burn_in failed" in outcome.stopped_by([("intake", Verdict.PASS, True), ("burn_in", Verdict.FAIL, True)])
    assert "intake has no verdict" in outcome.stopped_by([("intake", None, False)])
    assert "intake stayed inconclusive" in outcome.stopped_by([("intake", Verdict.INCONCLUSIVE, False)])


def test_states_of_a_judged_job() -> None:
    assert outcome.state_after(Kind.DONE, Verdict.PASS) == outcome.FINAL
    assert outcome.state_after(Kind.REBOOTED, Verdict.FAIL) == outcome.FINAL
    assert outcome.state_after(Kind.REFUSED, Verdict.INCONCLUSIVE) == outcome.UNSEEN == outcome.final(Kind.REFUSED)
    assert outcome.state_after(Kind.LOST, Verdict.FAIL) == outcome.LOST == outcome.final(Kind.LOST)
    assert outcome.final(Kind.DONE) == outcome.FINAL
    assert outcome.state_after(Kind.DONE, Verdict.INCONCLUSIVE) == outcome.INCONCLUSIVE
    assert outcome.state_after(Kind.LOST, Verdict.FAIL) == outcome.LOST
