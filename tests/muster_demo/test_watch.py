"""What the progress table knows, and that a demo which hangs says where instead of hanging on."""

from __future__ import annotations

import io
import types
from pathlib import Path

import pytest
from rich.console import Console

from muster.errors import AirflowUnreachable, UnknownRun
from muster.model.runs import RunKey
from muster_demo import app, watch
from muster_demo.services import Supervisor
from muster_demo.table import Progress
from muster_demo.watch import Run, Watcher, patiently
from muster_demo.workdir import Workdir

RUNS = [Run("host-here", False, "dag", "host-here__demo"), Run("sim-1", True, "dag", "sim-1__demo")]


class Airflow:
    """Stands in for the API client; every run is one of the DAG "dag", but those that another is named for."""

    def __init__(self, states: dict[str, str], dags: dict[str, str] | None = None) -> None:
        self.states = states
        self.dags = dags or {}
        self.requests: list[str] = []

    def runs(self, dag_id: str) -> list[dict[str, str]]:
        self.requests.append(dag_id)
        mine = [run_id for run_id in self.states if self.dags.get(run_id, "dag") == dag_id]
        return [{"dag_run_id": run_id, "state": self.states[run_id]} for run_id in mine]

    def task_states(self, _dag_id: str, _run_id: str) -> dict[str, str]:
        return {"claim": "success", "intake": "deferred", "burn_in": "none"}


@pytest.fixture
def fleet(monkeypatch) -> None:
    """Records in which the host has passed intake and burns in, and the simulated node has not begun."""

    def node(name: str, state: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(name=name, state=types.SimpleNamespace(value=state))

    def stages(key: RunKey) -> list[types.SimpleNamespace]:
        if key.run_id == "sim-1__demo":
            raise UnknownRun("not begun")
        return [types.SimpleNamespace(stage="intake", verdict=types.SimpleNamespace(value="PASS"))]

    def job(_key: RunKey, stage: str) -> object | None:
        return object() if stage in ("intake", "burn_in") else None

    stand_in = types.SimpleNamespace(
        nodes=types.SimpleNamespace(find=lambda: [node("host-here", "burn_in"), node("sim-1", "registered")]),
        runs=types.SimpleNamespace(stages=stages, get_job=job),
    )
    monkeypatch.setattr(watch, "store", stand_in)


def test_verdicts_and_running_jobs_are_shown(fleet) -> None:
    host, simulated = Watcher(RUNS, Airflow({"host-here__demo": "running", "sim-1__demo": "queued"})).look()
    assert (host.cells, host.state, host.done) == ({"intake": "PASS", "burn_in": "running"}, "burn_in", False)
    assert (simulated.cells, simulated.state, simulated.done) == ({}, "registered", False)


def test_one_question_tells_of_all_runs_and_none_is_asked_once_they_are_over(fleet) -> None:
    airflow = Airflow({"host-here__demo": "failed", "sim-1__demo": "running"})
    watcher = Watcher(RUNS, airflow)
    host, simulated = watcher.look()
    assert airflow.requests == ["dag"]
    assert (host.done, simulated.done) == (True, False)
    assert "burn_in" not in host.cells, "a job of a run that is over is not running"
    airflow.states["sim-1__demo"] = "success"
    assert [row.done for row in watcher.look()] == [True, True]
    assert [row.done for row in watcher.look()] == [True, True]
    assert airflow.requests == ["dag"] * 2


def test_a_node_is_done_only_when_its_latest_run_is_too(fleet) -> None:
    later = Run("host-here", False, "admission", "host-here__after-block-1")
    states = {"host-here__demo": "success", "host-here__after-block-1": "running"}
    airflow = Airflow(states, {"host-here__after-block-1": "admission"})
    watcher = Watcher(RUNS[:1], airflow, lambda run, over: {"run": f"{run.run_id} {over}"})
    assert [(row.cells["run"], row.done) for row in watcher.look()] == [("host-here__demo True", True)]
    watcher.runs.append(later)
    assert [(row.cells["run"], row.done) for row in watcher.look()] == [("host-here__after-block-1 False", False)]
    airflow.states[later.run_id] = "failed"
    assert [row.done for row in watcher.look()] == [True]


def test_what_hangs_is_named_when_time_is_up(fleet, tmp_path: Path) -> None:
    options = app.Options(seed=1, exit_after=True, directory=tmp_path, time_limit_s=0.0)
    console = Console(file=io.StringIO())
    demo = app.Demo(options, Workdir(tmp_path), Supervisor(tmp_path / "logs"), console)
    airflow = Airflow({"host-here__demo": "success", "sim-1__demo": "running"})
    with pytest.raises(app.DemoFailed, match=r"still unfinished: sim-1 \(intake deferred\)"):
        demo.follow(Watcher(RUNS, airflow), Progress(console))  # type: ignore[arg-type]


def test_a_service_that_died_ends_the_wait(fleet, tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    supervisor.start("scheduler", ["sh", "-c", "echo my last words; exit 3"], {}).process.wait(10)
    options = app.Options(seed=1, exit_after=True, directory=tmp_path)
    console = Console(file=io.StringIO())
    demo = app.Demo(options, Workdir(tmp_path), supervisor, console)
    airflow = Airflow({"host-here__demo": "running", "sim-1__demo": "running"})
    with pytest.raises(app.ServiceFailed, match=r"scheduler ended with status 3; its last lines:\nmy last words"):
        demo.follow(Watcher(RUNS, airflow), Progress(console))  # type: ignore[arg-type]


def test_an_airflow_that_is_briefly_away_is_asked_again_but_not_for_ever(monkeypatch) -> None:
    monkeypatch.setattr(watch.time, "sleep", lambda _seconds: None)
    answers = iter([AirflowUnreachable("busy"), AirflowUnreachable("busy"), "running"])

    def call() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def never() -> str:
        raise AirflowUnreachable("gone")

    assert patiently(call) == "running"
    with pytest.raises(AirflowUnreachable, match="gone"):
        patiently(never, patience_s=0)
