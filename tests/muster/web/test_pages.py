"""The Fleet page's content from real records. Access is tested with a real Airflow in tests/dags/test_fleet_page.py."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from muster import records
from muster.lifecycle.transitions import State
from muster.web import access, actions, approvals, overview, starts, timeline
from muster.web import app as web
from muster.web.shared import Shared
from muster_criteria.model import Verdict
from muster_node.contract import Measurement
from tests.muster import fleet

HOSTILE = "<script>alert(1)</script>\x1b[2J‮"


@pytest.fixture
def client(fleet_db: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    # Each test has other records under the same version numbers.
    monkeypatch.setattr(overview, "_shared_rows", Shared(1))
    monkeypatch.setattr(overview, "_shared_notices", Shared(1))
    monkeypatch.setattr(overview, "_shared_parts", Shared(32))
    app = web.create_app()
    for guard in (web.read, actions.decide, starts.start, starts.audited, approvals.respond, approvals.audited):
        app.dependency_overrides[guard] = lambda: None
    for may in (actions.may_decide, starts.may_start):
        app.dependency_overrides[may] = lambda: True
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="ada", role="user")
    for asked, nothing in ((approvals.waiting, 0), (approvals.about, []), (access.node_of, "")):
        app.dependency_overrides[asked] = lambda nothing=nothing: nothing
    with TestClient(app, headers={"Origin": "http://testserver"}) as made:
        yield made


def page(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.usefixtures("fleet_db")
def test_no_route_is_without_airflows_login() -> None:
    app = web.create_app()
    assert app.routes
    for route in app.routes:
        assert isinstance(route, APIRoute), f"{route} is mounted, and no dependency of the app guards it"
        guards = [each.call for each in route.dependant.dependencies]
        assert web.read in guards
        if route.methods != {"GET"}:
            assert actions.from_this_page in guards
            assert {actions.decide, approvals.respond, starts.start} & set(guards)


def test_an_empty_fleet_says_how_to_begin(client: TestClient) -> None:
    assert "muster node add" in page(client, "/")


@pytest.mark.both_dialects
def test_sick_nodes_stand_first_with_their_reason(client: TestClient) -> None:
    for name in ("a", "b", "c"):
        records.add_node(fleet.new_node(name, rack="r1"))
    fleet.fail("b")
    fleet.qualify("c")
    text = page(client, "/")
    assert "gpu3 is slow." in text[text.index("Needs a person") : text.index("Running")]
    assert text.index("/node/b") < text.index("/node/a")
    only = page(client, "/?state=qualified")
    assert "/node/c" in only
    assert "/node/b" not in only[only.index("<caption>") :]


@pytest.mark.both_dialects
def test_the_nodes_that_the_filters_leave_are_one_csv_without_formulas(client: TestClient) -> None:
    for name, rack in (("a", "=1+1"), ("b", 'r"1,\n2'), ("c", HOSTILE)):
        records.add_node(fleet.new_node(name, rack=rack))
    fleet.fail("b")
    answer = client.get("/nodes.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    header, *rows = csv.reader(io.StringIO(answer.text))
    table = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert (table["a"]["rack"], table["b"]["rack"], table["b"]["verdict"]) == ("'=1+1", 'r"1, 2', "FAIL")
    assert "\x1b" not in answer.text
    assert [row[0] for row in csv.reader(io.StringIO(client.get("/nodes.csv?state=quarantine").text))] == ["node", "b"]


def test_search_finds_serials_findings_xids_racks_and_names(client: TestClient) -> None:
    for name in ("x1", "x2", "x3", "y4"):
        records.add_node(fleet.new_node(name, rack="rack-9" if name == "y4" else "r1"))
    fleet.fail("x1")
    for name, measured in (
        ("x2", Measurement("xids", "xid", "gpu0", "text", None, "GPU has fallen off the bus", {"code": "79"})),
        ("x3", Measurement("xids", "xid", "gpu0", "text", None, "at 179", {"code": "31"})),
    ):
        lease = fleet.begin(name)
        parsed, raw = fleet.result(node=name, measurements=[measured], serials={"gpu0": f"165{name}"})
        records.begin_stage(lease.dag_id, lease.run_id, "intake", node=name)
        records.record_stage(lease.dag_id, lease.run_id, parsed, fleet.judgement(), raw, node=name)
    assert records.nodes_with("165x2") == {"x2"}
    assert records.nodes_with("gemm_rate") == {"x1"}
    assert records.nodes_with("xid 79") == records.nodes_with("79") == {"x2"}
    assert records.nodes_with("100%") == set()
    assert "/node/y4" in page(client, "/?q=rack-9")
    listed = page(client, "/?q=X2").partition("<caption>")[2]
    assert "/node/x2" in listed
    assert "/node/x1" not in listed


def test_a_figure_without_a_limit_is_shown_below_the_judged_ones(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    measured = [Measurement("gemm_rate", name, "gpu0", "TFLOPS", 640.0) for name in ("judged", "not_judged")]
    parsed, raw = fleet.result(node="n1", measurements=measured)
    found = fleet.judged(measured, floor=600.0)
    seen = (found.observations[0], dataclasses.replace(found.observations[1], floor=None))
    records.begin_stage(lease.dag_id, lease.run_id, "intake", node="n1")
    records.record_stage(
        lease.dag_id, lease.run_id, parsed, dataclasses.replace(found, observations=seen), raw, node="n1"
    )
    records.finish_run(lease.dag_id, lease.run_id, Verdict.PROVISIONAL, "not all is judged")
    figures = page(client, "/node/n1").partition('id="figures"')[2]
    judged, _, unlimited = figures.partition("<details>")
    assert 'aria-label="judged:' in judged
    assert 'aria-label="not_judged:' in unlimited


def test_a_node_shows_its_figures_findings_history_and_parts(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1", serials={"gpu0": "S-1"}))
    fleet.fail("n1")
    text = page(client, "/node/n1?metric=gemm_rate")
    for expected in ("gpu3 is slow.", fleet.FINDING.summary, "S-1", "enrolled", "at least 600 TFLOPS", "n1__new"):
        assert expected in text, expected
    assert client.get("/node/unknown").status_code == 404


def test_text_from_outside_stays_text(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1", rack=HOSTILE, labels={HOSTILE: HOSTILE}, serials={"gpu0": HOSTILE}))
    found = fleet.finding(summary=HOSTILE, device=HOSTILE, source=HOSTILE)
    fleet.fail("n1", "", found)
    for path in ("/", "/node/n1", "/?q=%3Cscript%3E&rack=%22%3E%3Cscript%3E", "/node/n1?metric=%22%3E%3Cscript%3E",
                 "/run?dag_id=%3Cscript%3E&run_id=%22%3E%3Cscript%3E"):  # fmt: skip
        text = page(client, path)
        assert "<script>" not in text.replace('<script src="', ""), path
        assert "\x1b" not in text, path


def _version(text: str) -> str:
    (version,) = re.findall(r'data-version="([^"]+)"', text)
    return str(version)


def _override(client: TestClient, dependency: Callable[..., object], value: object) -> None:
    app = client.app
    assert isinstance(app, FastAPI)
    app.dependency_overrides[dependency] = lambda: value


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> list[datetime.datetime]:
    """The page's clock, which stands still."""
    clock = [datetime.datetime(2026, 5, 4, 12, 0, 0, tzinfo=datetime.UTC)]
    monkeypatch.setattr(overview, "_now", lambda: clock[0])
    return clock


def test_the_live_part_is_empty_until_something_changes(client: TestClient, noon: list[datetime.datetime]) -> None:
    records.add_node(fleet.new_node("n1"))
    version = _version(page(client, "/"))
    assert client.get(f"/live?version={version}").status_code == 204
    lease = fleet.begin("n1")
    changed = client.get(f"/live?version={version}")
    assert changed.status_code == 200
    assert lease.run_id in changed.text
    assert client.get(f"/live?version={_version(changed.text)}").status_code == 204


def test_the_live_part_is_renewed_by_time_questions_and_notices(
    client: TestClient, noon: list[datetime.datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    records.add_node(fleet.new_node("n1"))
    version = _version(page(client, "/"))
    _override(client, approvals.waiting, 2)
    asked = client.get(f"/live?version={version}")
    assert "2 questions wait" in asked.text
    version = _version(asked.text)
    lag = records.AuditLag("siem", 7, None, "refused")
    monkeypatch.setattr(records, "audit_lags", lambda: [lag])
    noon[0] += datetime.timedelta(seconds=overview.NOTICES_S)
    noticed = client.get(f"/live?version={version}")
    assert "audit stream siem: 7 events wait" in noticed.text
    version = _version(noticed.text)
    noon[0] += datetime.timedelta(minutes=1)
    assert client.get(f"/live?version={version}").status_code == 200, "the time left moves on"


def test_the_live_part_is_rendered_once_for_all_viewers(
    client: TestClient, noon: list[datetime.datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    records.add_node(fleet.new_node("n1"))
    made: list[object] = []
    read = overview._overview
    monkeypatch.setattr(overview, "_overview", lambda filters: made.append(filters) or read(filters))
    with ThreadPoolExecutor(4) as pool:
        texts = set(pool.map(lambda _: page(client, "/live"), range(8)))
    assert (len(texts), len(made)) == (1, 1)
    page(client, "/live?state=production")
    fleet.fail("n1")
    assert "gpu3 is slow." in page(client, "/live")
    assert len(made) == 3


def test_what_could_not_be_made_is_made_anew() -> None:
    shared = Shared[int](2)
    with pytest.raises(ZeroDivisionError):
        shared.get("a", lambda: 1 // 0)
    assert (shared.get("a", lambda: 1), shared.get("a", lambda: 2)) == (1, 1)
    for key in ("b", "c"):
        shared.get(key, lambda: 3)
    assert shared.get("a", lambda: 4) == 4, "the oldest value is let go"


def test_a_held_verdict_waits_for_a_person(client: TestClient) -> None:
    row = dataclasses.replace(
        _row("n1", State.PRODUCTION), held="dag/run", headline="gpu3 is slow.", verdict=Verdict.FAIL
    )
    (waiting,) = web.fleet.attention([row, _row("n2", State.PRODUCTION)])
    assert (waiting.node, waiting.why) == ("n1", "gpu3 is slow.")


def test_the_page_of_a_run_leads_to_its_node(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1"))
    run = fleet.fail("n1").run_id
    answer = client.get(f"/run?dag_id={fleet.DAG}&run_id={run}", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/muster/node/n1")
    assert "gpu3 is slow." in page(client, f"/report?dag_id={fleet.DAG}&run_id={run}&node=n1")


@pytest.mark.parametrize("path", ["/run", "/report"])
def test_the_page_of_a_task_leads_to_the_member_that_it_trained(client: TestClient, path: str) -> None:
    for name in ("n1", "n2"):
        records.add_node(fleet.new_node(name))
        fleet.qualify(name)
        records.begin_run("cluster_qualification", "block", name, "short", "x", required_stages=["cluster_validation"])
    asked = f"{path}?dag_id=cluster_qualification&run_id=block"
    _override(client, access.node_of, "n2")
    answer = client.get(asked, follow_redirects=False)
    if path == "/run":
        assert (answer.status_code, answer.headers["location"]) == (303, "/muster/node/n2")
    else:
        assert (answer.status_code, "has not ended yet" in answer.text) == (404, True)
    _override(client, access.node_of, "n3")
    assert "Still running on" in page(client, "/run?dag_id=cluster_qualification&run_id=block")
    if path == "/report":
        answer = client.get(asked, follow_redirects=False)
        assert answer.headers["location"] == "/muster/run?dag_id=cluster_qualification&run_id=block"


def test_the_page_of_a_run_that_only_asks_leads_to_the_node_it_asks_about(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1"))
    asked = "/run?dag_id=admission&run_id=n1__new"
    assert "has tested no node" in page(client, asked)
    _override(client, access.node_of, "n1")
    assert client.get(asked, follow_redirects=False).headers["location"] == "/muster/node/n1"
    _override(client, access.node_of, "unknown")
    assert "has tested no node" in page(client, asked)


def test_a_nodes_history_is_one_list(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1", serials={"gpu0": "S-1"}))
    run = fleet.fail("n1").run_id
    text = page(client, "/node/n1")
    history = text[text.index("History") :]
    for expected in ("<td>state</td>", "<td>test</td>", "<td>part</td>", "S-1", "gpu3 is slow.", f"/runs/{run}"):
        assert expected in history, expected
    assert f"/dags/{fleet.DAG}/runs/{run}/tasks/intake" in text, "a stage leads to its task's log"


def test_the_timeline_is_sorted_and_keeps_the_latest() -> None:
    def at(day: int) -> datetime.datetime:
        return datetime.datetime(2026, 5, day, tzinfo=datetime.UTC)

    event = records.EventRecord("n1", at(2), State.REGISTERED, State.INTAKE, "muster", "x", {})
    parts = [records.PlacementRecord("n1", "gpu0", "gpu", "S-1", at(1), at(4))]
    certificate = records.CertificateRecord("c-1", "n1", at(3), at(9), "PASS", None, "a FAIL", "")
    found = timeline.timeline([event], [], certificate, parts, 3)
    assert [(each.at.day, each.kind) for each in found] == [(4, "part"), (3, "certificate"), (2, "state")]
    assert "revoked: a FAIL" in found[1].what


def test_two_runs_are_compared_by_node_or_by_run(client: TestClient) -> None:
    for name in ("n1", "n2"):
        records.add_node(fleet.new_node(name))
    fleet.qualify("n1")
    run = fleet.fail("n2", "", fleet.finding(summary=HOSTILE)).run_id
    text = page(client, f"/compare?left=n1&right=n2/{fleet.DAG}/{run}")
    assert "gemm_rate" in text
    assert "Found here alone" in text
    assert "<script>" not in text.replace('<script src="', "")
    for unknown in ("n3", "n1/dag/run", "n1/dag"):
        assert client.get("/compare", params={"left": "n1", "right": unknown}).status_code == 404
    records.add_node(fleet.new_node("n4"))
    assert client.get("/compare?left=n4&right=n1").status_code == 404


def test_the_page_of_a_block_names_its_members(client: TestClient) -> None:
    for name in ("n1", "n2"):
        records.add_node(fleet.new_node(name))
        fleet.qualify(name)
        lease = records.acquire_lease(name, "cluster_qualification", "block")
        records.begin_run("cluster_qualification", "block", name, "short", "x", required_stages=["cluster_validation"])
        fleet.do_stage(lease, "cluster_validation")
    path = "/run?dag_id=cluster_qualification&run_id=block"
    assert "Still running on" in page(client, path)
    records.finish_run("cluster_qualification", "block", Verdict.PASS, "n1 is well.", node="n1")
    text = page(client, path)
    assert "n1 is well." in text
    assert "n2" in text[text.index("Still running on") : text.index("Members")]


def test_a_change_is_previewed_then_recorded_under_the_login(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1"))
    fleet.qualify("n1")
    form = {"what": "move", "state": "quarantine", "reason": "smells of smoke"}
    preview = client.post("/node/n1", data=form)
    assert "it is not tested while it is in quarantine" in preview.text
    assert records.get_node("n1").state is State.QUALIFIED
    done = client.post("/node/n1", data={**form, "confirmed": "yes"}, follow_redirects=False)
    assert done.status_code == 303
    event = records.node_events("n1")[-1]
    assert (event.to_state, event.actor, event.login, event.reason) == (
        State.QUARANTINE, "ada", "airflow:ada", "smells of smoke",
    )  # fmt: skip


def test_shadow_mode_is_ended_from_the_page(client: TestClient) -> None:
    records.adopt_nodes([], "Ada", "serves", enrol=[("", fleet.new_node("n1"))])
    assert "shadow mode" in page(client, "/node/n1")
    form = {"what": "verify", "reason": "seen it serve"}
    assert "a FAIL will withdraw it" in client.post("/node/n1", data=form).text
    assert records.get_node("n1").shadow
    assert client.post("/node/n1", data={**form, "confirmed": "1"}, follow_redirects=False).status_code == 303
    assert not records.get_node("n1").shadow


def test_a_finding_is_waived_from_the_page(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1"))
    fleet.fail("n1")
    (found,) = records.open_findings("n1")
    form = {
        "what": "waive",
        "finding": found.finding.id,
        "until": "2999-01-01",
        "reason": "a known one",
        "confirmed": "1",
    }
    assert client.post("/node/n1", data=form, follow_redirects=False).status_code == 303
    (waiver,) = records.list_waivers(node="n1")
    assert (waiver.person, waiver.until.isoformat()[:10]) == ("ada", "2999-01-02")


def test_a_finding_of_another_node_is_not_waived(client: TestClient) -> None:
    for name in ("n1", "n2"):
        records.add_node(fleet.new_node(name))
    fleet.fail("n2")
    (found,) = records.open_findings("n2")
    form = {"what": "waive", "finding": found.finding.id, "until": "2999-01-01", "reason": "x", "confirmed": "1"}
    assert client.post("/node/n1", data=form).status_code == 400
    assert not records.list_waivers(node="n2")


@pytest.mark.parametrize(
    "form",
    [
        {"what": "move", "state": "quarantine"},
        {"what": "move", "state": "production", "reason": "it looks well"},
        {"what": "move", "state": "heaven", "reason": "it was good"},
        {"what": "waive", "finding": "f-000", "until": "2999-01-01", "reason": "x"},
        {"what": "waive", "finding": "f-000", "until": "soon", "reason": "x"},
        {"what": "keep", "reason": "x"},
        {"what": "burn", "reason": "x"},
    ],
)
@pytest.mark.parametrize("confirmed", ["", "yes"])
def test_what_cannot_be_done_changes_nothing(client: TestClient, form: dict[str, str], confirmed: str) -> None:
    records.add_node(fleet.new_node("n1"))
    before = records.fleet_version()
    answer = client.post("/node/n1", data={**form, "confirmed": confirmed})
    assert answer.status_code == 400
    assert "Nothing was changed" in answer.text
    assert records.fleet_version() == before


def test_a_test_is_previewed_with_its_time_and_risks_and_refused_where_it_would_not_get_the_node(
    client: TestClient,
) -> None:
    records.add_node(fleet.new_node("n1"))
    form = {"level": "short", "reason": "new fan"}
    text = client.post("/node/n1/test", data=form).text
    for expected in ("n1__new-fan", "node_qualification", "under load", "a FAIL puts it into quarantine"):
        assert expected in text, expected
    for wrong in ({"level": "short"}, {"level": "heroic", "reason": "x"}):
        assert client.post("/node/n1/test", data=wrong).status_code == 400
    fleet.begin("n1")
    refused = client.post("/node/n1/test", data={**form, "confirmed": "yes"})
    assert (refused.status_code, "Nothing was changed" in refused.text) == (400, True)


def test_behind_a_proxy_the_configured_address_is_the_pages_origin(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.add_node(fleet.new_node("n1"))
    form = {"what": "move", "state": "quarantine", "reason": "x"}
    origin = {"Origin": "https://fleet.example"}
    assert client.post("/node/n1", data=form, headers=origin).status_code == 403
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://fleet.example/airflow")
    assert client.post("/node/n1", data=form, headers=origin).status_code == 200
    for other in ("http://fleet.example", "https://evil.example", "", "null"):
        assert client.post("/node/n1", data=form, headers={"Origin": other, "Host": ""}).status_code == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", ""])
def test_a_form_of_another_site_is_refused(client: TestClient, origin: str) -> None:
    records.add_node(fleet.new_node("n1"))
    form = {"what": "move", "state": "quarantine", "reason": "x", "confirmed": "yes"}
    assert client.post("/node/n1", data=form, headers={"Origin": origin}).status_code == 403
    assert records.get_node("n1").state is State.REGISTERED


def _row(name: str, state: State) -> records.FleetRow:
    return records.FleetRow(name, state, "cpu-generic", "r1", False, "", None, "", "", None, "", None, None)


def _question(node: str, *, answerable: bool = True) -> approvals.Question:
    """An open question, as Airflow keeps it; the real one is asked in tests/dags/test_fleet_page.py."""
    now = datetime.datetime.now(datetime.UTC)
    return approvals.Question(approvals.ADMISSION, "r", "ask", node, HOSTILE, ("Admit", "RMA"), now, answerable)


def _ask(client: TestClient, node: str, *, answerable: bool = True) -> str:
    """The page with one open question."""
    _override(client, approvals.pending, [_question(node, answerable=answerable)])
    return page(client, "/approvals")


def test_a_nodes_open_question_is_answered_on_its_page(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1"))
    fleet.fail("n1")
    assert "<option>RMA" not in page(client, "/node/n1")
    _override(client, approvals.about, [_question("n1")])
    text = page(client, "/node/n1")
    for expected in ("<option>RMA", "A person decides, since:", '<input type="hidden" name="node" value="n1">'):
        assert expected in text, expected
    assert "<script>" not in text.replace('<script src="', "")
    _override(client, approvals.answer, None)
    path = "/approvals/admission/r/ask"
    for back, there in (
        ("n1", "/muster/node/n1"),
        ("//evil.example", "/muster/node/%2F%2Fevil.example"),
        ("", "/muster/approvals"),
    ):
        answer = client.post(path, data={"node": back, "option": "Admit", "reason": "x"}, follow_redirects=False)
        assert answer.headers["location"] == there


def test_a_question_stands_beside_its_evidence(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1"))
    fleet.fail("n1", "", fleet.finding(summary=HOSTILE), fleet.FINDING)
    text = _ask(client, "n1")
    for expected in ("gpu3 is slow.", fleet.FINDING.summary, "/node/n1", "<option>RMA"):
        assert expected in text, expected
    assert "<script>" not in text
    assert "<form" not in _ask(client, "n1", answerable=False)
    assert "/node/n2" not in _ask(client, "n2"), "a node that was removed has no evidence"


def test_an_answer_needs_a_reason_and_the_pages_own_form(client: TestClient) -> None:
    path = "/approvals/admission/r/ask"
    assert client.post(path, data={"option": "Admit", "reason": " "}).status_code == 400
    form = {"option": "Admit", "reason": "seen it"}
    for origin in ("http://evil.example", "null", ""):
        assert client.post(path, data=form, headers={"Origin": origin}).status_code == 403
    assert client.post("/approvals/node_qualification/r/ask", data=form).status_code == 422


@pytest.mark.parametrize("login", ["admin", "root", ""])
def test_a_login_that_names_no_person_answers_nothing(client: TestClient, login: str) -> None:
    app = client.app
    assert isinstance(app, FastAPI)
    app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username=login, role="user")
    answer = client.post("/approvals/admission/r/ask", data={"option": "Admit", "reason": "seen it"})
    assert answer.status_code == 400
    assert "names no person" in answer.text


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


def test_a_chosen_metric_and_a_chosen_curve_stand_side_by_side(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    records.begin_stage(lease.dag_id, lease.run_id, "intake", node="n1")
    parsed, raw = fleet.result(node="n1")
    records.record_stage(lease.dag_id, lease.run_id, parsed, fleet.judgement(), raw, fleet.telemetry(10), node="n1")
    records.finish_run(lease.dag_id, lease.run_id, Verdict.PASS, "All is well.")
    text = page(client, "/node/n1?metric=gemm_rate&curve=x")
    assert '<input type="hidden" name="curve" value="x">' in text
    assert '<input type="hidden" name="metric" value="gemm_rate">' in text


def test_questions_come_in_pages(client: TestClient) -> None:
    _override(client, approvals.pending, [_question("n1")] * approvals.PAGE)
    assert "page=2" not in page(client, "/approvals")
    _override(client, approvals.pending, [_question("n1")] * (approvals.PAGE + 1))
    text = page(client, "/approvals")
    assert text.count('class="question"') == approvals.PAGE
    assert "page=2" in text
    assert "page=1" in page(client, "/approvals?page=2")
    assert client.get("/approvals?page=0").status_code == 422


def test_without_the_permission_the_node_page_has_no_forms(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1"))
    assert 'method="post"' in page(client, "/node/n1")
    app = client.app
    assert isinstance(app, FastAPI)
    for may in (actions.may_decide, starts.may_start):
        app.dependency_overrides[may] = lambda: False
    assert 'method="post"' not in page(client, "/node/n1")


def test_a_node_that_a_person_moved_shows_that_reason_and_no_repair_of_findings() -> None:
    row = dataclasses.replace(_row("n1", State.QUARANTINE), headline="All is well.", moved_for="smells of smoke")
    (waiting,) = web.fleet.attention([row])
    assert waiting.why == "smells of smoke"
    assert waiting.todo != web.fleet.TODO[State.QUARANTINE]
    tested = dataclasses.replace(row, headline="gpu3 is slow.", moved_for="")
    (waiting,) = web.fleet.attention([tested])
    assert (waiting.why, waiting.todo) == ("gpu3 is slow.", web.fleet.TODO[State.QUARANTINE])


def test_the_last_attempt_that_was_skipped_is_a_line_beside_the_last_verdict(client: TestClient) -> None:
    records.add_node(fleet.new_node("n1"))
    fleet.fail("n1")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        records.move_node("n1", state, "Ada", "repaired")
    lease = fleet.begin("n1", "skipped")
    records.finish_run(lease.dag_id, lease.run_id, Verdict.SKIPPED, "A job took the node.")
    records.release_leases(lease.dag_id, lease.run_id, "over")
    text = page(client, "/node/n1")
    assert fleet.FINDING.summary in text
    assert "gpu3 is slow." in text
    assert "Last attempt skipped: A job took the node." in text
    fleet.qualify("n1", "again")
    assert "Last attempt skipped" not in page(client, "/node/n1")


def test_filters_apply_to_what_runs_and_what_changed_and_the_rest_is_counted(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2")):
        records.add_node(fleet.new_node(name, rack=rack))
        fleet.qualify(name)
        fleet.begin(name, f"{name}__again")
    text = page(client, "/?rack=r2")
    for part in (text[text.index("<h2>Running") : text.index("<h2>Changed")], text[text.index("<h2>Changed") :]):
        assert "/node/c" in part
        assert "/node/a" not in part
    monkeypatch.setattr(overview, "RUNS_MAX", 1)
    monkeypatch.setattr(overview, "MOVES_MAX", 1)
    text = page(client, "/")
    running = text[text.index("<h2>Running") : text.index("<h2>Changed")]
    assert ("/node/a" in running, "/node/c" in running, "and 2 more" in running) == (True, False, True)
    assert "and 2 more" in text[text.index("<h2>Changed") : text.index("<h2>Nodes")]
