"""What a node's history shows of its certificates."""

from __future__ import annotations

import datetime

import pytest

from muster.model.certificates import Certificate
from muster.model.events import Event
from muster.model.health import ACTOR
from muster.model.schedulers import UsersJob
from muster.model.states import State
from muster.web.timeline import timeline

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def certificate(number: int, issued: float) -> Certificate:
    """A certificate of 30 days, issued so many days ago."""
    at = NOW - issued * DAY
    return Certificate(f"c{number}", "n1", at, at + 30 * DAY, "PASS", at, "", "")


@pytest.mark.parametrize(
    ("issued", "expired"), [((60, 50, 20), []), ((90, 50, 20), ["c0"]), ((60, 50), ["c1"]), ((30,), ["c0"])]
)
def test_an_expiry_is_shown_only_if_it_left_the_node_without_a_certificate(
    issued: tuple[float, ...], expired: list[str]
) -> None:
    certificates = [certificate(number, days) for number, days in enumerate(issued)]
    shown = timeline([], [], certificates[::-1], [], [], [], NOW, 100)
    assert [entry.what.split()[0] for entry in shown if entry.what.endswith("expired")] == expired


def test_an_observation_between_tests_is_no_remark() -> None:
    events = [
        Event("n1", NOW, State.PRODUCTION, state, ACTOR, "observed: gpu_lost", {})
        for state in (State.PRODUCTION, State.QUARANTINE)
    ]
    assert {entry.kind for entry in timeline(events, [], [], [], [], [], NOW, 100)} == {"observation", "state"}


def test_a_users_job_stands_where_it_ended_or_where_it_began_while_it_runs() -> None:
    jobs = [UsersJob("n1", "job 1 of alice", NOW - 3 * DAY, NOW - DAY), UsersJob("n1", "job 2 of bob", NOW - 2 * DAY)]
    shown = timeline([], [], [], [], [], jobs, NOW, 100)
    assert [(entry.kind, entry.at) for entry in shown] == [("job", NOW - DAY), ("job", NOW - 2 * DAY)]
    assert "2026-05-29 00:00 UTC" in shown[0].what
