"""What a person changes from the Fleet page: moves, waivers, tests, answers."""

from __future__ import annotations

import dataclasses

import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dagrun import DagRun
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from muster import store
from muster.model.dags import NODE_QUALIFICATION, NODE_REVALIDATION
from muster.model.runs import RunKey
from muster.model.states import State
from muster.web import access, approvals
from tests.muster import fleet
from tests.muster.web.conftest import HOSTILE, ask, override, page, question
from tests.support import lives

LEVEL = 'name="level"'
"""The field of the form that starts a test."""


def test_a_change_is_previewed_then_recorded_under_the_login(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.qualify("n1")
    form = {"what": "move", "state": "quarantine", "reason": "smells of smoke"}
    assert LEVEL in client.get("/node/n1").text
    preview = client.post("/node/n1", data=form)
    assert "scheduler: " in preview.text
    assert store.nodes.get("n1").state is State.QUALIFIED
    done = client.post("/node/n1", data={**form, "confirmed": "yes"}, follow_redirects=False)
    assert done.status_code == 303
    assert LEVEL not in client.get("/node/n1").text, "no test gets it there"
    event = store.nodes.events("n1")[-1]
    assert (event.to_state, event.actor, event.login, event.reason) == (
        State.QUARANTINE, "ada", "airflow:ada", "smells of smoke",
    )  # fmt: skip


def test_shadow_mode_is_ended_from_the_page(client: TestClient) -> None:
    store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node("n1"))])
    assert "shadow mode" in page(client, "/node/n1")
    form = {"what": "verify", "reason": "seen it serve"}
    assert client.post("/node/n1", data=form).status_code == 200
    assert store.nodes.get("n1").shadow
    assert client.post("/node/n1", data={**form, "confirmed": "1"}, follow_redirects=False).status_code == 303
    assert not store.nodes.get("n1").shadow


def test_a_finding_is_waived_from_the_page(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.fail("n1")
    (found,) = store.verdicts.open_findings("n1")
    form = {
        "what": "waive",
        "finding": found.finding.id,
        "until": "2999-01-01",
        "reason": "a known one",
        "confirmed": "1",
    }
    assert client.post("/node/n1", data=form, follow_redirects=False).status_code == 303
    (waiver,) = store.waivers.find(node="n1")
    assert (waiver.person, waiver.last_day.isoformat()) == ("ada", "2999-01-01")
    assert waiver.until.isoformat() == "2999-01-02T00:00:00+00:00"


def test_tests_are_paused_and_resumed_from_the_page(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.begin("n1", "at-work")
    assert "is paused" not in page(client, "/node/n1")
    form = {"what": "pause", "until": "2999-01-01", "reason": "a technician is there"}
    assert "at-work" in client.post("/node/n1", data=form).text
    assert store.nodes.get("n1").pause is None
    assert client.post("/node/n1", data={**form, "confirmed": "1"}, follow_redirects=False).status_code == 303
    pause = store.nodes.get("n1").pause
    assert pause is not None
    assert (pause.person, pause.last_day.isoformat(), pause.reason) == ("ada", "2999-01-01", "a technician is there")
    assert page(client, "/node/n1").count(str(pause)) == 2, "beside its name and in its history"
    assert store.nodes.events("n1")[-1].login == "airflow:ada"
    form = {"what": "resume", "reason": "it is back", "confirmed": "1"}
    assert client.post("/node/n1", data=form, follow_redirects=False).status_code == 303
    assert store.nodes.get("n1").pause is None


def test_a_finding_of_another_node_is_not_waived(client: TestClient) -> None:
    for name in ("n1", "n2"):
        store.nodes.add(fleet.new_node(name))
    fleet.fail("n2")
    (found,) = store.verdicts.open_findings("n2")
    form = {"what": "waive", "finding": found.finding.id, "until": "2999-01-01", "reason": "x", "confirmed": "1"}
    assert client.post("/node/n1", data=form).status_code == 400
    assert not store.waivers.find(node="n2")


@pytest.mark.parametrize(
    "form",
    [
        {"what": "move", "state": "quarantine"},
        {"what": "move", "state": "production", "reason": "it looks well"},
        {"what": "move", "state": "heaven", "reason": "it was good"},
        {"what": "waive", "finding": "f-000", "until": "2999-01-01", "reason": "x"},
        {"what": "waive", "finding": "f-000", "until": "soon", "reason": "x"},
        {"what": "keep", "reason": "x", "held": "d/r"},
        {"what": "resume", "reason": "x"},
        {"what": "pause", "until": "2999-01-01"},
        {"what": "pause", "until": "soon", "reason": "x"},
        {"what": "pause", "until": "2020-01-01", "reason": "x"},
        {"what": "burn", "reason": "x"},
    ],
)
@pytest.mark.parametrize("confirmed", ["", "yes"])
def test_what_cannot_be_done_changes_nothing(client: TestClient, form: dict[str, str], confirmed: str) -> None:
    store.nodes.add(fleet.new_node("n1"))
    before = store.overview.version()
    answer = client.post("/node/n1", data={**form, "confirmed": confirmed})
    assert answer.status_code == 400
    assert store.overview.version() == before


def test_a_test_is_previewed_with_its_time_and_risks_and_refused_where_it_would_not_get_the_node(
    client: TestClient,
) -> None:
    store.nodes.add(fleet.new_node("n1"))
    form = {"level": "short", "reason": "new fan"}
    text = client.post("/node/n1/test", data=form).text
    for expected in ("n1__new-fan", "node_qualification", "under load", "a FAIL puts it into quarantine"):
        assert expected in text
    for wrong in ({"level": "short"}, {"level": "heroic", "reason": "x"}):
        assert client.post("/node/n1/test", data=wrong).status_code == 400
    fleet.begin("n1")
    assert client.post("/node/n1/test", data={**form, "confirmed": "yes"}).status_code == 400


@pytest.mark.parametrize("confirmed", ["", "yes"])
def test_a_run_that_airflow_alone_has_is_not_started_again(
    client: TestClient, dag_runs: Engine, confirmed: str
) -> None:
    store.nodes.add(fleet.new_node("n1"))
    with dag_runs.begin() as airflow:
        queued = {"dag_id": NODE_QUALIFICATION, "run_id": "n1__new-fan", "run_type": "manual"}
        more = {"run_after": store.clock.now(), "log_template_id": 1, "span_status": "not_started"}
        airflow.execute(DagRun.metadata.tables["dag_run"].insert().values(**queued, **more))
    form = {"level": "short", "reason": "new fan", "confirmed": confirmed}
    assert client.post("/node/n1/test", data=form).status_code == 400


@pytest.mark.parametrize("may", [NODE_QUALIFICATION, NODE_REVALIDATION])
def test_who_may_start_runs_of_the_dag_that_tests_the_node_sees_the_form_and_no_one_else_starts_it(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, may: str
) -> None:
    assert isinstance(client.app, FastAPI)
    for guard in (access.start, access.may_start):
        del client.app.dependency_overrides[guard]
    monkeypatch.setattr(access, "allowed", lambda user, method, entity, dag_id: dag_id == may)
    for name in ("new", "serves"):
        store.nodes.add(fleet.new_node(name))
    lives.in_production("serves")
    tested = {NODE_QUALIFICATION: "new", NODE_REVALIDATION: "serves"}
    for dag_id, name in tested.items():
        form = {"level": "short", "reason": "new fan"}
        assert (LEVEL in page(client, f"/node/{name}")) is (dag_id == may)
        assert (client.post(f"/node/{name}/test", data=form).status_code != 403) is (dag_id == may)
    assert client.post("/node/unknown/test", data=form).status_code == 404


def test_behind_a_proxy_the_configured_address_is_the_pages_origin(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node("n1"))
    form = {"what": "move", "state": "quarantine", "reason": "x"}
    origin = {"Origin": "https://fleet.example"}
    assert client.post("/node/n1", data=form, headers=origin).status_code == 403
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://fleet.example/airflow")
    assert client.post("/node/n1", data=form, headers=origin).status_code == 200
    for other in ("http://fleet.example", "https://evil.example", "", "null"):
        assert client.post("/node/n1", data=form, headers={"Origin": other, "Host": ""}).status_code == 403
    clear = {"Origin": "http://fleet.example", "Host": "fleet.example"}
    assert client.post("/node/n1", data=form, headers=clear).status_code == 403, "whoever is between wrote that page"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", ""])
def test_a_form_of_another_site_is_refused(client: TestClient, origin: str) -> None:
    store.nodes.add(fleet.new_node("n1"))
    form = {"what": "move", "state": "quarantine", "reason": "x", "confirmed": "yes"}
    assert client.post("/node/n1", data=form, headers={"Origin": origin}).status_code == 403
    assert store.nodes.get("n1").state is State.REGISTERED


def test_a_nodes_open_question_is_answered_on_its_page(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.fail("n1")
    assert "<option>RMA" not in page(client, "/node/n1")
    override(client, approvals.about, [question("n1")])
    text = page(client, "/node/n1")
    for expected in ("<option>RMA", "A person decides, since:", '<input type="hidden" name="node" value="n1">'):
        assert expected in text
    assert "<script>" not in text.replace('<script src="', "")
    given = []
    monkeypatch.setattr(approvals.Answer, "apply", lambda answer: given.append(answer.option))
    override(client, approvals.one, question("n1"))
    path = "/approvals/admission/r/ask"
    for back, there in (
        ("n1", "/muster/node/n1"),
        ("//evil.example", "/muster/node/%2F%2Fevil.example"),
        ("", "/muster/approvals"),
    ):
        form = {"node": back, "option": "RMA", "reason": "x", "confirmed": "yes"}
        answer = client.post(path, data=form, follow_redirects=False)
        assert answer.headers["location"] == there
    assert given == ["RMA"] * 3


@pytest.mark.both_dialects
def test_an_answer_is_previewed_before_it_is_given(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.qualify("n1")
    store.schedulers.assign("n1", "slurm1", "gpu1", "ada", "new")
    override(client, approvals.one, question("n1"))
    given = []
    monkeypatch.setattr(approvals, "update_hitl_detail", lambda *named: given.append(named))
    before, path = store.overview.version(), "/approvals/admission/r/ask"
    for option, effects in (
        ("Admit", ("qualified → production", "slurm1 allocates gpu1", "valid for", "mail: none")),
        ("RMA", ("qualified → rma", "no change in slurm1", "certificate: no change", "mail: none")),
    ):
        preview = client.post(path, data={"option": option, "reason": "seen it", "node": "n1"}).text
        for effect in effects:
            assert effect in preview, effect
            assert effect in ask(client, "n1"), "the question's page compares the answers"
        assert 'name="confirmed"' in preview
    assert (store.overview.version(), given) == (before, [])
    store.nodes.move("n1", State.PRODUCTION, "ada", "seen it")
    certificate = store.certificates.newest("n1")
    assert certificate
    assert f"certificate: {certificate.id} is revoked" in ask(client, "n1")
    client.post(path, data={"option": "Admit", "reason": "seen it", "confirmed": "yes"}, follow_redirects=False)
    ((dag_id, run_id, task_id, payload, *_),) = given
    assert (dag_id, run_id, task_id, payload.chosen_options) == ("admission", "r", "ask", ["Admit"])


def test_an_answer_that_would_be_refused_is_refused_at_its_preview(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.fail("n1")
    form = {"option": "Admit", "reason": "seen it"}
    assert client.post("/approvals/admission/r/ask", data=form).status_code == 400
    override(client, approvals.one, question("n1"))
    for option in ("Admit", "Burn"):
        assert client.post("/approvals/admission/r/ask", data={**form, "option": option}).status_code == 400, option


def test_an_answer_that_its_run_would_lose_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test holds the node, or the wanted test would leave a node in use alone: the question stays open."""
    given = []
    monkeypatch.setattr(approvals, "update_hitl_detail", lambda *named: given.append(named))
    for name in ("leased", "used"):
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
    store.nodes.move("used", State.PRODUCTION, "ada", "seen it")
    fleet.begin("leased", "at-work")
    for name, option, why in (("leased", "RMA", "run at-work"), ("used", "Re-test", "in use")):
        asked = dataclasses.replace(question(name), options=("RMA", "Re-test"))
        override(client, approvals.one, asked)
        for confirmed in ("", "yes"):
            form = {"option": option, "reason": "seen it", "confirmed": confirmed}
            answer = client.post("/approvals/admission/r/ask", data=form, follow_redirects=False)
            assert (answer.status_code, why in answer.text) == (400, True), (name, confirmed)
    assert given == []


def test_a_question_stands_beside_its_evidence(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    attached: list[object] = []
    read = store.reporting.run
    monkeypatch.setattr(
        store.reporting, "run", lambda *key, **more: attached.append(more.get("attached", True)) or read(*key, **more)
    )
    store.nodes.add(fleet.new_node("n1"))
    fleet.fail("n1", "", fleet.finding(summary=HOSTILE), fleet.FINDING)
    store.questions.put(RunKey("admission", "r"), "n1", store.questions.newest("n1"))
    ((_, until),) = store.questions.waiting()
    text = ask(client, "n1")
    for expected in ("gpu3 is slow.", fleet.FINDING.summary, "/node/n1", "<option>RMA", f'"{until.isoformat()}"'):
        assert expected in text
    assert "<script>" not in text
    assert "<form" not in ask(client, "n1", answerable=False)
    assert "/node/n2" not in ask(client, "n2"), "a node that was removed has no evidence"
    assert set(attached) == {False}


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
    assert (answer.status_code, "person" in answer.text) == (400, True)
