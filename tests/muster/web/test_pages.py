"""The Fleet page's content from real records. Access is tested with a real Airflow in tests/dags/test_fleet_page.py."""

from __future__ import annotations

import csv
import datetime
import html
import io
import re

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from muster import store
from muster.admission.entry import move
from muster.model.figures import FleetRow
from muster.model.runs import RunKey
from muster.model.states import State
from muster.rules.attention import BLOCK_MAX
from muster.web import access, actions, approvals, overview
from muster.web import app as web
from muster.web import fleet as web_fleet
from muster.web.fleet import Filters
from muster_criteria.model import Verdict
from muster_node.contract import Measurement
from tests.muster import fleet
from tests.muster.web.conftest import HOSTILE, notices, override, page, question


@pytest.mark.usefixtures("fleet_db")
def test_no_route_is_without_airflows_login() -> None:
    app = web.create_app()
    assert app.routes
    for route in app.routes:
        assert isinstance(route, APIRoute), f"{route} is mounted, and no dependency of the app guards it"
        guards = [each.call for each in route.dependant.dependencies]
        assert access.read in guards
        if route.methods != {"GET"}:
            assert actions.from_this_page in guards
            assert {access.decide, access.respond, access.start} & set(guards)


def _part(text: str, begin: str, end: str) -> str:
    """What stands between two ids of a page."""
    return text[text.index(f'id="{begin}"') : text.index(f'id="{end}"')]


def test_an_empty_fleet_says_how_to_begin(client: TestClient) -> None:
    assert "muster node add" in page(client, "/")


@pytest.mark.both_dialects
def test_sick_nodes_stand_first_with_their_reason(client: TestClient) -> None:
    for name in ("a", "b", "c"):
        store.nodes.add(fleet.new_node(name, rack="r1"))
    fleet.fail("b")
    fleet.qualify("c")
    text = page(client, "/")
    waiting = _part(text, "waiting", "running")
    assert "gpu3 is slow." in waiting
    assert waiting.index("/node/b") < waiting.index("/node/a")
    only = page(client, "/?state=qualified")
    assert "/node/c" in only
    assert "/node/b" not in only[only.index("<caption>") :]


def test_what_does_not_serve_is_counted_of_the_nodes_that_the_filters_leave_without_retired_ones(
    client: TestClient,
) -> None:
    for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2"), ("gone", "r1")):
        store.nodes.add(fleet.new_node(name, rack=rack))
    fleet.fail("a")
    store.nodes.move("gone", State.RETIRED, "Ada", "it is old")
    for filters, counted in (("", ["3", "3"]), ("?rack=r1", ["2", "2"]), ("?state=quarantine", ["1", "1"])):
        heading = _part(page(client, f"/{filters}"), "waiting", "running").partition("</h2>")[0]
        assert re.findall(r"\d+", heading) == counted


def test_all_that_do_not_serve_are_reachable_whatever_is_chosen(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {f"n{number:03d}" for number in range(120)}
    rows = [
        FleetRow(name, State.QUARANTINE, "cpu-generic", "r1", False, None, None, "", "", None, "", None, None)
        for name in sorted(names)
    ]
    monkeypatch.setattr(store.overview, "rows", lambda: rows)
    for address in ("/", "/?state=quarantine"):
        seen: list[str] = []
        after: str | None = address
        while after:
            listed = _part(page(client, after), "waiting", "running").partition("<h2>Map")[0]
            seen += re.findall(r"/node/(n\d+)", listed)
            link = re.search(r'href="/muster([^"]*)">after', listed)
            after = link and html.unescape(link[1])
        assert sorted(seen) == sorted(names)


def test_a_page_beyond_the_end_is_the_last_one(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_fleet, "PAGE", 2)
    for name in ("a", "b", "c"):
        store.nodes.add(fleet.new_node(name))
    beyond = page(client, "/?page=7&waits=7")
    assert [re.findall(r"/node/(\w)", part) for part in (_part(beyond, "waiting", "running").partition("<h2>Map")[0],
            beyond.partition('id="nodes"')[2])] == [["c"], ["c"]]  # fmt: skip
    assert Filters(page=0, waits=-3).within(0, 0) == Filters()
    assert Filters(page=3, waits=3).within(4, 5) == Filters(page=2, waits=3)


def test_a_command_is_shown_whole_to_be_copied(client: TestClient) -> None:
    names = [f"gpu-{number:04d}.cluster-a.example.org" for number in range(BLOCK_MAX)]
    store.nodes.add_all([("", fleet.new_node(name)) for name in names])
    for name in names:
        fleet.qualify(name)
    command = f"<code>muster block {' '.join(names)} --reason …</code>"
    assert len(command) > 400
    assert page(client, "/").count(command) == len(names)
    assert command in page(client, f"/node/{names[0]}")


def test_another_filter_starts_the_pages_over_and_another_page_leaves_the_other_list_where_it_is() -> None:
    filters = Filters(rack="r1", page=3, waits=2)
    assert (filters.url(), filters.url(waits=1)) == ("?rack=r1&page=3&waits=2", "?rack=r1&page=3")
    assert filters.url(state="rma") == "?state=rma&rack=r1"


@pytest.mark.usefixtures("fleet_db")
def test_each_list_of_the_overview_marks_what_is_simulated(client: TestClient) -> None:
    for name in ("real", "sim"):
        store.nodes.add(fleet.new_node(name, simulated=name == "sim"))
        fleet.fail(name)
        store.nodes.add(fleet.new_node(f"{name}-2", simulated=name == "sim"))
        fleet.begin(f"{name}-2", name)
    text = page(client, "/")
    marked = re.findall(r"/node/([^\"]+)\">[^<]*</a>( <span class=\"sim\">simulated</span>)?", text)
    assert len(marked) >= 8
    assert {(name, bool(mark)) for name, mark in marked} == {
        ("real", False), ("real-2", False), ("sim", True), ("sim-2", True),
    }  # fmt: skip


@pytest.mark.both_dialects
def test_the_nodes_that_the_filters_leave_are_one_csv_without_formulas(client: TestClient) -> None:
    racks = (("a", "=1+1"), ("b", 'r"1,\n2'), ("c", HOSTILE), ("d", "r1; =1+1"), ("e", "r1;r-2"), ("f", "x,@SUM(1)"))
    for name, rack in racks:
        store.nodes.add(fleet.new_node(name, rack=rack))
    fleet.fail("b")
    answer = client.get("/nodes.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    header, *rows = csv.reader(io.StringIO(answer.text))
    table = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert (table["a"]["rack"], table["b"]["rack"], table["b"]["verdict"]) == ("'=1+1", 'r"1, 2', "FAIL")
    # Some spreadsheets take ";" for the end of a cell, whatever the quotes say.
    assert [table[name]["rack"] for name in "def"] == ["'r1; =1+1", "r1;r-2", "'x,@SUM(1)"]
    assert "\x1b" not in answer.text
    assert [row[0] for row in csv.reader(io.StringIO(client.get("/nodes.csv?state=quarantine").text))] == ["node", "b"]


@pytest.mark.both_dialects
def test_the_table_says_who_moved_a_node_after_its_last_test_and_why(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("a", rack="r1"))
    fleet.qualify("a")
    (headline,) = [row.headline for row in store.overview.rows()]

    def latest() -> tuple[str, str]:
        (row,) = csv.DictReader(io.StringIO(client.get("/nodes.csv").text))
        text = page(client, "/")
        return text[text.index('id="nodes"') :], row["latest"]

    assert headline in latest()[0]
    assert latest()[1] == headline
    store.nodes.move("a", State.QUARANTINE, "Ada", "smells of smoke")
    for shown in latest():
        assert "Ada" in shown
        assert "smells of smoke" in shown
        assert headline not in shown


@pytest.mark.both_dialects
@pytest.mark.parametrize("path", ["/node/a%00b", "/?q=a%00b", "/nodes.csv?rack=%00", "/report?dag_id=%00&run_id=x"])
def test_a_nul_is_refused_with_a_sentence_on_each_database(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.text.count("\n")) == (400, 1)


@pytest.mark.both_dialects
def test_a_nul_in_a_form_is_no_error_of_the_server(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    form = {"what": "move", "state": "quarantine", "reason": "a\0b", "confirmed": "yes"}
    assert client.post("/node/n1", data=form, follow_redirects=False).status_code < 500


def test_search_finds_serials_findings_xids_racks_and_names(client: TestClient) -> None:
    for name in ("x1", "x2", "x3", "y4"):
        store.nodes.add(fleet.new_node(name, rack="rack-9" if name == "y4" else "r1"))
    fleet.fail("x1")
    for name, code, text in (("x2", "79", "GPU has fallen off the bus"), ("x3", "31", "at 179")):
        labels = {"kind": "xid", "code": code}
        measured = Measurement("device_events", "xid", "gpu0", "text", None, text, labels)
        lease = fleet.begin(name)
        parsed, raw = fleet.result(node=name, measurements=[measured], serials={"gpu0": f"165{name}"})
        store.runs.begin_stage(lease.key, "intake", node=name)
        fleet.record(lease.key, parsed, fleet.judgement(), raw, node=name)
    assert store.overview.nodes_with("165x2") == {"x2"}
    assert store.overview.nodes_with("gemm_rate") == {"x1"}
    assert store.overview.nodes_with("xid 79") == store.overview.nodes_with("79") == {"x2"}
    assert store.overview.nodes_with("100%") == set()
    assert "/node/y4" in page(client, "/?q=rack-9")
    listed = page(client, "/?q=X2").partition("<caption>")[2]
    assert "/node/x2" in listed
    assert "/node/x1" not in listed


def test_text_from_outside_stays_text(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1", rack=HOSTILE, labels={HOSTILE: HOSTILE}, serials={"gpu0": HOSTILE}))
    found = fleet.finding(summary=HOSTILE, device=HOSTILE, source=HOSTILE)
    fleet.fail("n1", "", found)
    for path in ("/", "/node/n1", "/?q=%3Cscript%3E&rack=%22%3E%3Cscript%3E", "/node/n1?metric=%22%3E%3Cscript%3E",
                 "/run?dag_id=%3Cscript%3E&run_id=%22%3E%3Cscript%3E"):  # fmt: skip
        text = page(client, path)
        assert "<script>" not in text.replace('<script src="', ""), path
        assert "\x1b" not in text, path


def test_the_page_of_a_run_leads_to_its_node(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    run = fleet.fail("n1").run_id
    answer = client.get(f"/run?dag_id={fleet.DAG}&run_id={run}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/muster/node/n1")
    assert fleet.FINDING.summary in page(client, f"/report?dag_id={fleet.DAG}&run_id={run}&node=n1")


@pytest.mark.parametrize("path", ["/run", "/report"])
def test_the_page_of_a_task_leads_to_the_member_that_it_trained(client: TestClient, path: str) -> None:
    for name in ("n1", "n2"):
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
        store.runs.begin(
            RunKey("cluster_qualification", "block"), name, "short", "x", required_stages=["cluster_validation"]
        )
    asked = f"{path}?dag_id=cluster_qualification&run_id=block"
    override(client, access.node_of, "n2")
    answer = client.get(asked, follow_redirects=False)
    if path == "/run":
        assert (answer.status_code, answer.headers["location"]) == (303, "/muster/node/n2")
    else:
        assert (answer.status_code, "block" in answer.json()["detail"]) == (404, True)
    override(client, access.node_of, "n3")
    assert 'id="at-work"' in page(client, "/run?dag_id=cluster_qualification&run_id=block")
    if path == "/report":
        answer = client.get(asked, follow_redirects=False)
        assert answer.headers["location"] == "/muster/run?dag_id=cluster_qualification&run_id=block"


def test_the_page_of_a_run_that_only_asks_leads_to_the_node_it_asks_about(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    asked = "/run?dag_id=admission&run_id=n1__new"
    assert 'id="no-node"' in page(client, asked)
    override(client, access.node_of, "n1")
    assert client.get(asked, follow_redirects=False).headers["location"] == "/muster/node/n1"
    override(client, access.node_of, "unknown")
    assert 'id="no-node"' in page(client, asked)


def test_two_runs_are_compared_by_node_or_by_run(client: TestClient) -> None:
    for name in ("n1", "n2"):
        store.nodes.add(fleet.new_node(name))
    fleet.qualify("n1")
    run = fleet.fail("n2", "", fleet.finding(summary=HOSTILE)).run_id
    text = page(client, f"/compare?left=n1&right=n2/{fleet.DAG}/{run}")
    assert "gemm_rate" in text
    assert 'class="alone"' in text
    assert "<script>" not in text.replace('<script src="', "")
    for unknown in ("n3", "n1/dag/run", "n1/dag"):
        assert client.get("/compare", params={"left": "n1", "right": unknown}).status_code == 404
    store.nodes.add(fleet.new_node("n4"))
    assert client.get("/compare?left=n4&right=n1").status_code == 404


def test_the_page_of_a_block_names_its_members(client: TestClient) -> None:
    for name in ("n1", "n2"):
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
        lease = store.leases.acquire(name, RunKey("cluster_qualification", "block"))
        store.runs.begin(
            RunKey("cluster_qualification", "block"), name, "short", "x", required_stages=["cluster_validation"]
        )
        fleet.do_stage(lease, "cluster_validation")
    path = "/run?dag_id=cluster_qualification&run_id=block"
    assert 'id="at-work"' in page(client, path)
    store.runs.finish(RunKey("cluster_qualification", "block"), Verdict.PASS, "n1 is well.", node="n1")
    text = page(client, path)
    assert "n1 is well." in text
    assert "n2" in _part(text, "at-work", "members")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/node/unknown", 404),
        ("GET", "/nothing", 404),
        ("GET", "/?page=x", 422),
        ("GET", "/compare", 422),
        ("POST", "/node/n1", 422),
        ("POST", "/approvals/admission/r/ask", 422),
        ("POST", "/compare", 405),
    ],
)
def test_what_goes_wrong_is_a_page_for_browsers_and_json_for_programs(
    client: TestClient, method: str, path: str, status: int
) -> None:
    page_ = client.request(method, path, headers={"Accept": "text/html,*/*;q=0.8"})
    assert (page_.status_code, page_.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert "Content-Security-Policy" in page_.headers
    plain = client.request(method, path)
    assert (plain.status_code, plain.headers["content-type"]) == (status, "application/json")


def test_the_address_of_a_preview_opens_the_page_it_came_from(client: TestClient) -> None:
    for path, there in (("/node/n1/test", "/muster/node/n1"), ("/approvals/admission/r/ask", "/muster/approvals")):
        answer = client.get(path, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, there)


def test_questions_come_in_pages(client: TestClient) -> None:
    override(client, approvals.pending, [question("n1")] * approvals.PAGE)
    assert "page=2" not in page(client, "/approvals")
    override(client, approvals.pending, [question("n1")] * (approvals.PAGE + 1))
    text = page(client, "/approvals")
    assert text.count('class="question"') == approvals.PAGE
    assert "page=2" in text
    assert "page=1" in page(client, "/approvals?page=2")
    assert client.get("/approvals?page=0").status_code == 422


def test_filters_apply_to_what_runs_and_what_changed_and_the_rest_is_counted(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2")):
        store.nodes.add(fleet.new_node(name, rack=rack))
        fleet.qualify(name)
        fleet.begin(name, f"{name}__again")
    text = page(client, "/?rack=r2")
    for part in (_part(text, "running", "changed"), _part(text, "changed", "nodes")):
        assert "/node/c" in part
        assert "/node/a" not in part
    monkeypatch.setattr(overview, "RUNS_MAX", 1)
    monkeypatch.setattr(overview, "MOVES_MAX", 1)
    text = page(client, "/")
    running = _part(text, "running", "changed")
    assert ("/node/a" in running, "/node/c" in running, 'data-more="2"' in running) == (True, False, True)
    assert 'data-more="2"' in _part(text, "changed", "nodes")


def test_all_that_was_given_up_is_counted(client: TestClient) -> None:
    for number in range(101):
        store.outbox.add(f"{number}", b"")
    for each in store.outbox.pending(101):
        store.outbox.failed(each.id, b"", "554 no such user", park=True)
    assert ["101"] in notices(page(client, "/"))


def test_a_held_rack_is_a_notice_whatever_state_its_nodes_are_in(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("a", rack="R-4711"))
    store.racks.hold(RunKey("cluster_qualification", "b"), "R-4711", ["imex"], "IMEX is not up", ["a"])
    (notice,) = notices(page(client, "/"))
    assert notice.count("4711") == 2, "what is held, and the command that ends it"


def test_a_paused_node_is_marked_on_the_overview_until_the_pause_ends(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node("n1"))
    assert ">paused<" not in page(client, "/")
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)
    store.pauses.pause("n1", until, "Ada", "a technician is there")
    assert ">paused<" in page(client, "/")
    monkeypatch.setattr(overview, "_now", lambda: until)
    assert ">paused<" not in page(client, "/")


def test_commands_in_sentences_are_marked_as_code_and_the_rest_stays_text(client: TestClient) -> None:
    text = client.get("/node/none", headers={"Accept": "text/html"}).text
    assert "<code>muster node list</code>" in text
    hostile = client.get("/node/%60%3Cscript%3E%60", headers={"Accept": "text/html"}).text
    assert "<script>" not in hostile


def test_no_verdict_is_counted_or_listed_of_a_node_that_has_left_the_fleet(client: TestClient) -> None:
    for name in ("a", "b"):
        store.nodes.add(fleet.new_node(name))
        fleet.fail(name)
    move("b", State.RETIRED, "Ada", "sold")
    rows, _ = overview.fleet_now()
    assert web_fleet.verdict_counts(rows) == [("FAIL", 1, 0)]
    listed = {state: web_fleet.chosen(rows, Filters(state=state, verdict="FAIL"), ()) for state in ("", "gone")}
    assert {state: [row.node for row in found] for state, found in listed.items()} == {"": ["a"], "gone": []}
