"""``muster qualify``, ``runs``, ``export``, ``sweep`` and the small commands, beside an API that answers as Airflow."""

from __future__ import annotations

import datetime
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
import typer

from muster import acting, store
from muster.admission import service
from muster.integration.airflow_api import AirflowClient
from muster.model.dags import NODE_QUALIFICATION
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.reporting import archive
from muster.store.database.engine import SCHEMA
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.cli.conftest import refusal, refused
from tests.muster.integration.test_airflow_api import Airflow, waiting
from tests.support import lives

Muster = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch, sqlite_db: str) -> Airflow:
    api = Airflow()

    def made() -> AirflowClient:
        return AirflowClient("http://airflow", "ada", "right", transport=httpx.MockTransport(api))

    monkeypatch.setattr(AirflowClient, "from_settings", made)
    for name in ("gpu-0001", "gpu-0002"):
        store.nodes.add(fleet.new_node(name))
    return api


def test_each_node_gets_its_run_and_a_second_time_is_refused(muster: Muster, airflow: Airflow) -> None:
    status, out, _ = muster("qualify", "gpu-0001", "gpu-0002", "--level", "short", "--reason", "New rack!")
    assert status == 0
    assert out.splitlines() == [
        "gpu-0001: run gpu-0001__new-rack is started", "gpu-0002: run gpu-0002__new-rack is started",
    ]  # fmt: skip
    assert airflow.conf["gpu-0001__new-rack"] == {"node": "gpu-0001", "level": "short", "reason": "New rack!"}
    again = muster("qualify", "gpu-0001", "--level", "short", "--reason", "new rack", "--json")
    assert (again[0], refused(again), len(airflow.runs)) == (1, {"gpu-0001"}, 2)


def test_output_that_cannot_be_written_leaves_no_run_unstarted(
    muster: Muster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(typer, "echo", full)
    assert muster("qualify", "gpu-0001", "gpu-0002", "--reason", "new\nrack")[0] == 1
    assert {run["reason"] for run in airflow.conf.values()} == {"new rack"}
    assert len(airflow.runs) == 2


def test_a_node_is_loaded_in_the_pool_of_its_rack(muster: Muster, airflow: Airflow) -> None:
    store.nodes.add(fleet.new_node("gpu-0003", pool="rack-r12"))
    assert muster("qualify", "gpu-0003")[0] == 0
    assert airflow.conf["gpu-0003__new-hardware"]["pool"] == "rack-r12"


def test_forcing_needs_a_reason_which_names_the_person(
    muster: Muster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_PERSON", "Ada")
    for args in (["--force"], ["--force-reason", "mine"], ["--force", "--force-reason", " "]):
        assert muster("qualify", "gpu-0001", *args)[0] == 1
    assert airflow.runs == {}
    assert muster("qualify", "gpu-0001", "--force", "--force-reason", "my own")[0] == 0
    assert airflow.conf["gpu-0001__new-hardware"]["force_reason"] == f"my own (Ada, {acting.os_login()})"


def test_a_node_in_service_is_revalidated_and_another_is_not(muster: Muster, airflow: Airflow) -> None:
    lives.in_production("gpu-0001")
    status, out, _ = muster("revalidate", "gpu-0001", "--json")
    assert (status, json.loads(out)["started"]) == (0, {"gpu-0001": "gpu-0001__by-hand"})
    assert airflow.conf["gpu-0001__by-hand"] == {"node": "gpu-0001", "level": "short", "reason": "by hand"}
    assert muster("revalidate", "gpu-0002")[0] == 1
    assert list(airflow.runs) == ["gpu-0001__by-hand"]


def test_a_block_is_one_run_of_qualified_nodes(muster: Muster, airflow: Airflow) -> None:
    fleet.qualify("gpu-0001")
    assert muster("block", "gpu-0001", "gpu-0002")[0] == 1
    fleet.qualify("gpu-0002")
    assert muster("block", "gpu-0001", "gpu-0001")[0] == 1
    assert muster("block", "gpu-0001", "gpu-0002", "--reason", "new rack")[0] == 0
    (run,) = airflow.conf.values()
    assert run == {"nodes": ["gpu-0001", "gpu-0002"], "level": "standard", "reason": "new rack"}


def test_a_node_that_the_gate_refuses_is_not_asked_about(muster: Muster, airflow: Airflow) -> None:
    status, out, _ = muster("admit", "gpu-0001", "--json")
    assert (status, json.loads(out)["started"]) == (1, {})
    fleet.qualify("gpu-0001")
    assert muster("admit", "gpu-0001", "--reason", "spare")[0] == 0
    assert airflow.conf == {"gpu-0001__spare": {"node": "gpu-0001", "reason": "spare"}}


@pytest.mark.parametrize(
    ("args", "kind"), [(["nobody"], "UnknownNode"), (["gpu-0001", "--level", "deep"], "MusterError")]
)
def test_what_cannot_be_started_starts_nothing(muster: Muster, airflow: Airflow, args: list[str], kind: str) -> None:
    assert refusal(muster("qualify", "gpu-0002", *args, "--json")) == kind
    assert airflow.runs == {}


def test_a_node_that_cannot_be_tested_is_refused_before_anything_starts(muster: Muster, airflow: Airflow) -> None:
    fleet.fail()
    store.leases.acquire("gpu-0002", RunKey("dag", "other"))
    ended = muster("qualify", "gpu-0001", "gpu-0002", "--json")
    assert (ended[0], refused(ended), airflow.runs) == (1, {"gpu-0001", "gpu-0002"}, {})


def test_a_paused_dag_is_reported(muster: Muster, airflow: Airflow) -> None:
    airflow.paused = True
    assert NODE_QUALIFICATION in muster("qualify", "gpu-0001")[2]


@pytest.mark.parametrize(("verdict", "status"), [(Verdict.PASS, 0), (Verdict.FAIL, 1)])
def test_watching_ends_with_the_verdict(
    muster: Muster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, verdict: Verdict, status: int
) -> None:
    monkeypatch.setenv("MUSTER_POLL_SECONDS", "0.01")

    def progress(run: str) -> None:
        airflow.on_tasks = lambda run: None
        lease = fleet.begin(run_id=run)
        fleet.do_stage(lease, "intake", verdict)
        store.runs.finish(lease.key, verdict, "So it is.")
        airflow.runs[run] = "success"

    airflow.on_tasks = progress
    ended, out, _ = muster("qualify", "gpu-0001", "--watch")
    assert "gpu-0001: burn_in" in out
    assert f"gpu-0001: intake: {verdict}: " in out
    assert f"gpu-0001\t{verdict}" in out
    assert ended == status


@pytest.mark.parametrize("why", ["it is in use: Slurm job 7", ""])
def test_watching_a_run_that_is_in_no_record_says_why(
    muster: Muster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Its claim was refused, or it wrote to other records."""
    monkeypatch.setenv("MUSTER_POLL_SECONDS", "0.01")
    behind = store.clock.now() - datetime.timedelta(hours=1)
    monkeypatch.setattr(store.clock, "now", lambda: behind)

    def end(run: str) -> None:
        if why:
            store.signs.note_refusal("gpu-0001", why)
        airflow.runs[run] = "failed"

    airflow.on_tasks = end
    status, out, _ = muster("qualify", "gpu-0001", "--watch", "--json")
    shown = json.loads(out)
    assert (status, shown["ended"], list(shown["not_begun"])) == (1, [], ["gpu-0001"])
    assert (why or "MUSTER_DATABASE_URL") in shown["not_begun"]["gpu-0001"]


def test_a_block_of_nodes_that_serve_is_not_told_to_qualify_them(muster: Muster, airflow: Airflow) -> None:
    for name in ("a", "b"):
        store.nodes.add(fleet.new_node(name))
        lives.in_production(name)
    status, _, err = muster("block", "a", "b")
    assert (status, "muster revalidate a" in err, "muster qualify" in err) == (1, True, False)


def test_watching_survives_an_api_server_that_is_too_busy_to_answer(
    muster: Muster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_POLL_SECONDS", "0.01")

    def busy(run: str) -> None:
        airflow.on_tasks = finish
        raise httpx.ReadTimeout("timed out")

    def finish(run: str) -> None:
        airflow.on_tasks = lambda run: None
        lease = fleet.begin(run_id=run)
        fleet.do_stage(lease, "intake", Verdict.PASS)
        store.runs.finish(lease.key, Verdict.PASS, "So it is.")
        airflow.runs[run] = "success"

    airflow.on_tasks = busy
    status, out, err = muster("qualify", "gpu-0001", "--watch")
    assert (status, "asking again" in err, "gpu-0001\tPASS" in out) == (0, True, True)


def test_watching_goes_on_without_a_run_that_was_deleted(
    muster: Muster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow answers 404 for the tasks of a run that is gone."""
    monkeypatch.setenv("MUSTER_POLL_SECONDS", "0.01")

    def gone(request: httpx.Request) -> httpx.Response | None:
        run = request.url.path.split("/")[-2]
        lost = request.url.path.endswith("/taskInstances") and run not in airflow.runs
        return httpx.Response(404, json={"detail": "none"}) if lost else None

    def step(run: str) -> None:
        airflow.runs.pop("gpu-0002__by-hand", None)
        if run == "gpu-0001__by-hand" and airflow.runs[run] != "success":
            lease = fleet.begin(run_id=run)
            fleet.do_stage(lease, "intake", Verdict.PASS)
            store.runs.finish(lease.key, Verdict.PASS, "So it is.")
            airflow.runs[run] = "success"

    airflow.override, airflow.on_tasks = gone, step
    status, out, _ = muster("qualify", "gpu-0001", "gpu-0002", "--reason", "by hand", "--watch", "--json")
    shown = json.loads(out)
    assert (status, [run["node"] for run in shown["ended"]]) == (1, ["gpu-0001"])
    assert list(shown["not_begun"]) == ["gpu-0002"]


def test_what_was_started_is_shown_when_watching_fails(
    muster: Muster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs go on, and their ids are in no other output."""
    monkeypatch.setenv("MUSTER_POLL_SECONDS", "0.01")

    def refuse(run: str) -> None:
        airflow.override = lambda request: httpx.Response(403, json={"detail": "no"})

    airflow.on_tasks = refuse
    status, out, err = muster("qualify", "gpu-0001", "--watch", "--json")
    shown = json.loads(out)
    assert (status, list(shown["started"]), shown["ended"], shown["not_begun"]) == (1, ["gpu-0001"], [], {})
    assert "does not allow" in err


def test_without_airflow_nothing_is_started(muster: Muster, sqlite_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store.nodes.add(fleet.new_node())
    monkeypatch.setenv("MUSTER_AIRFLOW_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("MUSTER_AIRFLOW_TOKEN", "t")
    ended = muster("qualify", "gpu-0001", "--json")
    assert (ended[0], refused(ended)) == (1, {"gpu-0001"})


@pytest.mark.parametrize("end", [httpx.Response(403, json={"detail": "no"}), KeyboardInterrupt()])
def test_tasks_that_were_begun_before_another_failed_are_shown(
    muster: Muster, airflow: Airflow, end: httpx.Response | KeyboardInterrupt
) -> None:
    tasks = [waiting(f"{name}__r", store.clock.now() + datetime.timedelta(hours=5)) for name in ("a", "b", "c")]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            listed = tasks if request.url.params["state"] == "up_for_retry" else []
            return httpx.Response(200, json={"task_instances": listed, "total_entries": len(listed)})
        if json.loads(request.content)["dag_run_id"] != "c__r":
            return httpx.Response(200, json={"task_instances": []})
        if isinstance(end, KeyboardInterrupt):
            raise end
        return end

    airflow.override = answer
    status, out, _ = muster("runs", "retry", "--json")
    assert (status != 0, len(json.loads(out)["messages"])) == (True, 2)
    _, out, _ = muster("runs", "retry")
    assert [line.split("\t")[1] for line in out.splitlines()[1:]] == ["a__r", "b__r"]


def test_runs_are_listed_and_shown(muster: Muster, airflow: Airflow) -> None:
    assert json.loads(muster("runs", "list", "--json")[1]) == []
    lease = fleet.begin()
    fleet.do_stage(lease, "intake", Verdict.FAIL, findings=(fleet.FINDING,))
    store.runs.finish(lease.key, Verdict.FAIL, "gpu3 is slow.")
    assert f"{fleet.DAG}\tgpu-0001__new\tgpu-0001\tshort\tFAIL" in muster("runs", "list")[1]
    assert json.loads(muster("runs", "list", "--json")[1])[0]["headline"] == "gpu3 is slow."
    _, out, _ = muster("runs", "show", "gpu-0001__new")
    assert "critical\tgpu3\t" in out
    assert "burn_in\tnot run\t" in out
    shown = json.loads(muster("runs", "show", f"{fleet.DAG}/gpu-0001__new", "--json")[1])
    assert (shown["verdict"], shown["run"]["level"], shown["run"]["started_by"]) == ("FAIL", "short", "")
    assert [each["leased_by"] for each in json.loads(muster("node", "list", "--json")[1])] == ["gpu-0001__new", ""]
    assert refusal(muster("runs", "show", "none", "--json")) == "UnknownRun"
    assert refusal(muster("runs", "list", "--node", "none", "--json")) == "UnknownNode"


def test_a_run_is_exported(muster: Muster, airflow: Airflow, tmp_path: Path) -> None:
    fleet.qualify()
    status, out, _ = muster("export", "gpu-0001__new", "--to", str(tmp_path / "out"))
    assert status == 0
    assert all(Path(line).is_file() for line in out.splitlines())
    report = tmp_path / "out" / "run.json"
    written = report.read_bytes()
    figures = pq.read_table(tmp_path / "out" / "measurements.parquet").to_pylist()
    assert {(each["stage"], each["metric"], each["value"], each["floor"]) for each in figures} == {
        (stage, "gemm_rate", 612.5, 600.0) for stage in STAGES
    }
    status, _, refused = muster("export", "gpu-0001__new", "--to", str(tmp_path / "out"))
    assert (status, refused.count("is not empty")) == (1, 1)
    assert report.read_bytes() == written


def test_a_sweep_frees_what_is_over_and_nothing_else(muster: Muster, airflow: Airflow) -> None:
    for node, state in (("gpu-0001", "failed"), ("gpu-0002", "running")):
        lease = fleet.begin(node)
        store.runs.begin_stage(lease.key, "intake")
        airflow.runs[lease.run_id] = state
    assert muster("housekeeping")[0] == 0
    assert [lease.node for lease in store.leases.live()] == ["gpu-0002"]
    assert store.nodes.get("gpu-0001").state is State.REGISTERED
    last = store.audit.batch("siem", 99)[-1]
    assert (last.node, last.login[:3], last.evidence["deleted"]["runs"]) == ("", "os:", 0)


def test_housekeeping_by_hand_removes_old_reports_as_the_dag_does(
    muster: Muster, sqlite_db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_ARCHIVE", str(tmp_path))
    report = tmp_path / "1970-01" / f"x{archive.SUFFIX}"
    report.parent.mkdir()
    report.touch()
    os.utime(report, times=(0, 0))
    assert muster("housekeeping", "--dry-run")[0] == 0
    assert report.exists()
    assert muster("housekeeping")[0] == 0
    assert not report.exists()


def test_an_airflow_that_knows_no_run_frees_their_nodes_only_where_a_person_says_so(
    muster: Muster, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in ("gpu-0001", "gpu-0002"):
        fleet.begin(node)
    reconciled: list[int] = []
    monkeypatch.setattr(service, "reconcile", lambda: reconciled.append(1) or [])
    status, out, refused = muster("housekeeping")
    assert (status, refused.count("--unknown-runs"), reconciled) == (1, 1, [1])
    assert "deleted 0 telemetry files" in out
    assert len(store.leases.live()) == 2
    assert muster("housekeeping", "--unknown-runs")[0] == 0
    assert store.leases.live() == []


class TestSmallCommands:
    def test_the_records_are_made_by_one_command(self, muster: Muster, muster_home: Path) -> None:
        assert refusal(muster("node", "list", "--json")) == "DatabaseNotReady"
        assert f"the fleet records went from nothing to schema {SCHEMA}\n" in muster("db", "upgrade")[1]
        assert (muster_home / "certificate.key").exists()
        assert muster("db", "upgrade")[1] == f"the fleet records are at schema {SCHEMA} already\n"
        assert muster("node", "list")[0] == 0
        (made,) = store.audit.batch("siem", 9)
        assert (made.node, made.login[:3], made.evidence["after"]) == ("", "os:", SCHEMA)

    def test_settings_are_shown_without_secrets(
        self, muster: Muster, muster_home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MUSTER_AIRFLOW_PASSWORD", "hunter2")
        assert json.loads(muster("settings", "--json")[1])["MUSTER_AIRFLOW_PASSWORD"] == "********"
        monkeypatch.setenv("MUSTER_POLL_SECONDS", "-1")
        assert refusal(muster("settings", "--json")) == "BadSettings"

    def test_skus_are_listed_shown_and_linted(self, muster: Muster, muster_home: Path, tmp_path: Path) -> None:
        assert "cpu-generic\t" in muster("sku", "list")[1]
        assert "sku: cpu-generic" in muster("sku", "show", "cpu-generic")[1]
        assert muster("sku", "lint")[0] == 0
        assert "cpu-generic" in muster("sku", "show", "cpu-generi")[2]
        bad = tmp_path / "cpu-generic.yaml"
        shipped = muster("sku", "show", "cpu-generic")[1]
        bad.write_text(shipped.replace("version:", "versoin:"))
        status, _, err = muster("sku", "lint", str(bad))
        assert status == 1
        assert "versoin" in err
        assert muster("sku", "lint", "./none.yaml")[0] == 1

    def test_help_is_there_at_once(self) -> None:
        """The command line must not wait for Airflow, Great Expectations or the database to be imported."""
        heavy = ("airflow", "great_expectations", "sqlalchemy", "pandas", "numpy", "paramiko", "httpx", "jinja2")
        code = (
            "import sys; sys.argv = ['muster', '--help']\nfrom muster.cli import main\ntry: main()\n"
            f"finally: print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert "qualify" in done.stdout
        assert done.stderr == "[]\n"
