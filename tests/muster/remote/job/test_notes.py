"""The notes of a result: what was left out on the way, and what ended it."""

from __future__ import annotations

import json

import pytest

from muster.remote.job.outcome import Ended, Kind
from tests.muster.remote.job.test_attempt import Bench, bench, checked

__all__ = ["bench"]
pytestmark = [pytest.mark.needs_sshd, pytest.mark.usefixtures("sqlite_db")]


def test_what_was_left_out_on_the_way_is_a_note_of_the_result(bench: Bench) -> None:
    attempt = bench.until_done(bench.begin()[0])
    raw, left_out = (bench.folder(attempt) / "result.json").read_bytes(), "telemetry was left out: it is too large"
    result, _ = checked(attempt, raw, left_out)
    assert result is not None
    assert result.notes[-1] == left_out


@pytest.mark.parametrize("end", ["completed", "terminated"])
@pytest.mark.parametrize("kind", [Kind.DONE, Kind.EXPLAINED])
def test_a_result_that_an_orderly_reboot_cut_short_says_so_first(bench: Bench, end: str, kind: Kind) -> None:
    attempt = bench.until_done(bench.begin()[0])
    raw = json.loads((bench.folder(attempt) / "result.json").read_text()) | {"end": end, "notes": ["as it ended"]}
    result, _ = checked(attempt, json.dumps(raw).encode(), end=Ended(kind, "rebooted"))
    assert result is not None
    cut = (kind, end) == (Kind.EXPLAINED, "terminated")
    assert result.notes == [*(["rebooted"] if cut else []), "as it ended"]
