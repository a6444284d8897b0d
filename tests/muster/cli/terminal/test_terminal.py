"""What reaches a terminal, a pipe or a file: one line for a cell, one sentence for an error."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from muster import store
from muster.cli.terminal import show
from muster_criteria.words import duration
from tests.muster import fleet
from tests.muster.cli.conftest import refusal

Muster = Callable[..., "tuple[int, str, str]"]
COMMAND = [sys.executable, "-c", "from muster.cli import main; main()"]


def test_a_reason_with_a_line_break_or_a_tab_is_one_cell_of_one_row(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node("a"))
    assert muster("node", "move", "a", "quarantine", "--reason", "one\ntwo\tthree", "--as", "Ada")[0] == 0
    assert store.nodes.events("a")[-1].reason == "one two three"


def test_how_long_ago_something_was_is_by_the_clock_that_stamped_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    monkeypatch.setattr(store.clock, "now", lambda: now)
    assert show.age(now - datetime.timedelta(hours=2)) == duration(7200)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_streams_hold_text_back_as_before(unbuffered: str) -> None:
    code = (
        "import os, sys; from muster.cli.terminal import pipes; pipes.outlive_readers(); "
        "[print('now', end='', file=each) for each in (sys.stdout, sys.stderr)]; os._exit(0)"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == ((b"now", b"now") if unbuffered else (b"", b""))


def test_a_cell_or_a_fact_is_on_one_line_whoever_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    show.table(["node", "why"], [["a", "one\ntwo\tthree"]], empty="")
    assert [line.count("\t") for line in capsys.readouterr().out.splitlines()] == [1, 1]
    show.facts({"why": "one\ntwo"})
    assert capsys.readouterr().out.count("\n") == 1


def test_an_argument_that_is_no_text_is_one_sentence(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node("a"))
    move = ("node", "move", "a", "quarantine", "--as", "Ada", "--reason", os.fsdecode(b"\xff"))
    status, _, err = muster(*move)
    assert (status, err.count("\n")) == (1, 1)
    assert refusal(muster(*move, "--json")) == "MusterError"


@pytest.mark.parametrize(
    "command", [["digest", "--until", "0001-01-01"], ["digest", "--until", "9999-12-31"],
                ["health", "compare", "health", "--since", "0001-01-01T00:00:00+05:00"]],
)  # fmt: skip
def test_a_moment_that_cannot_be_reckoned_with_is_one_sentence(
    muster: Muster, sqlite_db: str, command: list[str]
) -> None:
    status, _, err = muster(*command)
    assert (status, err.count("\n")) == (1, 1)


def test_output_that_a_full_disk_does_not_take_is_one_sentence() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, "settings"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_command_whose_reader_has_ended_goes_on_to_its_end(more: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*COMMAND, "settings", *more], stdout=writer, stderr=writer, check=False)
    finally:
        os.close(writer)
    assert done.returncode == 0


def test_a_character_that_the_encoding_lacks_ends_no_command() -> None:
    code = "from muster.cli.terminal import pipes; pipes.outlive_readers(); print('→')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout == b"\\u2192\n"


@pytest.mark.parametrize(
    "command", [["evidence", "show"], ["evidence", "close", "--reason", "x"], ["runs", "list", "--limit"],
                ["waivers", "revoke", "--reason", "x"]],
)  # fmt: skip
def test_a_number_that_no_record_can_have_is_an_error_of_usage(
    muster: Muster, sqlite_db: str, command: list[str]
) -> None:
    status, _, err = muster(*command, str(2**63))
    assert (status, err.count("\n")) == (2, 1)


def test_a_label_with_the_separator_of_labels_is_refused(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node("a"))
    assert muster("node", "add", "a", "--label", "x=1;y=2", "--host-key", fleet.host_key("a"))[0] == 1
    assert muster("node", "add", "a", "--label", "x=1", "--label", "y=2", "--host-key", fleet.host_key("a"))[0] == 0
    assert dict(store.nodes.get("a").labels) == {"x": "1", "y": "2"}


def test_a_rehearsal_states_no_change_as_made(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node("a"))
    move = ("node", "move", "a", "quarantine", "--reason", "x", "--as", "Ada")
    rehearsed, done = (muster(*move, *more)[1].splitlines()[0] for more in (["--dry-run"], []))
    assert rehearsed == done.replace("a: ", "a: would: ", 1)


@pytest.mark.parametrize(
    "command",
    [
        ["add", "a", "--sku", "cpu-generic"],
        ["adopt", "b", "--reason", "x", "--as", "Ada"],
        ["scheduler", "b", "--none", "--reason", "x", "--as", "Ada"],
        ["remove", "b", "--reason", "x", "--as", "Ada"],
    ],
)
def test_a_rehearsal_states_no_outcome_as_come_about(muster: Muster, sqlite_db: str, command: list[str]) -> None:
    store.nodes.add(fleet.new_node("b"))
    key = ["--host-key", fleet.host_key("a")] if command[0] == "add" else []
    rehearsed, done = (muster("node", *command, *key, *more)[1].splitlines()[0] for more in (["--dry-run"], []))
    assert rehearsed == done.replace(": ", ": would be ", 1)


@pytest.mark.parametrize(
    "command",
    [
        ["node", "list", "--sku"],
        ["snapshots", "list", "--sku"],
        ["certificate", "key", "--new", "--as", "Ada", "--reason"],
    ],
)
def test_an_option_that_cannot_be_used_is_refused(muster: Muster, sqlite_db: str, command: list[str]) -> None:
    assert refusal(muster(*command, " ", "--json")) == "MusterError"


def test_a_value_that_is_refused_is_refused_in_our_words(muster: Muster, sqlite_db: str) -> None:
    for words in (("node", "list", "--state", "Production"), ("runs", "list", "--limit", "0")):
        status, _, err = muster(*words)
        assert status == 2
        assert not any(theirs in err for theirs in ("Value error", "Input should"))
