"""``muster node``: arguments, output, and that a refusal changes nothing."""

from __future__ import annotations

import dataclasses
import json
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import store
from muster.admission import differences
from muster.admission.backend import Seen
from muster.cli.node import check as checking
from muster.errors import DifferentMachine
from muster.judging import health
from muster.model.health import Report
from muster.model.runs import RunKey
from muster.model.states import State
from muster_criteria.health.readings import Reading
from muster_criteria.model import Verdict
from tests.docs.test_pages import commands
from tests.muster import fleet
from tests.support import lives
from tests.support.servers import sshd

Muster = Callable[..., "tuple[int, str, str]"]

DOCS = Path(__file__).parents[4] / "docs"

pytestmark = pytest.mark.usefixtures("sqlite_db")


def add(muster: Muster, *more: str, name: str = "gpu-0001", host: str = "10.0.0.1") -> tuple[int, str, str]:
    return muster(
        "node", "add", host, "--name", name, "--sku", "cpu-generic", "--host-key", fleet.host_key(name), *more
    )


def test_adding_twice_is_harmless(muster: Muster) -> None:
    assert add(muster, "--label", "team=a", "--label", "row=3") == (0, "gpu-0001: added\n", "")
    assert add(muster, "--label", "team=a", "--label", "row=3") == (0, "gpu-0001: unchanged\n", "")
    assert store.nodes.get("gpu-0001").labels == {"team": "a", "row": "3"}


def test_a_label_is_added_as_the_pages_say_and_nothing_else_of_the_node_changes(muster: Muster) -> None:
    """The node answers nowhere: what is not asked about is not looked up."""
    add(muster, "--label", "block=b3", "--label", "block_address=10.9.0.1", "--port", "2222")
    before = store.nodes.get("gpu-0001")
    pages = (DOCS / "automation.md", DOCS / "failed-node.md")
    shown = [line for page in pages for line in commands(page.read_text()) if line.startswith("muster node add ")]
    for line in shown:
        status, _, err = muster(*shlex.split(line.replace("NODE", "gpu-0001"))[1:])
        assert (status, err) == (0, ""), line
    after = store.nodes.get("gpu-0001")
    assert after == dataclasses.replace(before, labels=after.labels)
    assert set(after.labels) == {"block", "block_address", "spare", "rails"}
    assert muster("node", "add", "gpu-0001", "--label", "spare=", "--label", "block_address=")[0] == 0
    assert set(store.nodes.get("gpu-0001").labels) == {"block", "rails"}


def test_the_address_of_a_known_node_changes_where_it_is_asked_for(muster: Muster) -> None:
    add(muster)
    key = fleet.host_key("gpu-0001")
    assert muster("node", "add", "10.0.0.2", "--name", "gpu-0001", "--host-key", key)[0] == 0
    assert store.nodes.get("gpu-0001").host == "10.0.0.2"
    assert muster("node", "add", "gpu-0001", "--rack", "r7")[0] == 0
    node = store.nodes.get("gpu-0001")
    assert (node.host, node.rack, node.sku) == ("10.0.0.2", "r7", "cpu-generic")
    assert muster("node", "add", "gpu-001", "--label", "spare=yes")[0] == 1
    assert [each.name for each in store.nodes.find()] == ["gpu-0001"]


def test_what_a_node_no_longer_has_is_taken_from_it_by_an_empty_option(muster: Muster) -> None:
    has = {"rack": "r7", "pool": "rack_7", "user": "root", "launch": '{"kind": "venv", "path": "/v"}'}
    options = [word for name, value in has.items() for word in (f"--{name}", value)]
    add(muster, *options, "--bmc", '{"url": "https://10.0.0.9", "connection": "bmc"}')
    assert add(muster)[1] == "gpu-0001: unchanged\n"
    assert store.nodes.get("gpu-0001").rack == "r7"
    cleared = [word for name in (*has, "bmc") for word in (f"--{name}", "")]
    assert muster("node", "add", "gpu-0001", *cleared)[0] == 0
    node = store.nodes.get("gpu-0001")
    assert (node.rack, node.pool, node.user, node.launch, node.bmc) == ("", "", "", {}, {})


@pytest.mark.parametrize(
    ("now", "named", "kept"),
    [
        ({"system": "S", "board": "OM 2"}, "confirm", True),
        ({"system": "S", "board": "OM 2"}, "replace", False),
        ({"system": "T", "board": "OM2"}, "replace", False),
        ({"board": "OM2"}, "replace", False),
    ],
)
def test_the_command_that_a_refused_report_names_records_what_changed(
    muster: Muster, now: dict[str, str], named: str, kept: bool
) -> None:
    """The disks stayed, and the host key with them."""
    store.nodes.add(fleet.new_node(serials={"system": "S", "board": "OM1"}))
    lease = fleet.begin(run_id="first")
    with pytest.raises(DifferentMachine) as refused:
        fleet.do_stage(lease, "intake", serials=now)
    store.runs.finish(lease.key, Verdict.INCONCLUSIVE, "another machine")
    store.leases.release(lease.key, "over")
    options = commands(str(refused.value))
    line = next(line for line in options if line.startswith(f"muster node {named} ")).replace("…", "RMA")
    key = ["--host-key", fleet.host_key("gpu-0001")] if named == "replace" else []
    assert muster(*shlex.split(line)[1:], *key, "--as", "Ada")[0] == 0
    fleet.do_stage(fleet.begin(run_id="second"), "intake", serials=now)
    assert {each.slot: each.serial for each in store.parts.of_node("gpu-0001") if each.until is None} == now
    runs = store.runs.find(node="gpu-0001", this_machine=True)
    assert ("first" in {run.run_id for run in runs}) is kept


def test_a_replacement_without_a_difference_is_refused_with_a_command_that_is_not(muster: Muster) -> None:
    store.nodes.add(fleet.new_node(serials={"board": "OM1"}))
    again = ["--host-key", fleet.host_key("gpu-0001"), "--as", "Ada"]
    _, _, err = muster("node", "replace", "gpu-0001", "--reason", "RMA", *again)
    (line,) = (each for each in commands(err) if each.startswith("muster node replace "))
    words = shlex.split(line.replace("SLOT=SERIAL", "board=OM2").replace("…", "RMA"))
    assert muster(*words[1:], *again)[0] == 0


def test_a_new_machine_at_a_new_address_is_recorded_by_a_command_that_the_refusal_names(muster: Muster) -> None:
    add(muster)
    new = fleet.host_key("another")
    moved = ("node", "add", "10.0.0.2", "--name", "gpu-0001", "--host-key", new)
    replaced, reinstalled = commands(muster(*moved)[2])
    assert muster(*shlex.split(reinstalled.replace("…", "image"))[1:], "--as", "Ada")[0] == 0
    assert muster(*moved)[0] == 0
    assert store.nodes.get("gpu-0001").host == "10.0.0.2"
    assert "--host 10.0.0.2 --port 22" in replaced


@pytest.mark.needs_sshd
def test_the_key_that_answers_is_pinned(muster: Muster, tmp_path: Path) -> None:
    with sshd.running(tmp_path / "node") as server:
        assert muster("node", "add", "127.0.0.1", "--port", str(server.port), "--sku", "cpu-generic")[0] == 0
        assert store.nodes.get("127.0.0.1").host_key == " ".join(server.key_text().split()[:2])


@pytest.mark.needs_sshd
def test_a_host_that_closes_the_connection_is_one_line(sqlite_db: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        port = str(server.getsockname()[1])
        # In a process of its own: pytest's handlers would take what paramiko logs.
        words = ["node", "add", "127.0.0.1", "--port", port, "--sku", "cpu-generic"]
        code = f"import sys; sys.argv[1:] = {words}; from muster.cli import main; main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_check_uses_the_connection_of_the_tasks_and_prints_json_only(
    muster: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over OpenSSH, with the node side as it is shipped; twice, since the second finds it there already."""
    with sshd.running(tmp_path / "node") as server:
        node = server.node("here")
        extra = {"key_file": str(server.key_file)}
        monkeypatch.setenv(
            "AIRFLOW_CONN_MUSTER_SSH", json.dumps({"conn_type": "ssh", "login": node.user, "extra": extra})
        )
        store.nodes.add(fleet.new_node("here", host=node.host, port=node.port, host_key=node.host_key))
        for target in (["here"], ["127.0.0.1", "--port", str(server.port)]):
            status, out, _ = muster("node", "check", *target, "--json")
            items = {item["item"]: item for item in json.loads(out)}
            assert items["ssh"]["mark"] == items["python"]["mark"] == checking.OK
            assert status == (1 if any(item["mark"] == checking.MISSING for item in items.values()) else 0)


@pytest.mark.needs_sshd
def test_a_node_that_has_seen_higher_tokens_is_unfenced(
    muster: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sshd.running(tmp_path / "node") as server:
        node = server.node("here")
        extra = {"key_file": str(server.key_file)}
        monkeypatch.setenv(
            "AIRFLOW_CONN_MUSTER_SSH", json.dumps({"conn_type": "ssh", "login": node.user, "extra": extra})
        )
        work = tmp_path / "work"
        store.nodes.add(
            fleet.new_node("here", host=node.host, port=node.port, host_key=node.host_key, work_dir=str(work))
        )
        work.mkdir()
        seen = store.leases.acquire("here", RunKey("dag", "one")).token + 10**6
        store.leases.release(RunKey("dag", "one"), "over")
        (work / "fence").write_text(str(seen))
        unfence = ("node", "unfence", "here", "--as", "Ada", "--reason", "restored from Sunday")
        assert muster(*unfence, "--dry-run")[0] == 0
        assert store.leases.acquire("here", RunKey("dag", "two")).token < seen
        store.leases.release(RunKey("dag", "two"), "over")
        assert muster(*unfence)[0] == 0
        assert store.leases.acquire("here", RunKey("dag", "three")).token > seen
        (work / "fence").write_text("not a number")
        assert muster(*unfence)[0] == 1


def test_an_import_is_all_or_nothing(muster: Muster, tmp_path: Path) -> None:
    lines = [f"n{number},10.0.0.{number},cpu-generic,{fleet.host_key(str(number))}" for number in range(40)]
    path = tmp_path / "fleet.csv"
    path.write_text("name,host,sku,host_key\n" + "\n".join([*lines, f"n40,h,cpu-generic,{fleet.host_key('x')},more"]))
    status, out, err = muster("node", "import", str(path))
    assert (status, out) == (1, "")
    assert err.startswith(f"muster: {path}:42: ")
    assert store.nodes.find() == []
    path.write_text("name,host,sku,host_key\n" + "\n".join(lines))
    assert muster("node", "import", str(path)) == (0, "40 added\n", "")
    assert muster("node", "import", str(path)) == (0, "40 unchanged\n", "")
    path.write_text("name,host,sku,host_key\n" + "\n".join([lines[0].replace("10.0.0.0", "10.9.9.9"), *lines[1:]]))
    changed = "n0: updated: host 10.0.0.0 → 10.9.9.9\n1 updated, 39 unchanged\n"
    status, rehearsed, _ = muster("node", "import", str(path), "--dry-run")
    assert (status, changed in rehearsed) == (0, False)  # it says what would be done, not that it was
    assert store.nodes.get("n0").host == "10.0.0.0"
    store.leases.acquire("n0", RunKey("dag", "one"))
    text = path.read_text().splitlines()
    racks = [line.replace("cpu-generic", "cpu-generic,r1") for line in text[1:]]
    path.write_text("\n".join([text[0].replace("sku", "sku,rack"), *racks]))
    status, out, _ = muster("node", "import", str(path))
    assert (status, out.splitlines()[-1]) == (1, "39 updated, 1 left out")
    assert "n0: left out: n0 is leased by run one" in out
    store.leases.release(RunKey("dag", "one"), "over")
    path.write_text("\n".join(text))
    assert muster("node", "import", str(path)) == (0, changed, "")


def test_an_import_of_a_different_machine_names_its_line(muster: Muster, tmp_path: Path) -> None:
    add(muster)
    path = tmp_path / "fleet.csv"
    other = fleet.host_key("another")
    path.write_text(
        f"name,host,sku,host_key\nnew,h,cpu-generic,{fleet.host_key('new')}\ngpu-0001,h1,cpu-generic,{other}\n"
    )
    status, _, err = muster("node", "import", str(path))
    assert status == 1
    assert err.startswith(f"muster: {path}:3: gpu-0001 is enrolled with another host key")
    assert [node.name for node in store.nodes.find()] == ["gpu-0001"]


def test_lists_are_for_people_and_for_programs(muster: Muster) -> None:
    assert "enrol some with `muster node add" in muster("node", "list")[1]
    assert "enrol" not in muster("node", "list", "--rack", "typo")[1]
    add(muster)
    add(muster, name="gpu-0002", host="10.0.0.2")
    store.nodes.move("gpu-0002", State.QUARANTINE, "Ada", "smoke")
    assert muster("node", "list", "--state", "quarantine")[1].splitlines()[1].startswith("gpu-0002\tquarantine\t")
    listed = json.loads(muster("node", "list", "--json")[1])
    assert [(node["name"], node["state"]) for node in listed] == [
        ("gpu-0001", "registered"),
        ("gpu-0002", "quarantine"),
    ]


def test_one_node_is_shown_with_its_parts_and_runs(muster: Muster) -> None:
    store.nodes.add(fleet.new_node(serials={"gpu3": "G-77"}))
    fleet.qualify()
    _, out, _ = muster("node", "show", "gpu-0001")
    assert "qualified" in out
    assert "gpu3\tG-77" in out
    assert "gpu-0001__new\tPASS" in out
    assert json.loads(muster("node", "show", "gpu-0001", "--json")[1])["runs"][0]["verdict"] == "PASS"
    assert muster("node", "history", "gpu-0001")[1].count("\n") == 6
    assert muster("node", "show", "gpu-0009")[2].startswith("muster: no node 'gpu-0009' is enrolled")


@pytest.mark.parametrize("key", ["gpu-0001", "another"])
def test_a_retired_node_comes_back_by_a_command_that_the_refusal_names(muster: Muster, key: str) -> None:
    add(muster)
    store.nodes.move("gpu-0001", State.RETIRED, "Ada", "removed by mistake")
    again = ("node", "add", "10.0.0.1", "--name", "gpu-0001", "--host-key", fleet.host_key(key))
    (line,) = commands(muster(*again)[2])
    given = ["--host-key", fleet.host_key(key)] if key == "another" else []
    assert muster(*shlex.split(line.replace("…", "needed"))[1:], *given, "--as", "Ada")[0] == 0
    assert muster(*again) == (0, "gpu-0001: unchanged\n", "")


def test_a_known_node_that_is_down_keeps_no_inventory_from_being_imported(muster: Muster, tmp_path: Path) -> None:
    add(muster, host="127.0.0.1")
    file = tmp_path / "fleet.yaml"
    line = "{name: gpu-0001, host: 127.0.0.1, port: %d, sku: cpu-generic, rack: r7}"
    for port, status in ((1, 1), (22, 0)):
        known = f"{{name: gpu-0002, host: 127.0.0.2, sku: cpu-generic, host_key: {fleet.host_key('b')}}}"
        file.write_text(f"nodes:\n- {line % port}\n- {known}\n")
        assert muster("node", "import", str(file))[0] == status
    assert store.nodes.get("gpu-0001").rack == "r7"


@pytest.mark.needs_sshd
def test_a_node_that_leaves_is_retired_and_left_clean(
    muster: Muster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sshd.running(tmp_path / "node") as server:
        node = server.node("here")
        extra = {"key_file": str(server.key_file)}
        login = {"conn_type": "ssh", "login": node.user, "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_MUSTER_SSH", json.dumps(login))
        new = fleet.new_node("here", host=node.host, port=node.port, host_key=node.host_key, work_dir=node.work_dir)
        store.nodes.add(new)
        Path(node.work_dir, "jobs").mkdir(parents=True)
        leave = ("node", "remove", "here", "--reason", "sold", "--clean", "--as", "Ada")
        assert muster(*leave, "--dry-run")[0] == 0
        assert Path(node.work_dir).exists()
        lease = fleet.begin("here")
        assert muster(*leave)[0] == 1
        assert (store.nodes.get("here").state, Path(node.work_dir).exists()) == (State.REGISTERED, True)
        store.leases.release(lease.key, "over")
        assert muster(*leave)[0] == 0
        assert (store.nodes.get("here").state, Path(node.work_dir).exists()) == (State.RETIRED, False)
        assert muster(*leave)[0] == 0, "repeated, it changes nothing"


def test_what_was_observed_between_tests_is_shown_until_it_is_over(muster: Muster) -> None:
    store.nodes.add(fleet.new_node(sku="h100-sxm-8"))
    seen = Reading("gpu_lost", "gpu3", value="off the bus", bad=True)
    health.record([Report("gpu-0001", "sweep", (seen,), "b1")], {"gpu-0001": "h100-sxm-8"})
    (shown,) = json.loads(muster("node", "show", "gpu-0001", "--json")[1])["observations"]
    assert (shown["check"], shown["part"], shown["action"]) == ("gpu_lost", "gpu3", "leave_when_job_ends")
    assert "gpu_lost" in muster("node", "show", "gpu-0001")[1]
    assert "gpu_lost" in muster("node", "history", "gpu-0001")[1]


def test_who_closed_a_node_in_its_scheduler_and_why_is_shown_once(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node("n1"))
    store.schedulers.assign("n1", "alpha", "n1", "Ada", "it is there")
    lives.in_production("n1")
    change = store.schedulers.claim("n1")
    assert change is not None
    store.schedulers.carried_out(change)
    place = store.schedulers.place("n1")
    assert place is not None
    drain = "bob: muster-verify, a new fan"
    seen = Seen(open=False, foreign=drain)
    difference = differences.difference_of(place, seen)
    assert drain in difference
    store.schedulers.note_seen("n1", differences.shown_as(seen), difference, drain)
    store.schedulers.ask_about_request("n1", f"it was closed for a test ({drain}), and 3 tests gave no PASS")
    out = muster("node", "schedulers")[1]
    assert (out.count(drain), out.count("alpha"), "3 tests" in out) == (1, 2, True)
