"""With ``--json`` stdout of every command is one JSON document, for an error too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.core import TyperArgument, TyperOption

from muster import __version__, store
from muster.admission import users_jobs
from muster.cli.app import root
from muster.errors import INTERRUPTED, MusterError
from muster.model.states import State
from muster.operators import upkeep
from muster_criteria.cluster.model import COLLECTIVES, TRAINING
from muster_criteria.cluster.plan import FAULT_RUN_S, SOAK_MINUTES_MAX
from muster_criteria.sku_files.skus import load_sku
from muster_reports.advice import way_to_test
from tests.muster import fleet
from tests.support import lives

Muster = Callable[..., tuple[int, str, str]]
USAGE = 2


def commands(command: object = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    command = command or root()
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, each in below.items():
        yield from commands(each, (*path, name))


COMMANDS = dict(commands())


def required(command: object) -> Iterator[str]:
    """Every required argument and option of a command, with a value that no record knows."""
    for each in getattr(command, "params"):  # noqa: B009 - click's commands have no common type with typer's
        if isinstance(each, TyperArgument) and each.required:
            yield "unknown"
        elif isinstance(each, TyperOption) and each.required:
            yield from (each.opts[0], "unknown")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_stdout_is_one_json_document(
    muster: Muster, sqlite_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUSTER_AIRFLOW_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("MUSTER_PERSON", "Ada")
    _, out, err = muster(*path, *required(COMMANDS[path]), "--json")
    assert json.loads(out) is not None, "of usage too: an argument is no number, day or file"
    assert "No such option" not in err


def test_sentences_become_messages(muster: Muster, sqlite_db: str) -> None:
    status, out, _ = muster(
        "node", "add", "gpu-0009", "--sku", "cpu-generic", "--host-key", fleet.host_key("x"), "--json"
    )
    assert (status, json.loads(out)) == (0, {"messages": ["gpu-0009: added"]})


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [(MusterError("late"), 1, "MusterError"), (KeyboardInterrupt(), INTERRUPTED, "Interrupted")],
)
def test_what_was_done_before_an_error_is_in_its_json(
    muster: Muster, sqlite_db: str, monkeypatch: pytest.MonkeyPatch, failure: BaseException, status: int, kind: str
) -> None:
    def fail(**_: object) -> None:
        raise failure

    monkeypatch.setattr(users_jobs, "note", lambda: ["n1: noted"])
    monkeypatch.setattr(upkeep, "apply_retention", fail)
    ended, out, _ = muster("housekeeping", "--json")
    shown = json.loads(out)
    assert (ended, shown["kind"], shown["messages"]) == (status, kind, ["n1: noted"])


def test_an_interruption_is_json_and_a_status_of_its_own(
    muster: Muster, sqlite_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store.runs, "find", stop)
    status, out, _ = muster("runs", "list", "--json")
    assert (status, json.loads(out)["kind"]) == (INTERRUPTED, "Interrupted")


@pytest.mark.parametrize(
    "wrong", [("nothing",), ("qualify",), ("runs", "list", "--limit", "no"), ("status", "--such")], ids=" ".join
)
def test_usage_errors_are_json_too(muster: Muster, wrong: tuple[str, ...]) -> None:
    status, out, err = muster(*wrong, "--json")
    assert (status, set(json.loads(out))) == (USAGE, {"error", "kind"})
    assert err.startswith("muster: ")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("node",), "`muster node --help`"),
        (("nod",), "'nod'"),
        (("node", "mov"), "'mov'"),
        (("qualify",), "`muster qualify --help`"),
        (("node", "move", "n1", "production"), "--reason"),
        (("runs", "list", "--limit", "no"), "--limit"),
        (("runs", "list", "--limit", "0"), "--limit"),
        (("runs", "list", "--limit"), "`muster runs list --help`"),
        (("status", "--json=3"), "`muster status --help`"),
        (("status", "--jsn"), "--jsn"),
        (("status", "n1"), "n1"),
    ],
    ids=str,
)
def test_an_error_of_usage_is_one_sentence_with_the_help_to_read(
    muster: Muster, wrong: tuple[str, ...], named: str
) -> None:
    status, _, err = muster(*wrong)
    assert (status, err.count("\n"), err.startswith("muster: ")) == (USAGE, 1, True)
    assert named in err
    assert "--help`" in err


@pytest.mark.parametrize("command", ["qualify", "revalidate", "block", "admit"])
def test_a_dry_run_is_json_too(muster: Muster, sqlite_db: str, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    for name in ("a", "b"):
        store.nodes.add(fleet.new_node(name))
        lives.in_production(name) if command == "revalidate" else lives.qualified(name)
    status, out, _ = muster(command, "a", "b", "--dry-run", "--json", "--reason", "why")
    shown = json.loads(out)
    started = {"a, b": "a+1__why"} if command == "block" else {"a": "a__why", "b": "b__why"}
    assert (status, shown["dry_run"], shown["would_start"], shown["refused"]) == (0, True, started, {})
    assert set(shown["effects"]) == set(shown["risks"]) == set(started)
    if command == "admit":
        assert all(shown["effects"].values())
        return
    assert all(shown["risks"].values())
    (programme,) = shown["programmes"]
    assert programme["nodes"] == ["a", "b"]
    probes = {probe["probe"] for stage in programme["stages"] for probe in stage["probes"]}
    block = load_sku(programme["sku"], ()).block
    assert probes & set(block.probes) == (set(block.probes) if command == "block" else set())


def test_a_block_that_its_run_would_refuse_is_refused_at_once(muster: Muster, sqlite_db: str) -> None:
    for name, simulated in (("a", True), ("b", False)):
        store.nodes.add(fleet.new_node(name, simulated=simulated))
        lives.qualified(name)
    assert muster("block", "a", "b", "--dry-run", "--json")[0] == 1


@pytest.mark.parametrize("asked", [("--soak-minutes", str(SOAK_MINUTES_MAX + 1)), ("--fault-run",)], ids=str)
def test_a_block_that_cannot_do_what_it_is_asked_beyond_its_level_is_refused_at_once(
    muster: Muster, sqlite_db: str, asked: tuple[str, ...]
) -> None:
    for name in ("a", "b"):
        store.nodes.add(fleet.new_node(name))
        lives.qualified(name)
    status, out, _ = muster("block", "a", "b", *asked, "--dry-run", "--json")
    assert (status, set(json.loads(out)["refused"])) == (1, {"a, b"})


def test_a_rehearsed_block_takes_as_long_as_what_it_is_asked_beyond_its_level(
    muster: Muster, sqlite_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_SHARED_PATH", "/shared")
    for name in ("a", "b"):
        store.nodes.add(fleet.new_node(name))
        lives.qualified(name)

    def limits(*asked: str) -> dict[str, tuple[float, float]]:
        (programme,) = json.loads(muster("block", "a", "b", *asked, "--dry-run", "--json")[1])["programmes"]
        probes = [probe for stage in programme["stages"] for probe in stage["probes"]]
        of = {each["probe"]: (each["timeout_s"], each["timed_s"]) for each in probes}
        return {**of, "all": (sum(each["deadline_s"] for each in programme["stages"]), 0.0)}

    usual, longer = limits(), limits("--soak-minutes", "600", "--fault-run")
    more = {name: (longer[name][0] - limit, longer[name][1] - load) for name, (limit, load) in usual.items()}
    assert {name: each for name, each in more.items() if any(each)} == {
        COLLECTIVES: (36000.0, 36000.0), TRAINING: (FAULT_RUN_S, 0.0), "all": (36000.0 + FAULT_RUN_S, 0.0)
    }  # fmt: skip


def test_a_block_names_a_way_to_a_test_that_is_open_to_a_node_out_of_service(muster: Muster, sqlite_db: str) -> None:
    for name in ("a", "b"):
        store.nodes.add(fleet.new_node(name))
        lives.qualified(name)
    store.nodes.move("a", State.QUARANTINE, "Ada", "it hangs")
    status, _, err = muster("block", "a", "b")
    assert (status, way_to_test("a", State.QUARANTINE) in err) == (1, True)


def test_the_version_is_shown(muster: Muster) -> None:
    assert muster("--version") == (0, f"muster {__version__}\n", "")
