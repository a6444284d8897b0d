"""``muster status`` and what a person does about a verdict that is held."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.cli.doctor import disks
from muster.integration.airflow_api import AirflowClient
from muster.judging import policies
from muster.model.attention import Cause
from muster.model.health import Report
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.testing import qualification
from muster.reporting import sending
from muster_criteria.health.readings import Reading
from muster_criteria.model import Verdict
from tests.muster import copied, fleet
from tests.muster.cli.decisions.test_decisions import asks
from tests.muster.integration.test_airflow_api import Airflow
from tests.support import lives

Muster = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def held(sqlite_db: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A node in production with a verdict that is held, beside a simulated one that was never tested; gives the run."""
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")
    monkeypatch.setenv("MUSTER_PERSON", "Ada")
    copied.records(_held)
    return f"{fleet.DAG}/a__idle"


def _held() -> None:
    store.nodes.add(fleet.new_node("a"))
    store.nodes.add(fleet.new_node("sim", simulated=True))
    lives.in_production("a")
    lease = fleet.begin("a", "a__idle")
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.FINDING,))
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
    store.leases.release(lease.key, "over")


def test_the_fleet_stands_on_one_screen(muster: Muster, held: str) -> None:
    _, out, _ = muster("status")
    assert "state\tnodes\tsimulated" in out
    assert "production\t1\t0" in out
    assert "registered\t0\t1" in out
    assert "sim\tregistered, simulated\t" in out
    assert out.count("\ncircuit breaker") == 1, "only what is open"
    assert [line.split("\t")[0] for line in out.splitlines() if "muster node move a quarantine --reason …" in line] == [
        "a"
    ]
    shown = json.loads(muster("status", "--json")[1])
    assert shown["nodes"]["production"] == 1
    assert (shown["nodes"]["registered"], shown["simulated"]["registered"]) == (0, 1), "as the metrics count them"
    assert shown["breakers"]["real"] == {"open": True, "withdrawn": [], "fleet": 1, "allowed": 0}
    assert [(each["node"], each["cause"]) for each in shown["attention"]] == [("a", "held"), ("sim", "not tested")]


def test_a_pause_is_shown_wherever_the_node_is(muster: Muster, held: str) -> None:
    why = ("--reason", "a technician is there")
    assert muster("node", "pause", "a", "--until", "2999-01-01", *why)[0] == 0
    pause = str(store.nodes.get("a").pause)
    assert "2999-01-01" in pause
    assert f"a: its tests are {pause}; `muster node resume a" in muster("status")[1]
    assert json.loads(muster("status", "--json")[1])["paused"]["a"]["reason"] == why[1]
    assert pause in muster("node", "show", "a")[1]
    assert "paused" in muster("node", "list")[1]
    listed = {each["name"]: each["pause"] for each in json.loads(muster("node", "list", "--json")[1])}
    assert (listed["a"]["person"], listed["sim"]) == ("Ada", None)
    assert f"a\tits tests are {pause}" in muster("plan", "--all")[1]
    assert muster("revalidate", "a", "--dry-run")[0] == 1
    assert muster("node", "resume", "a", "--reason", "it is back")[0] == 0
    assert "paused" not in muster("node", "list")[1]


def test_open_questions_and_what_muster_lacks_are_shown(
    muster: Muster, sqlite_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Airflow()
    api.override = asks

    def made(timeout_s: float = 30.0) -> AirflowClient:
        return AirflowClient("http://airflow", "ada", "right", transport=httpx.MockTransport(api))

    monkeypatch.setattr(AirflowClient, "from_settings", made)
    status, out, _ = muster("status")
    assert status == 0
    assert "`muster approve asks " in out
    shown = json.loads(muster("status", "--json")[1])
    assert [each["run"] for each in shown["questions"]["open"]] == ["asks"]
    lacking = [each["item"] for each in shown["lacks"]]
    assert lacking
    assert all(f"seen from this host, {item}: " in out for item in lacking)


def test_an_airflow_that_does_not_answer_is_one_sentence(
    muster: Muster, sqlite_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_AIRFLOW_URL", "http://127.0.0.1:9")
    status, out, err = muster("status")
    assert (status, err, out.count("http://127.0.0.1:9 does not answer")) == (0, "", 1), "although there is no login"
    monkeypatch.setenv("MUSTER_AIRFLOW_USERNAME", "ada")
    monkeypatch.setenv("MUSTER_AIRFLOW_PASSWORD", "x")
    status, out, err = muster("status")
    assert (status, err, out.count("http://127.0.0.1:9")) == (0, "", 1)


def test_advice_is_shown_too(muster: Muster, sqlite_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a disk that is nearly full."""
    monkeypatch.setattr(disks, "LOW", 1.1)
    assert "seen from this host, disk: " in muster("status")[1]


def test_a_portal_in_front_of_airflow_hides_no_record(
    muster: Muster, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    portal = httpx.MockTransport(lambda request: httpx.Response(200, text="<html>Log in"))

    def made(timeout_s: float) -> AirflowClient:
        return AirflowClient("http://airflow", token="t", transport=portal)

    monkeypatch.setattr(AirflowClient, "from_settings", made)
    status, out, _ = muster("status")
    lines = out.splitlines()
    (unknown,) = [number for number, line in enumerate(lines) if line.startswith("questions in Airflow: unknown: ")]
    assert status == 0
    assert any(line.startswith("a\tproduction, serving") for line in lines[:unknown])


def attention(muster: Muster) -> dict[str, dict[str, str]]:
    return {each["node"]: each for each in json.loads(muster("status", "--json")[1])["attention"]}


def test_nodes_that_do_not_serve_are_named_with_reason_and_what_to_do(muster: Muster, held: str) -> None:
    store.nodes.add(fleet.new_node("sick"))
    fleet.fail("sick")
    shown = attention(muster)["sick"]
    assert (shown["cause"], shown["turn"], shown["serving"]) == ("quarantine", "person", False)
    (line,) = [line for line in muster("status")[1].splitlines() if line.startswith("sick\tquarantine\t")]
    assert shown["why"] in line
    assert shown["command"] in line


def test_a_qualified_node_that_waits_for_a_block_is_named(muster: Muster, sqlite_db: str) -> None:
    copied.qualified("a", "b")
    assert {each["cause"] for each in attention(muster).values()} == {"waits for a block"}
    assert muster("status")[1].count("\tmuster block a b --reason …\n") == 2


def test_a_held_rack_is_shown_whatever_state_its_nodes_are_in(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node("a", rack="R"))
    lives.in_production("a")
    store.racks.hold(RunKey("cluster_qualification", "b"), "R", ["imex"], "IMEX is not up", ["a"])
    (held,) = store.racks.held()
    assert held.sentence in muster("status")[1].splitlines()
    assert [each["rack"] for each in json.loads(muster("status", "--json")[1])["racks"]] == ["R"]


def test_nodes_under_test_are_counted_not_listed(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node("a"))
    store.runs.begin_stage(fleet.begin("a").key, "intake")
    assert attention(muster)["a"]["cause"] == Cause.IN_TEST
    assert "\na\t" not in muster("status")[1]


def test_a_node_that_is_to_leave_service_is_named_until_it_does(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node("a"))
    lives.in_production("a")
    seen = Reading("xid/95", "gpu3", severity="RESET")
    store.health.record([Report("a", "sweep", (seen,), "b1")], policies.health())
    shown = attention(muster)["a"]
    assert (shown["cause"], shown["turn"], shown["serving"]) == (Cause.LEAVES, "muster", True)
    assert "\na\tproduction, serving\t" in muster("status")[1]


def test_a_repaired_node_that_was_not_tested_again_is_named(muster: Muster, held: str) -> None:
    fixed = "repaired"
    store.nodes.add(fleet.new_node(fixed))
    fleet.fail(fixed)
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move(fixed, state, "Ada", "gpu3 replaced")
    shown = attention(muster)[fixed]
    assert (shown["why"], shown["command"]) == ("gpu3 replaced", "muster qualify repaired --reason …")
    fleet.qualify(fixed, "again")
    assert attention(muster)[fixed]["cause"] == "waits for a block"


def test_mails_that_the_mail_server_refused_are_shown(muster: Muster, sqlite_db: str) -> None:
    for key, parked in ((f"{fleet.DAG}/a__new/1", True), (f"{fleet.DAG}/b__new/2", False)):
        store.outbox.add(key, b"x")
        store.outbox.failed(store.outbox.pending()[-1].id, b"x", "554 message too large", park=parked)
    shown = json.loads(muster("status", "--json")[1])["mails"]
    assert [(each["key"], each["last_error"]) for each in shown["parked"]] == [
        (f"{fleet.DAG}/a__new/1", "554 message too large")
    ]
    assert shown["waiting"] == 1
    assert re.findall(r"muster runs show ([\w/]+)", muster("status")[1]) == [f"{fleet.DAG}/a__new"]


@pytest.mark.parametrize(
    ("key", "run"),
    [
        (f"{fleet.DAG}/a__new/1f", f"{fleet.DAG}/a__new"),
        (f"rule/oncall/{fleet.DAG}/a__new/1f", f"{fleet.DAG}/a__new"),
        (f"notify/chat/{fleet.DAG}/a__new/1f", f"{fleet.DAG}/a__new"),
        ("notice/ended job 7/a/2026-11-23", ""),
        ("notice/controller fault/ssh/2026-11-23/oncall", ""),
        ("notify/chat/notice/drained again/a/2026-11-23", ""),
        ("flood/oncall/2026-11-23T23", ""),
        ("notify/chat/flood/2026-11-23T23", ""),
        ("digest/weekly/real/digest-real-2026", ""),
    ],
)
def test_only_a_mail_about_a_run_leads_to_one(muster: Muster, sqlite_db: str, key: str, run: str) -> None:
    store.outbox.add(key, b"x")
    store.outbox.failed(store.outbox.pending()[0].id, b"x", "554 no", park=True)
    out = muster("status")[1]
    printed = out.partition("`muster mail drop ")[2].partition("`")[0]
    assert shlex.split(printed)[0] == key, "the command can be pasted"
    assert (f"muster runs show {run}`" in out) if run else ("muster runs show" not in out)


def test_an_unsent_mail_is_sent_again_or_dropped(muster: Muster, sqlite_db: str) -> None:
    for key in ("a", "b"):
        store.outbox.add(key, b"x")
        store.outbox.failed(store.outbox.pending()[-1].id, b"x", "550 no", park=True, recipients=["gone@example.org"])
    assert json.loads(muster("mail", "list", "--json")[1])["parked"][0]["recipients"] == ["gone@example.org"]
    why = ("--reason", "the server is mended", "--as", "Ada")
    assert muster("mail", "resend", "a", *why)[0] == 0
    assert [mail.key for mail in store.outbox.pending(due=True)] == ["a"]
    assert muster("mail", "drop", "b", "c", *why)[0] == 1
    assert [event.evidence["mail"] for event in store.audit.batch("siem", 9)] == ["a", "b"]
    shown = json.loads(muster("mail", "list", "--json")[1])
    assert ([each["key"] for each in shown["waiting"]], shown["parked"]) == (["a"], [])


def test_a_long_list_of_unsent_mails_is_not_cut_unseen(muster: Muster, sqlite_db: str) -> None:
    for number in range(103):
        store.outbox.add(f"mail-{number}", b"x")
    assert muster("mail", "list")[1].splitlines()[-1].startswith("and 3 more")
    assert len(json.loads(muster("mail", "list", "--json")[1])["waiting"]) == 103
    for mail in store.outbox.pending(limit=103):
        store.outbox.failed(mail.id, b"x", "554 no", park=True)
    assert "and 3 more not sent" in muster("status")[1]
    assert len(json.loads(muster("status", "--json")[1])["mails"]["parked"]) == 103
    assert sending.deliver_mail() == (0, 0, 103)


def test_node_and_run_show_that_it_is_held(muster: Muster, held: str) -> None:
    shown, run = muster("node", "show", "a")[1], store.runs.get(RunKey.parse(held), node="a")
    assert held in shown
    assert run.why_held in shown
    listed = {each["name"]: each["held_run"] for each in json.loads(muster("node", "list", "--json")[1])}
    assert (str(listed["a"]["run_id"]), listed["sim"]) == ("a__idle", None)
    assert json.loads(muster("runs", "show", "a__idle", "--json")[1])["why_held"]


def test_a_person_keeps_it(muster: Muster, held: str) -> None:
    assert muster("node", "keep", "a", "--reason", "a bad driver", "--dry-run")[0] == 0
    assert store.nodes.get("a").held_run == RunKey.parse(held)
    status, out, _ = muster("node", "keep", "a", "--reason", "a bad driver")
    assert (status, held in out) == (0, True)
    assert store.nodes.get("a").held_run is None
    assert store.nodes.get("a").state is State.PRODUCTION
    assert muster("node", "keep", "a", "--reason", "again")[0] == 1


def test_a_run_that_is_refused_before_it_begins_is_in_the_status_with_its_reason(
    muster: Muster, sqlite_db: str
) -> None:
    """From the task's own claim to what a person reads, and the reason is gone once a test has ended."""
    store.nodes.add(fleet.new_node("a", pool="rack-1"))
    key = RunKey(fleet.DAG, "a__new")
    with pytest.raises(AirflowFailException):
        qualification.claim(key, {"node": "a", "level": "nope", "reason": "new"})
    assert [line for line in _lines(muster, "a") if "nope" in line]
    fleet.qualify("a")
    assert not [line for line in _lines(muster, "a") if "nope" in line]


def _lines(muster: Muster, node: str) -> list[str]:
    _, out, _ = muster("status")
    return [line for line in out.splitlines() if line.split("\t")[0] == node]


def test_it_loads_none_of_airflows_libraries(muster_home: Path) -> None:
    """Which takes seconds, for a person who waits."""
    code = "import sys; from muster.cli import main\ntry: main()\nfinally: print('airflow' in sys.modules)"
    command = [sys.executable, "-c", code, "status", "--json"]
    assert subprocess.run([*command[:3], "db", "upgrade"], capture_output=True, check=False).returncode == 0
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"
