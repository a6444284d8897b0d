"""The metrics: who may read them, what they show of the records, also of 10,000 nodes."""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import pytest
from airflow.models.dagrun import DagRun
from airflow.utils import session
from fastapi.testclient import TestClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sqlalchemy import create_engine, insert, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from muster import store
from muster.admission.entry import move
from muster.api import metrics
from muster.judging import policies
from muster.model.dags import STOPPED_AFTER
from muster.model.health import Report
from muster.model.runs import PREEMPTED, Job, RunKey
from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import writing
from muster.store.database.models import Base, FindingRow, NodeRow, RunRow, StageRow
from muster.store.output import figures
from muster_criteria.context.suspicion import CORRUPTING
from muster_criteria.health.policy import HealthAction
from muster_criteria.health.readings import Reading
from muster_criteria.model import Severity, Verdict
from tests.docs.reference.metrics import families
from tests.muster import fleet
from tests.muster.api.conftest import app

TOKEN = {"Authorization": "Bearer s3cret"}
NONE = {("false",): 0.0, ("true",): 0.0}


@pytest.fixture
def client(fleet_db: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TestClient:
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setenv("MUSTER_METRICS_TOKEN_FILE", str(tmp_path / "token"))
    return TestClient(app())


def read(client: TestClient) -> dict[str, dict[tuple[str, ...], float]]:
    """{metric: {values of its labels, by the labels' names: value}}."""
    answer = client.get("/metrics", headers=TOKEN)
    assert answer.status_code == 200, answer.text
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_only_the_token_opens_them(client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def status(**headers: str) -> int:
        return client.get("/metrics", headers=headers).status_code

    assert status(**TOKEN) == 200
    for wrong in ("", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crét", "Basic s3cret", "s3cret"):
        assert status(Authorization=wrong.encode()) == 401, wrong
    assert status() == 401
    (tmp_path / "token").write_text("\n")
    assert status(Authorization="Bearer ") == 503
    assert "empty" in client.get("/metrics").json()["detail"]
    (tmp_path / "token").unlink()
    assert status(**TOKEN) == 503, "a file that is missing opens nothing"
    assert "No such file" in client.get("/metrics").json()["detail"]
    (tmp_path / "token").write_text("s3cret\n")
    assert status(**TOKEN) == 200, "it is read again"
    monkeypatch.delenv("MUSTER_METRICS_TOKEN_FILE")
    assert status(Authorization="Bearer ") == 503
    monkeypatch.setenv("MUSTER_METRICS_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("MUSTER_POLL_SECONDS", "never")
    assert status(**TOKEN) == 503
    assert all(client.get(path).status_code == 404 for path in ("/docs", "/redoc", "/openapi.json"))


def test_records_that_are_away_are_503(client: TestClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_DATABASE_URL", f"sqlite:///{tmp_path / 'empty.db'}")
    assert client.get("/metrics", headers=TOKEN).status_code == 503


@pytest.mark.both_dialects
def test_they_show_the_records(client: TestClient) -> None:
    empty = read(client)
    assert empty["muster_mails_waiting"] == {(): 0}
    assert empty["muster_tests_oldest_timestamp_seconds"] == NONE
    for name in ("gpu-0001", "gpu-0002", "gpu-0003", "gone"):
        store.nodes.add(fleet.new_node(name, rack="r1"))
    move("gone", State.RETIRED, "Ada", "sold")
    fleet.qualify("gpu-0001")
    fleet.fail("gpu-0002")
    held = fleet.begin("gpu-0003").key
    store.outbox.add("a/b", b"mail")
    store.outbox.add("a/c", b"mail")
    first = store.outbox.pending()[0]
    store.outbox.failed(first.id, b"mail", "550 no", park=True)
    seen = read(client)
    assert seen["muster_nodes"]["false", "cpu-generic", "qualified"] == 1
    assert seen["muster_nodes"]["false", "cpu-generic", "quarantine"] == 1
    assert seen["muster_nodes"]["false", "cpu-generic", "rma"] == 0
    verdicts = {("false", "cpu-generic", verdict): 1 for verdict in ("PASS", "FAIL", "none")}
    assert seen["muster_nodes_by_verdict"] == verdicts
    runs = {(fleet.DAG, "short", "false", "PASS"): 1, (fleet.DAG, "short", "false", "FAIL"): 1}
    assert seen["muster_run_duration_seconds_gcount"] == runs
    assert seen["muster_findings"] == {("gpu", "critical", "false", "intake"): 1}
    assert seen["muster_tests_running"] == {(fleet.DAG, "false"): 1}
    assert seen["muster_tests_oldest_timestamp_seconds"] == NONE
    for hours, stage in ((100, "intake"), (3, "burn_in")):
        begun = store.clock.now() - datetime.timedelta(hours=hours)
        store.runs.record_job(Job(held.dag_id, held.run_id, stage, "1", "running", "/j", started_at=begun))
    assert read(client)["muster_tests_oldest_timestamp_seconds"]["false",] == pytest.approx(begun.timestamp())
    assert (seen["muster_mails_waiting"], seen["muster_mails_parked"]) == ({(): 1}, {(): 1})
    passed = seen["muster_node_last_pass_timestamp_seconds"]
    assert passed["gpu-0001", "r1", "qualified"] == pytest.approx(time.time(), abs=60)
    assert passed["gpu-0002", "r1", "quarantine"] == 0


def test_a_node_that_never_passed_is_older_than_all_limits_and_simulated_nodes_stand_apart(client: TestClient) -> None:
    for name in ("passed", "never"):
        store.nodes.add(fleet.new_node(name))
    store.nodes.add(fleet.new_node("s", simulated=True))
    fleet.qualify("passed")
    fleet.fail("s")
    with writing() as session:
        for name in ("passed", "never"):
            session.get_one(NodeRow, name).state = "production"
    seen = read(client)
    below = seen["muster_last_pass_age_seconds_bucket"]
    counted = {labels[0]: count for labels, count in below.items()}
    assert (counted["3600.0"], counted["7776000.0"], counted["+Inf"]) == (1, 1, 2)
    assert seen["muster_last_pass_age_seconds_gsum"]["false", "cpu-generic"] < 3600
    assert seen["muster_findings"] == {("gpu", "critical", "true", "intake"): 1}
    tested = [labels for labels in seen["muster_stage_duration_seconds_gcount"] if "intake" in labels]
    assert tested == [("short", "false", "intake"), ("short", "true", "intake")]


@pytest.mark.both_dialects
def test_a_pool_in_which_no_new_node_begins_is_seen_while_some_wait(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted pool, or one without slots, holds up every new node, and none of their runs has a last job."""
    metric, start = "muster_pool_last_job_timestamp_seconds", store.clock.now().replace(microsecond=0)

    def after(days: float) -> datetime.datetime:
        moment = start + datetime.timedelta(days=days)
        monkeypatch.setattr(access, "now", lambda: moment)
        return moment

    def begins(name: str, days: float) -> None:
        store.runs.record_job(Job(fleet.DAG, f"{name}__new", "intake", "1", "running", "/j", started_at=after(days)))

    assert metric not in read(client)
    for name, pool, days in (("n1", "", 0), ("n2", "", 1), ("r1", "rack-r12", 2), ("r2", "rack-r12", 2)):
        after(days)
        store.nodes.add(fleet.new_node(name, pool=pool))
        fleet.begin(name)
    store.nodes.add(fleet.new_node("s", pool="rack-r12", simulated=True))
    fleet.begin("s")
    burn, rack = ("muster_burn", "false"), ("rack-r12", "false")
    waits = {burn: start.timestamp(), ("rack-r12", "true"): after(2).timestamp()}
    expected = {**waits, rack: after(2).timestamp()}
    assert read(client)[metric] == expected
    r1 = RunKey(fleet.DAG, "r1__new")
    begins("r1", 3)
    assert read(client)[metric] == {**expected, rack: after(3).timestamp()}
    fleet.do_stage(store.leases.acquire("r1", r1), "intake")
    store.runs.finish(r1, Verdict.FAIL, "gpu3 is slow.")
    store.leases.release(r1, "over")
    assert read(client)[metric] == {**expected, rack: after(3).timestamp()}
    begins("r2", 4)
    assert read(client)[metric] == waits


@pytest.mark.both_dialects
def test_corrupted_data_is_counted_wherever_it_is_found_and_nothing_else_is(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, metric in enumerate(("memory_burn_mismatches", "step_digest", "xid")):
        store.nodes.add(fleet.new_node(f"n{place}"))
        mild = fleet.finding(metric="gemm_mismatches", severity=Severity.WARNING)
        fleet.fail(f"n{place}", "", fleet.finding(metric=metric), mild)
    store.nodes.add(fleet.new_node("n3", simulated=True))
    monkeypatch.setattr(figures, "CORRUPTING", {*CORRUPTING, "corrupted_results"})  # a check of a metric's name
    fleet.fail("n3", "", fleet.finding(metric="nccl_mismatches"), fleet.finding(metric="corrupted_results"))
    report = Report("n1", "checker", [Reading("corrupted_results"), Reading("xid/95", "gpu3", severity="RESET")])
    store.health.record([report], policies.health())
    counted = {
        ("memory_burn_mismatches", "false"): 1, ("step_digest", "false"): 1, ("nccl_mismatches", "true"): 1,
        ("corrupted_results", "true"): 1, ("corrupted_results", "false"): 1,
    }  # fmt: skip
    assert read(client)["muster_corrupting_findings"] == counted


def test_reports_of_corrupted_data_are_counted_whatever_follows_from_them(client: TestClient) -> None:
    """Of a node in mode watch, and of a source that may cause little, something else follows than at_once."""
    store.nodes.add(fleet.new_node("n1"))
    watched = policies.health().model_copy(update={"mode": "watch"})
    store.health.record([Report("n1", "checker", [Reading("corrupted_results"), Reading("leak")])], watched)
    capped = Report("n1", "exporter", [Reading("corrupted_results")], most=HealthAction.TEST_SOONER)
    store.health.record([capped], policies.health())
    assert {each.action for each in store.health.of_node("n1")} == {HealthAction.NOTE, HealthAction.TEST_SOONER}
    assert read(client)["muster_corrupting_findings"] == {("corrupted_results", "false"): 2}


@pytest.mark.both_dialects
@pytest.mark.parametrize("simulated", ["false", "true"])
def test_a_node_is_uncertified_whose_newest_certificate_is_revoked(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, simulated: str
) -> None:
    monkeypatch.setenv("MUSTER_ADMISSION_LEVEL", "short")
    store.nodes.add(fleet.new_node("n1", simulated=simulated == "true"))
    fleet.qualify("n1", environment={"driver": "580.1"})
    store.nodes.move("n1", State.PRODUCTION, "Ada", "needed now")
    fleet.qualify("n1", "again", environment={"driver": "580.1"})
    assert read(client)["muster_nodes_uncertified"] == NONE
    fleet.qualify("n1", "idle", stages=("intake",), environment={"driver": "590.1"})
    assert list(store.certificates.uncertified()) == ["n1"]
    assert read(client)["muster_nodes_uncertified"] == {**NONE, (simulated,): 1}


@pytest.mark.both_dialects
@pytest.mark.parametrize("simulated", ["false", "true"])
def test_a_test_that_gave_way_is_no_fault_of_the_controller(client: TestClient, simulated: str) -> None:
    for name, headline, fault in (
        ("gave-way", f"{PREEMPTED}its scheduler took the node back for another job", ""),
        ("well", "cluster validation: another member was lost", ""),
        ("untested", "Not tested, for a fault of the controller: no key", "no key"),
    ):
        store.nodes.add(fleet.new_node(name, simulated=simulated == "true"))
        run = fleet.begin(name, name).key
        if fault:
            store.attempts.note_fault(run, "intake", fault)
        store.runs.finish(run, Verdict.SKIPPED, headline)
    seen = read(client)
    assert seen["muster_controller_faults"] == {**NONE, (simulated,): 1}
    assert sum(seen["muster_run_duration_seconds_gcount"].values()) == 3


@pytest.mark.both_dialects
def test_a_mail_waits_from_when_it_was_due(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime.now(datetime.UTC)
    with monkeypatch.context() as patch:
        patch.setattr(store.clock, "now", lambda: now - datetime.timedelta(hours=9))
        store.outbox.add("quiet", b"mail", now - datetime.timedelta(minutes=5))
        store.outbox.gather("flood", "a run", "line", lambda _: b"mail", now - datetime.timedelta(minutes=4))

    def oldest() -> float:
        return read(client)["muster_mails_oldest_timestamp_seconds"][()]

    assert oldest() == pytest.approx((now - datetime.timedelta(minutes=5)).timestamp())
    store.outbox.failed(store.outbox.pending()[0].id, b"mail", "greylisted")
    assert oldest() == pytest.approx((now - datetime.timedelta(minutes=5)).timestamp()), "it was tried once"


@pytest.mark.both_dialects
def test_what_does_not_serve_is_counted_by_whose_turn_it_is(client: TestClient) -> None:
    nothing = read(client)
    assert set(nothing["muster_nodes_not_serving"].values()) == {0}
    assert nothing["muster_questions_open"] == NONE
    assert nothing["muster_questions_oldest_timestamp_seconds"] == NONE
    for name in ("a", "b", "c", "d"):
        store.nodes.add(fleet.new_node(name))
    fleet.qualify("a")
    fleet.fail("b")
    store.runs.begin_stage(fleet.begin("c").key, "intake")
    fleet.qualify("d")
    store.nodes.move("d", State.PRODUCTION, "Ada", "needed now")
    store.nodes.add(fleet.new_node("sim", simulated=True))
    for name in ("a", "sim"):
        store.questions.put(RunKey("admission", name), name, store.questions.newest(name), "Admit it?", ["Admit"])
    seen = read(client)
    counts = seen["muster_nodes_not_serving"]
    assert (counts["false", "person"], counts["false", "muster"], counts["false", "vendor"]) == (2, 1, 0)
    oldest = seen["muster_nodes_not_serving_oldest_timestamp_seconds"]
    assert oldest["false", "person"] == pytest.approx(time.time(), abs=60)
    assert oldest["false", "muster"] == 0  # the test under way has its own alert
    assert seen["muster_questions_open"] == {("false",): 1, ("true",): 1}
    assert seen["muster_questions_oldest_timestamp_seconds"]["false",] == pytest.approx(time.time(), abs=60)


def test_hostile_names_stay_one_label(client: TestClient) -> None:
    rack = 'r"1\n} evil 1 \\'
    store.nodes.add(fleet.new_node(rack=rack))
    series = read(client)["muster_node_last_pass_timestamp_seconds"]
    assert [labels[1] for labels in series] == [rack]


def test_when_a_dag_succeeded_last_is_read_of_airflow_and_numbers_of_before_are_left_out(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    DagRun.metadata.create_all(airflow, tables=[DagRun.__table__])
    monkeypatch.setattr(session, "create_session", lambda: Session(airflow))
    ended = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=3)
    with Session(airflow) as rows:
        for hour, state in ((0, "success"), (1, "failed"), (2, "running")):
            end = ended + datetime.timedelta(hours=hour)
            run = {"dag_id": "housekeeping", "run_id": state, "state": state, "end_date": end, "run_type": "scheduled"}
            rows.execute(insert(DagRun.__table__).values(**run, run_after=end, log_template_id=1))
        rows.commit()
    store.nodes.add(fleet.new_node())
    store.numbers.make(store.clock.now() - datetime.timedelta(hours=25))
    seen = read(client)
    last = seen["muster_dag_last_success_timestamp_seconds"]
    assert (last["housekeeping",], last["peer_statistics",]) == (ended.timestamp(), 0)
    assert "muster_interruptions" not in seen
    store.numbers.make()
    assert read(client)["muster_interruptions"]


def test_while_airflows_database_refuses_no_dag_is_known_to_have_succeeded(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "create_session", lambda: Session(create_engine("sqlite://")))  # it has no tables
    assert read(client)["muster_dag_last_success_timestamp_seconds"] == {(dag,): 0 for dag in STOPPED_AFTER}


def test_the_reference_lists_each_metric(client: TestClient) -> None:
    listed = {name for name, _labels, _text in families()}
    exposed = set(read(client)) | {metrics.NODE_METRIC}
    assert listed >= {name.removesuffix("_bucket") for name in exposed if "_g" not in name}


@pytest.mark.slow
@pytest.mark.both_dialects
def test_ten_thousand_nodes(client: TestClient) -> None:
    """Their 70,000 runs are more than a database takes parameters for in one statement: 65,535."""
    grow(10_000, runs_each=7)
    answer = client.get("/metrics", headers=TOKEN)
    assert answer.text.count("muster_node_last_pass_timestamp_seconds{") == 10_001


def grow(nodes: int, runs_each: int) -> None:
    """A fleet in production whose nodes were tested daily: each run with one stage, each tenth with a finding."""
    now = datetime.datetime.now(datetime.UTC)
    store.nodes.add(fleet.new_node("model"))
    fleet.fail("model")
    with writing() as session:
        models = {table: _row(session.query(table).first()) for table in (NodeRow, RunRow, StageRow, FindingRow)}
        new = [
            {**models[NodeRow], "name": f"n{number:05d}", "host_key": f"k{number}", "state": "production"}
            for number in range(nodes)
        ]
        session.execute(insert(NodeRow), new)
        ends = [
            (f"n{number:05d}", day, now - datetime.timedelta(days=day, seconds=60 + number * 8))
            for day in range(runs_each)
            for number in range(nodes)
        ]
        runs = [
            {**models[RunRow], "id": place, "node": node, "run_id": f"{node}__{day}", "verdict": str(Verdict.PASS),
             "started_at": end - datetime.timedelta(hours=1), "ended_at": end}
            for place, (node, day, end) in enumerate(ends, 1000)
        ]  # fmt: skip
        stages = [
            {**models[StageRow], "id": run["id"], "run": run["id"], "verdict": "PASS",
             "recorded_at": run["ended_at"], "started_at": run["started_at"], "ended_at": run["ended_at"]}
            for run in runs
        ]  # fmt: skip
        findings = [
            {**models[FindingRow], "id": run["id"], "stage": run["id"], "node": run["node"]} for run in runs[::10]
        ]
        session.execute(insert(RunRow), runs)
        session.execute(insert(StageRow), stages)
        session.execute(insert(FindingRow), findings)
        session.execute(text("ANALYZE"))  # as PostgreSQL's autovacuum does in a fleet that grew


def _row(instance: Base) -> dict[str, object]:
    return {column.key: getattr(instance, column.key) for column in instance.__table__.columns}
