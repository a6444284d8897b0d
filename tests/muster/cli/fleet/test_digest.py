"""``muster digest``: what a section counts, row by row."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import store
from tests.muster import fleet

Muster = Callable[..., "tuple[int, str, str]"]


def test_the_command_of_a_section_lists_exactly_what_it_counts(muster: Muster, sqlite_db: str) -> None:
    for name, team in (("a", "x"), ("b", "y"), ("c", "x")):
        store.nodes.add(fleet.new_node(name, labels={"team": team}))
        fleet.fail(name)
    out = muster("digest", "--label", "team=x")[1]
    (command,) = [line.partition("muster ")[2].split() for line in out.splitlines() if "--rows Failed" in line]
    assert [row["node"] for row in json.loads(muster(*command, "--json")[1])] == ["a", "c"]
    assert muster(*command)[1].splitlines()[0].startswith("node\t")


@pytest.mark.parametrize("title", ["Weather", "Lost node-hours", "Spares", "Jobs"])
def test_a_section_that_lists_nothing_is_refused_with_those_that_do(muster: Muster, sqlite_db: str, title: str) -> None:
    status, out, err = muster("digest", "--rows", title, "--json")
    assert (status, json.loads(out)["kind"]) == (1, "MusterError")
    assert "Failed" in err, "the titles that there are"


def test_the_rows_of_a_section_that_has_nothing_to_show_are_none(muster: Muster, sqlite_db: str) -> None:
    status, out, _ = muster("digest", "--rows", "repeat offenders", "--json")
    assert (status, json.loads(out)) == (0, [])
    assert muster("digest", "--rows", "Repeat offenders")[0] == 0


def test_the_html_goes_to_standard_output_and_the_services_user_writes_no_file(
    muster: Muster, sqlite_db: str, tmp_path: Path
) -> None:
    """By the documented command that user is not the one who called it, and may write more."""
    file = tmp_path / "kept"
    file.write_text("kept")
    assert muster("digest", "--html", str(file))[0] != 0
    assert file.read_text() == "kept"
    status, out, _ = muster("digest", "--html")
    assert (status, out[0]) == (0, "<")


@pytest.mark.parametrize("more", [("--rows", "Failed"), ("--json",)])
def test_the_html_is_of_the_whole_digest_and_no_json(muster: Muster, sqlite_db: str, more: tuple[str, ...]) -> None:
    assert muster("digest", "--html", *more)[0] == 1


def test_a_digest_of_no_node_or_of_the_future_is_refused(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node("a", labels={"team": "x"}))
    tomorrow = store.clock.now() + datetime.timedelta(days=1)
    accepted = [("--label", "team=x"), ("--until", f"{store.clock.now():%Y-%m-%dT%H:%M:%S}")]
    refused = [("--label", "team=typo"), ("--label", "team=x", "--simulated"), ("--until", f"{tomorrow:%Y-%m-%d}")]
    assert [muster("digest", *each)[0] for each in (*accepted, *refused)] == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(("team", "later"), [("x", True), ("typo", False)])
def test_a_digest_that_ends_before_its_nodes_were_enrolled_says_so(
    muster: Muster, sqlite_db: str, team: str, later: bool
) -> None:
    store.nodes.add(fleet.new_node("a", labels={"team": "x"}))
    status, _, err = muster("digest", "--label", f"team={team}", "--until", "2020-01-01")
    assert (status, "2020-01-01" in err) == (1, later)


@pytest.mark.parametrize("written", ["2026-05-04T10:00:00", "2026-05-04T15:00:00+05:00"])
def test_a_moment_of_an_option_keeps_its_zone_and_is_utc_without_one(
    muster: Muster, sqlite_db: str, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    seen: list[datetime.datetime] = []
    fleet_of, recorded = store.ledger.fleet, store.health.recorded
    monkeypatch.setattr(store.ledger, "fleet", lambda *of, **how: seen.append(of[1]) or fleet_of(*of, **how))
    monkeypatch.setattr(store.health, "recorded", lambda *of: seen.append(of[0]) or recorded(*of))
    assert muster("digest", "--until", written)[0] == 0
    assert muster("health", "compare", "health", "--since", written)[0] == 0
    assert [f"{each:%H:%M %Z}" for each in seen] == ["10:00 UTC"] * 2
