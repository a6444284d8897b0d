"""The REST client against an API that answers as Airflow 3.3 does, in what it accepts and what it refuses."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Callable

import httpx
import pytest
from syrupy.assertion import SnapshotAssertion

from muster.errors import AirflowRefused, AirflowUnreachable, AlreadyTriggered
from muster.integration import airflow_api
from muster.integration.airflow_api import AirflowClient, Postponed
from tests.support.wording import refused

NOW = datetime.datetime(2026, 11, 27, 4, 51, tzinfo=datetime.UTC)
DAG_RUNS = "/api/v2/dags/node_qualification/dagRuns"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow_api, "RETRY_S", 0.0)


class Airflow:
    """Logs in Ada with a token that can expire, keeps runs and pools, and refuses what Airflow refuses."""

    def __init__(self) -> None:
        self.runs: dict[str, str] = {}
        self.pools: dict[str, dict[str, object]] = {}
        self.token = 0
        self.conf: dict[str, dict[str, object]] = {}
        self.log: list[str] = []
        self.paused = False
        self.on_tasks: Callable[[str], None] = lambda run: None
        self.override: Callable[[httpx.Request], httpx.Response | None] = lambda request: None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, json.loads(request.content or b"{}")
        self.log.append(f"{request.method} {path}")
        if path == "/auth/token":
            if body != {"username": "ada", "password": "right"}:
                return httpx.Response(401, json={"detail": "Invalid credentials"})
            self.token += 1
            return httpx.Response(201, json={"access_token": f"token-{self.token}"})
        if request.headers.get("Authorization") != f"Bearer token-{self.token}":
            return httpx.Response(401, json={"detail": "Not authenticated"})
        return self.override(request) or self.answer(request.method, path, body)

    def answer(self, method: str, path: str, body: dict[str, object]) -> httpx.Response:
        if method == "POST" and path.endswith("/dagRuns"):
            run = str(body["dag_run_id"])
            if run in self.runs:
                return httpx.Response(409, json={"detail": {"reason": "Unique constraint violation"}})
            assert body["logical_date"] is None
            self.runs[run] = "queued"
            self.conf[run] = dict(body["conf"])  # type: ignore[call-overload]
            return httpx.Response(200, json={"dag_run_id": run, "state": "queued"})
        if method == "GET" and path.endswith("/taskInstances"):
            self.on_tasks(path.split("/")[-2])
            return httpx.Response(
                200, json={"task_instances": [{"task_id": "burn_in", "state": "deferred"}], "total_entries": 1}
            )
        if method == "GET" and path.rpartition("/")[0] == "/api/v2/dags":
            return httpx.Response(200, json={"is_paused": self.paused})
        if method == "GET" and "/dagRuns/" in path:
            run = path.partition("/dagRuns/")[2]
            found = self.runs.get(run)
            if found:
                return httpx.Response(200, json={"state": found, "conf": self.conf.get(run)})
            return httpx.Response(404, json={"detail": "none"})
        if (method, path) == ("POST", "/api/v2/pools"):
            name = str(body["name"])
            status = 409 if name in self.pools else 201
            if status == 201:
                self.pools[name] = body
            return httpx.Response(status, json={})
        return httpx.Response(404, json={"detail": "The Dag with ID: `none` was not found"})


@pytest.fixture
def airflow() -> Airflow:
    return Airflow()


def client(airflow: Airflow, password: str = "right", **more: str) -> AirflowClient:
    return AirflowClient("http://airflow", "ada", password, transport=httpx.MockTransport(airflow), **more)


def test_a_run_is_triggered_once(airflow: Airflow) -> None:
    with client(airflow) as session:
        assert session.trigger("node_qualification", "gpu-1__new", {"node": "gpu-1"}, note="ticket 7") == "queued"
        airflow.runs["gpu-1__new"] = "failed"
        with pytest.raises(AlreadyTriggered):
            session.trigger("node_qualification", "gpu-1__new", {"node": "gpu-1"})
        assert session.run_state("node_qualification", "gpu-1__new") == "failed"
        assert session.run_state("node_qualification", "gpu-2__new") is None
    assert airflow.log.count("POST /auth/token") == 1


@pytest.mark.parametrize(("faults", "taken"), [(airflow_api.RETRIES, True), (airflow_api.RETRIES + 1, False)])
def test_a_request_that_meets_a_fault_of_the_server_is_repeated(airflow: Airflow, faults: int, taken: bool) -> None:
    """Airflow on SQLite answers 500 to a write that meets another."""
    answers = iter([httpx.Response(500, json={"detail": {"reason": "Database error"}})] * faults)
    airflow.override = lambda request: next(answers, None)
    with client(airflow) as session, contextlib.nullcontext() if taken else pytest.raises(AirflowRefused):
        session.trigger("node_qualification", "gpu-1__new", {"node": "gpu-1"})
    assert ("gpu-1__new" in airflow.runs) is taken


@pytest.mark.parametrize("status", [502, 503, 504])
@pytest.mark.parametrize("at", ["/auth/token", DAG_RUNS])
def test_a_proxy_without_an_api_server_behind_it_is_no_refusal(airflow: Airflow, status: int, at: str) -> None:
    """An API server that is restarted answers so for a while."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(status, text="<html>") if request.url.path.startswith(at) else airflow(request)

    session = AirflowClient("http://airflow", "ada", "right", transport=httpx.MockTransport(answer))
    with pytest.raises(AirflowUnreachable):
        session.run_state("node_qualification", "gpu-1__new")
    assert len([path for path in asked if path.startswith(at)]) == 1 + airflow_api.RETRIES


PROXY = httpx.Response(504, text="Gateway Time-out")
LOST = (PROXY, httpx.ReadTimeout("timed out"), httpx.RemoteProtocolError("Server disconnected"))


def away_after(
    airflow: Airflow, method: str, lost: httpx.Response | httpx.HTTPError = PROXY
) -> Callable[[httpx.Request], httpx.Response]:
    """The answer to the first request of this method is lost, on which the server acts all the same."""
    given_up: list[httpx.Response] = []

    def answer(request: httpx.Request) -> httpx.Response:
        response = airflow(request)
        if request.method == method and "/dags/" in request.url.path and not given_up:
            given_up.append(response)
            if isinstance(lost, httpx.HTTPError):
                raise lost
            return lost
        return response

    return answer


BEFORE = [
    (None, {}, True), ("queued", {"node": "gpu-1", "pool": "r12"}, True), ("queued", {"node": "gpu-2"}, False),
    ("failed", {"node": "gpu-1"}, False),
]  # fmt: skip


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize(("before", "conf", "ours"), BEFORE)
def test_a_run_that_began_though_the_answer_was_lost_is_started(
    airflow: Airflow, before: str | None, conf: dict[str, object], ours: bool, lost: httpx.Response | httpx.HTTPError
) -> None:
    if before:
        airflow.runs["gpu-1__new"], airflow.conf["gpu-1__new"] = before, conf
    session = AirflowClient(
        "http://airflow", "ada", "right", transport=httpx.MockTransport(away_after(airflow, "POST", lost))
    )
    with contextlib.nullcontext() if ours else pytest.raises(AlreadyTriggered):
        assert session.trigger("node_qualification", "gpu-1__new", {"node": "gpu-1", "pool": None}) == "queued"
    with pytest.raises(AlreadyTriggered):
        session.trigger("node_qualification", "gpu-1__new", {"node": "gpu-1", "pool": None})


@pytest.mark.parametrize("lost", LOST)
def test_an_answer_that_was_given_though_its_response_was_lost_is_given(
    airflow: Airflow, lost: httpx.Response | httpx.HTTPError
) -> None:
    answers: list[dict[str, object]] = []

    def detail(request: httpx.Request) -> httpx.Response:
        if request.method == "PATCH" and answers:
            return httpx.Response(409, json={"detail": "has already been updated"})
        if request.method == "PATCH":
            answers.append(json.loads(request.content))
        return httpx.Response(200, json={"subject": "Admit?", **answers[0]})

    airflow.override = detail
    transport = httpx.MockTransport(away_after(airflow, "PATCH", lost))
    session = AirflowClient("http://airflow", "ada", "right", transport=transport)
    session.hitl_answer("admission", "r", "ask", ["Admit"], {"decision_reason": "sound"})
    with pytest.raises(AirflowRefused):
        session.hitl_answer("admission", "r", "ask", ["Admit"], {"decision_reason": "sound"})
    other = AirflowClient("http://airflow", "ada", "right", transport=httpx.MockTransport(away_after(airflow, "PATCH")))
    with pytest.raises(AirflowRefused):
        other.hitl_answer("admission", "r", "ask", ["RMA"], {"decision_reason": "sound"})


TIMEOUT, AWAY, NOWHERE = httpx.ReadTimeout("timed out"), httpx.Response(503), httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("call", "at", "answers", "asked", "perhaps"),
    [
        (("unpause", "x"), "/dags/x", [TIMEOUT, TIMEOUT, TIMEOUT], 3, True),
        (("unpause", "x"), "/dags/x", [TIMEOUT, NOWHERE], 2, True),
        (("unpause", "x"), "/dags/x", [TIMEOUT, AWAY, AWAY], 3, True),
        (("unpause", "x"), "/dags/x", [AWAY, TIMEOUT, AWAY], 3, True),
        (("unpause", "x"), "/dags/x", [AWAY, NOWHERE], 2, False),
        (("retry", Postponed("x", "r", "t", -1, NOW)), "/clearTaskInstances", [TIMEOUT], 1, True),
        (("retry", Postponed("x", "r", "t", -1, NOW)), "/clearTaskInstances", [AWAY, TIMEOUT], 2, True),
        (("is_paused", "x"), "/dags/x", [TIMEOUT], 1, False),
        (("unpause", "x"), "/auth/token", [TIMEOUT], 1, False),
    ],
)  # fmt: skip
def test_what_may_have_been_done_though_its_answer_was_lost_is_said_and_no_task_is_cleared_twice(
    airflow: Airflow,
    call: tuple[str, object],
    at: str,
    answers: list[httpx.Response | httpx.HTTPError],
    asked: int,
    perhaps: bool,
) -> None:
    left = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith(at):
            return airflow(request)
        given = next(left)
        if isinstance(given, httpx.HTTPError):
            raise given
        return given

    session = AirflowClient("http://airflow", "ada", "right", transport=httpx.MockTransport(answer))
    with pytest.raises(AirflowUnreachable) as error:
        getattr(session, call[0])(call[1])
    assert (len(answers) - len(list(left)), airflow_api.PERHAPS in str(error.value)) == (asked, perhaps)


def test_an_expired_token_is_renewed(airflow: Airflow) -> None:
    with client(airflow) as session:
        session.run_state("node_qualification", "x")
        airflow.token += 1
        assert session.run_state("node_qualification", "x") is None
        assert airflow.log.count("POST /auth/token") == 2


def test_a_token_of_the_settings_may_have_a_line_end(airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, plain = httpx.MockTransport(airflow), httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **given: plain(**{**given, "transport": transport}))
    monkeypatch.setenv("MUSTER_AIRFLOW_TOKEN", "token-0\n")
    with AirflowClient.from_settings() as session:
        assert not session.is_paused("node_qualification")


@pytest.mark.parametrize("token", ["t0p\ns3cret", "s3cret\x00", "s3cretö"])
def test_a_token_that_no_header_can_hold_is_not_shown(airflow: Airflow, token: str) -> None:
    """A client's own error quotes the header."""
    with pytest.raises(AirflowRefused) as error:
        AirflowClient("http://airflow", token=token, transport=httpx.MockTransport(airflow)).dags()
    assert "s3cret" not in str(error.value)
    assert not airflow.log, "it is not sent either"


def test_a_pool_is_made_once_and_counts_deferred_tasks(airflow: Airflow) -> None:
    with client(airflow) as session:
        session.ensure_pool("rack-12", 4)
        session.ensure_pool("rack-12", 6)
    assert airflow.pools["rack-12"]["slots"] == 4
    assert airflow.pools["rack-12"]["include_deferred"] is True


def test_all_tasks_of_a_long_run_are_reported(airflow: Airflow) -> None:
    tasks = [{"task_id": f"t{n}", "map_index": -1, "state": "success"} for n in range(130)]
    tasks += [{"task_id": "mapped", "map_index": 1, "state": None}]

    def page(request: httpx.Request) -> httpx.Response:
        offset, limit = int(request.url.params["offset"]), int(request.url.params["limit"])
        return httpx.Response(200, json={"task_instances": tasks[offset : offset + limit], "total_entries": len(tasks)})

    airflow.override = page
    with client(airflow) as session:
        states = session.task_states("node_qualification", "gpu-1__new")
    assert len(states) == 131
    assert states["mapped[1]"] == "none"


def test_only_open_questions_of_musters_dags_are_pending(airflow: Airflow) -> None:
    """A question whose time is over has no response for ever, and its task has failed."""
    tasks = {"open": ("admission", "awaiting_input"), "other": ("payroll", "deferred"), "over": ("admission", "failed"),
             "held": ("held_verdict", "deferred")}  # fmt: skip

    def asked(request: httpx.Request) -> httpx.Response:
        wanted = request.url.params.get_list("state") or [state for _, state in tasks.values()]
        found = [{"task_instance": {"dag_run_id": run, "dag_id": dag}}
                 for run, (dag, state) in tasks.items() if state in wanted]  # fmt: skip
        return httpx.Response(200, json={"hitl_details": found, "total_entries": len(found)})

    airflow.override = asked
    with client(airflow) as session:
        assert [each["task_instance"]["dag_run_id"] for each in session.hitl_pending()] == ["open", "held"]


PORTAL = httpx.Response(200, text="<html>Log in"), httpx.Response(302, headers={"Location": "https://sso"})


@pytest.mark.parametrize("portal", PORTAL)
@pytest.mark.parametrize("call", ["health", "hitl_pending", "dags"])
def test_a_portal_in_front_of_airflow_is_one_sentence(portal: httpx.Response, call: str) -> None:
    transport = httpx.MockTransport(lambda request: portal)
    for login in ({"username": "ada", "password": "x"}, {"token": "t"}):
        with pytest.raises(AirflowUnreachable):
            getattr(AirflowClient("http://airflow", **login, transport=transport), call)()


REFUSALS = (
    httpx.Response(403, json={"detail": "Forbidden"}),
    httpx.Response(404, json={"detail": "The Dag was not found"}),
    httpx.Response(422, json={"detail": [{"msg": "level: not one of"}]}),
    httpx.Response(400, json={"detail": "Param node is required"}),
    httpx.Response(502, text="<html>\nBad gateway"),
    httpx.Response(500, json=["odd"]),
)


def test_wording_of_refusals(airflow: Airflow, snapshot: SnapshotAssertion) -> None:
    transport = httpx.MockTransport(airflow)
    refusals = [
        refused(client(airflow, "wrong").unpause, "x"),
        refused(AirflowClient("http://airflow", transport=transport).unpause, "x"),
        refused(AirflowClient("http://airflow", token="old", transport=transport).unpause, "x"),
    ]
    airflow.runs["gpu-1__new"] = "failed"
    with client(airflow) as session:
        refusals.append(refused(session.trigger, "node_qualification", "gpu-1__new", {}))
        for answer in REFUSALS:
            airflow.override = lambda request, answer=answer: answer
            refusals.append(refused(session.trigger, "node_qualification", "x", {}))
    assert "\n".join(refusals) == snapshot
    assert all("\n" not in refusal for refusal in refusals)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://", "127.0.0.1:1"])
def test_an_airflow_that_is_not_there_is_one_sentence(url: str) -> None:
    with pytest.raises(AirflowUnreachable):
        AirflowClient(url, "ada", "x").unpause("x")


def waiting(run: str, ended: datetime.datetime | None, map_index: int = -1) -> dict[str, object]:
    """A task as Airflow 3.3 lists one that waits for its retry."""
    end_date = None if ended is None else ended.isoformat().replace("+00:00", "Z")
    return {
        "dag_id": "node_qualification", "dag_run_id": run, "task_id": "intake", "map_index": map_index,
        "state": "up_for_retry", "end_date": end_date,
    }  # fmt: skip


def deferred(run: str, heartbeat: datetime.datetime | None) -> dict[str, object]:
    """A task as Airflow 3.3 lists one that a triggerer waits for, or none yet."""
    job = {"job_type": "TriggererJob", "latest_heartbeat": heartbeat.isoformat()} if heartbeat else None
    return waiting(run, None) | {"state": "deferred", "triggerer_job": job}


def test_only_what_a_wrong_clock_put_off_is_begun(airflow: Airflow) -> None:
    hours, minute = datetime.timedelta(hours=5), datetime.timedelta(minutes=1)
    tasks = [
        waiting("late", NOW + hours), waiting("mapped", NOW + hours, 2), waiting("due", NOW + minute),
        waiting("new", None),
        deferred("kept", NOW + hours), deferred("watched", NOW + minute), deferred("unwatched", None),
        waiting("restarts", NOW + hours) | {"state": "up_for_reschedule"},
        waiting("wages", NOW + hours) | {"dag_id": "payroll"},
    ]  # fmt: skip
    asked: list[dict[str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/clearTaskInstances"):
            asked.append(json.loads(request.content))
            return httpx.Response(200, json={"task_instances": [], "total_entries": 1})
        listed = [task for task in tasks if task["state"] == request.url.params["state"]]
        return httpx.Response(200, json={"task_instances": listed, "total_entries": len(listed)})

    airflow.override = answer
    with client(airflow) as session:
        late = session.postponed(NOW)
        assert [(each.run_id, each.until) for each in late] == [
            ("late", NOW + hours), ("mapped", NOW + hours), ("restarts", NOW + hours), ("kept", NOW + hours),
        ]  # fmt: skip
        for each in late:
            session.retry(each)
    assert [(each["dag_run_id"], each["task_ids"]) for each in asked] == [
        ("late", ["intake"]), ("mapped", [["intake", 2]]), ("restarts", ["intake"]), ("kept", ["intake"]),
    ]  # fmt: skip
    assert not any(each["dry_run"] or each["only_failed"] for each in asked)
