"""What Muster changes about a node as its scheduler shows it, without a scheduler."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from muster.admission.backend import Seen
from muster.admission.differences import Do, difference_of, next_change
from muster.model.schedulers import ADMITTED, WITHDRAWN, Place
from muster.model.states import State

NOW = datetime.datetime(2026, 5, 4, 12, tzinfo=datetime.UTC)
SERVES = Place("n1", "alpha", "there", State.PRODUCTION, ADMITTED, "passed", NOW, ADMITTED, 0, "", "", "", "")
OUT = dataclasses.replace(
    SERVES, state=State.QUARANTINE, wanted=WITHDRAWN, done=WITHDRAWN, why="noise", done_why="noise"
)
HELD = dataclasses.replace(SERVES, done="", held_since=NOW)
OPEN, OURS, THEIRS = Seen(open=True), Seen(open=False, ours=True), Seen(open=False, foreign="alice: bad fan")
BARE, DRAINED = Seen(open=True, marked=False), Seen(open=False, ours=True, drain="noise")


@pytest.mark.parametrize(
    ("place", "seen", "lost", "do"),
    [
        (SERVES, None, "", Do.NOTHING),
        (SERVES, OPEN, "", Do.NOTHING),
        (SERVES, THEIRS, "", Do.NOTHING),
        (SERVES, BARE, "", Do.MARK_AGAIN),
        (SERVES, BARE, "perhaps another machine", Do.NOTHING),
        (dataclasses.replace(SERVES, done=""), BARE, "", Do.NOTHING),
        (dataclasses.replace(SERVES, lifted="noise"), DRAINED, "", Do.MARK_AGAIN),
        (dataclasses.replace(SERVES, lifted="before"), DRAINED, "", Do.NOTHING),
        (HELD, OPEN, "", Do.OPEN),
        (HELD, BARE, "", Do.OPEN),
        (HELD, BARE, "perhaps another machine", Do.NOTHING),
        (HELD, OURS, "", Do.NOTHING),
        (OUT, OURS, "", Do.NOTHING),
        (OUT, OPEN, "", Do.CLOSE_AGAIN),
        (OUT, dataclasses.replace(OPEN, open=False, apart="down"), "", Do.CLOSE_AGAIN),
        (OUT, THEIRS, "", Do.NOTHING),
        (OUT, dataclasses.replace(THEIRS, both=True), "", Do.CLOSE_AGAIN),
        (dataclasses.replace(OUT, done=ADMITTED), OPEN, "", Do.NOTHING),
        (dataclasses.replace(OUT, state=State.REVALIDATION), OPEN, "", Do.CLOSE_AGAIN),
        (dataclasses.replace(OUT, done_why="before"), OURS, "", Do.NEW_REASON),
        (dataclasses.replace(OUT, done_why="before", held_since=HELD.held_since), OURS, "", Do.NOTHING),
        (dataclasses.replace(OUT, done_why="before"), THEIRS, "", Do.NOTHING),
        (dataclasses.replace(SERVES, wanted="", done=""), OPEN, "", Do.NOTHING),
        (dataclasses.replace(SERVES, wanted="", done=""), BARE, "", Do.NOTHING),
    ],
)
def test_what_is_changed_follows_from_the_records_and_what_the_scheduler_shows(
    place: Place, seen: Seen | None, lost: str, do: Do
) -> None:
    assert next_change(place, seen, lost) is do


@pytest.mark.parametrize(
    ("place", "seen", "differs"),
    [
        (SERVES, None, True),
        (SERVES, OPEN, False),
        (SERVES, THEIRS, True),
        (SERVES, dataclasses.replace(THEIRS, apart="down"), False),
        (dataclasses.replace(SERVES, done=""), THEIRS, False),
        (dataclasses.replace(SERVES, wanted="", done=""), OURS, True),
        (dataclasses.replace(SERVES, wanted="", done=""), OPEN, False),
        (OUT, OPEN, True),
        (OUT, OURS, False),
    ],
)
def test_a_difference_is_what_waits_for_no_change(place: Place, seen: Seen | None, differs: bool) -> None:
    assert bool(difference_of(place, seen)) is differs
