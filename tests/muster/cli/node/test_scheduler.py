"""The command's answers about a node's place in a scheduler."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import store
from muster.admission import service
from muster.model.schedulers import OPEN
from muster.model.states import State
from tests.docs.test_pages import commands
from tests.muster import fleet
from tests.support import lives, node_list

Muster = Callable[..., "tuple[int, str, str]"]

pytestmark = pytest.mark.usefixtures("sqlite_db")


@pytest.mark.parametrize("back", ["move n1 registered", f"replace n1 --host-key '{fleet.host_key('second')}'"])
def test_a_node_with_a_place_is_removed_as_the_dry_run_says_and_comes_back_without_it(
    muster: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: str
) -> None:
    (tmp_path / "list").write_text("n1\n")
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": node_list.chosen(tmp_path / "list")}))
    store.nodes.add(fleet.new_node("n1"))
    lives.in_production("n1")
    store.schedulers.assign("n1", "alpha", "n1", "Ada", "it is there")
    service.carry_out("n1")
    leave = ("node", "remove", "n1", "--reason", "sold", "--as", "Ada")
    (tmp_path / "list").write_text("n1 # alice: firmware\n")
    status, out, err = muster(*leave, "--dry-run")
    assert (status, err) == (0, "")
    assert "alpha" in out
    assert "alice: firmware" in out
    assert "leaves production" in out
    assert (store.nodes.get("n1").state, store.schedulers.place("n1") is not None) == (State.PRODUCTION, True)
    away = (tmp_path / "list").rename(tmp_path / "away")
    status, _, err = muster(*leave)
    assert (status, "n1 is retired" in err) == (1, True)
    assert "risk: it keeps its place" in muster(*leave, "--dry-run")[1]
    away.rename(tmp_path / "list")
    service.carry_out("n1")
    assert muster(*leave)[0] == 0
    assert (store.nodes.get("n1").state, store.schedulers.place("n1")) == (State.RETIRED, None)
    assert (tmp_path / "list").read_text().startswith("n1 # muster: ")
    (line,) = commands(muster("node", *shlex.split(back), "--reason", "unsold", "--as", "Ada")[1])
    assert line.startswith("muster node scheduler n1 ")


def test_another_machine_is_closed_at_once_where_the_old_one_served(
    muster: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = tmp_path / "list"
    listed.write_text("n1\n")
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": node_list.chosen(listed)}))
    store.nodes.add(fleet.new_node("n1"))
    lives.in_production("n1")
    store.schedulers.assign("n1", "alpha", "n1", "Ada", "it is there")
    service.carry_out("n1")
    replace = ("node", "replace", "n1", "--reason", "RMA", "--as", "Ada", "--host-key")
    assert muster(*replace, fleet.host_key("second"), "--dry-run")[0] == 0
    assert listed.read_text() == "n1\n"
    away = listed.rename(tmp_path / "away")
    assert "waits: " in muster(*replace, fleet.host_key("second"))[1]
    away.rename(listed)
    assert muster(*replace, fleet.host_key("third"))[0] == 0
    assert listed.read_text().startswith("n1 # muster: ")


@pytest.mark.parametrize("given", ["", "--called n2", "--none --cluster alpha", "--none --called n2"])
def test_a_place_ends_only_by_a_word_of_its_own(muster: Muster, given: str) -> None:
    store.nodes.add(fleet.new_node("n1"))
    before = store.schedulers.assign("n1", "alpha", "n1", "Ada", "it is there")
    assert muster("node", "scheduler", "n1", *given.split(), "--reason", "moved", "--as", "Ada")[0] == 1
    assert store.schedulers.place("n1") == before
    assert muster("node", "scheduler", "n1", "--none", "--reason", "sold", "--as", "Ada")[0] == 0
    assert store.schedulers.place("n1") is None


def test_a_place_that_is_not_closed_yet_is_given_up_by_a_command_that_the_refusal_names(muster: Muster) -> None:
    store.nodes.add(fleet.new_node("n1"))
    store.schedulers.assign("n1", "alpha", "n1", "Ada", "it is there")
    store.schedulers.note_seen("n1", OPEN)
    (line,) = commands(muster("node", "scheduler", "n1", "--none", "--reason", "sold", "--as", "Ada")[2])
    assert muster(*shlex.split(line.replace("…", "gone"))[1:], "--as", "Ada")[0] == 0
    assert store.schedulers.place("n1") is None
