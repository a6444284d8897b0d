"""What Muster does inside Airflow's own processes: pools, warm imports, and leases that go with their runs."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.utils.state import DagRunState

from muster import store
from muster.integration import listeners, policy
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.settings import settings
from tests.support import airflow_home
from tests.support.servers import postgresql


def instance(task_id: str, dag_id: str = "node_qualification") -> Any:
    return SimpleNamespace(dag_id=dag_id, task_id=task_id, pool="muster_burn")


def run(
    conf: object,
    dag_id: str = "node_qualification",
    run_after: datetime.datetime | None = None,
    state: DagRunState = DagRunState.FAILED,
) -> Any:
    return SimpleNamespace(dag_id=dag_id, run_id="n1__new", conf=conf, run_after=run_after, state=state)


@pytest.mark.parametrize(
    ("task", "dag_run", "pool"),
    [
        (instance("burn_in"), run({"pool": "rack-7"}), "rack-7"),
        (instance("thermal"), run({"pool": "rack-7"}), "rack-7"),
        (instance("burn_in"), run({}), "muster_burn"),
        (instance("burn_in"), run({"pool": None}), "muster_burn"),
        (instance("burn_in"), run({"pool": ["x"]}), "muster_burn"),
        (instance("burn_in"), run({"pool": "x" * 257}), "muster_burn"),
        (instance("burn_in"), run({"pool": "x\0"}), "muster_burn"),
        (instance("burn_in"), run(None), "muster_burn"),
        (instance("burn_in"), None, "muster_burn"),
        (instance("intake"), run({"pool": "rack-7"}), "rack-7"),
        (instance("conclude"), run({"pool": "rack-7"}), "muster_burn"),
        (instance("burn_in", "node_revalidation"), run({"pool": "rack-7"}), "muster_burn"),
        (instance("burn_in", "another_dag"), run({"pool": "rack-7"}), "muster_burn"),
    ],
)
def test_the_stages_of_a_new_node_go_to_the_pool_of_the_run(task: Any, dag_run: Any, pool: str) -> None:
    policy.task_instance_mutation_hook(task, dag_run)
    assert task.pool == pool


@pytest.mark.parametrize(
    ("argv", "executor", "forks"),
    [
        (["airflow", "scheduler"], "LocalExecutor", True),
        (["airflow", "scheduler"], "CeleryExecutor,airflow.executors.local_executor.LocalExecutor", True),
        (["/venv/lib/airflow/__main__.py", "scheduler", "--skip-serve-logs"], "LocalExecutor", True),
        (["airflow", "scheduler"], "CeleryExecutor", False),
        (["airflow", "scheduler"], "KubernetesExecutor", False),
        (["airflow", "celery", "worker"], "CeleryExecutor", True),
        (["airflow", "triggerer"], "LocalExecutor", False),
        (["airflow", "api-server"], "LocalExecutor", False),
        (["airflow", "dag-processor"], "LocalExecutor", False),
        (["airflow", "dags", "list"], "LocalExecutor", False),
        (["pytest"], "LocalExecutor", False),
        ([], "LocalExecutor", False),
    ],
)
def test_only_processes_that_fork_tasks_are_warmed(argv: list[str], executor: str, forks: bool) -> None:
    assert policy.forks_tasks(argv, executor) is forks


def test_a_module_that_cannot_be_imported_does_not_stop_airflow() -> None:
    assert set(policy.preload(["no_such_module_of_ours", "json"])) == {"no_such_module_of_ours", "json"}


def test_airflow_loads_our_policy_which_preloads_where_it_is_set_and_a_celery_worker_its_tasks_before_it_forks(
    tmp_path: Path,
) -> None:
    """By the entry point. One process shows it all; what another one loads by itself: tests/dags/test_dag_files.py."""
    code = "import sys; sys.argv = ['airflow', 'celery', 'worker']; import airflow; from celery import signals; "
    code += "from airflow.settings import get_policy_plugin_manager as m; "
    code += "print('PLUGINS', [str(p) for p in m().get_plugins()], 'GX', 'great_expectations' in sys.modules); "
    code += "tasks = {'muster.integration.warm', 'muster.operators.testing.block', 'airflow.dag_processing.dagbag'}; "
    code += "print('BEFORE', sorted(tasks & set(sys.modules))); signals.worker_init.send(sender=None); "
    code += "print('WARM', tasks <= set(sys.modules))"
    env = {**os.environ, "MUSTER_PRELOAD": "1", "MUSTER_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert "muster.integration.policy" in done.stdout
    assert "GX True" in done.stdout
    assert "BEFORE []" in done.stdout
    assert "WARM True" in done.stdout


def test_the_dag_processor_forks_processes_that_import_nothing_of_ours() -> None:
    code = "import sys; sys.argv = ['airflow', 'dag-processor']; from airflow.dag_processing.dagbag import DagBag; "
    code += "from muster.integration import listeners; Job = type('Job', (), {}); listeners.on_starting(Job()); "
    code += "before = set(sys.modules); bag = DagBag('dags', load_op_links=False); "
    code += "print(len(bag.dags), [name for name in sorted({*sys.modules} - before) if name.startswith('muster')])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=airflow_home.ROOT
    )
    count, _, late = done.stdout.splitlines()[-1].partition(" ")
    assert int(count) >= 12
    assert late == "[]"


def test_airflow_sees_one_plugin_file_and_not_the_package() -> None:
    from airflow._shared.module_loading import find_path_from_directory

    found = {Path(path).name for path in find_path_from_directory(airflow_home.ROOT / "plugins", ".airflowignore")}
    assert {name for name in found if name.endswith(".py")} == {"muster_plugin.py"}


def enrol(name: str, pool: str = "") -> None:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + name.ljust(43, "0")
    store.nodes.add(NewNode(name=name, host="127.0.0.1", host_key=key, sku="cpu-generic", pool=pool))


@pytest.mark.parametrize("end", [listeners.on_dag_run_success, listeners.on_dag_run_failed])
def test_a_node_is_free_when_its_run_is_over(fleet: Path, end: Any) -> None:
    enrol("n1")
    store.leases.acquire("n1", RunKey("node_qualification", "n1__new"))
    end(run({}, "another_dag"), "")
    assert store.leases.live()
    end(run({}, state=DagRunState.RUNNING), "")  # marked by a person; its teardowns, which stop the load, are to come
    assert store.leases.live()
    end(run({}), "")
    assert store.leases.live() == []


@pytest.mark.parametrize("end", [listeners.on_dag_run_success, listeners.on_dag_run_failed])
def test_a_run_of_another_airflow_with_the_same_id_frees_no_node(fleet: Path, end: Any) -> None:
    enrol("n1")
    key, began = RunKey("node_qualification", "n1__new"), datetime.datetime(2026, 7, 1, tzinfo=datetime.UTC)
    lease = store.leases.acquire("n1", key)
    store.runs.begin(key, "n1", "demo", "new", run_after=began)
    end(run({}, run_after=began + datetime.timedelta(seconds=1)), "")
    assert store.leases.live() == [lease]
    end(run({}, run_after=began), "")
    assert store.leases.live() == []


def test_a_listener_never_raises_in_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    listeners.on_dag_run_failed(run({}), "")
    listeners.on_dag_run_running(run({"pool": "rack-7"}), "")


def test_a_task_process_is_not_taken_for_the_scheduler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a fork with the scheduler's arguments, and may not touch Airflow's database."""
    monkeypatch.setattr(listeners.sys, "argv", ["airflow", "scheduler"])
    monkeypatch.setattr(policy, "preload", lambda _: pytest.fail("imported again in every task"))
    listeners.on_starting(SimpleNamespace())
    assert caplog.records == []


@pytest.mark.parametrize(
    ("conf", "pool"),
    [
        ({"node": "n1"}, "rack-7"),
        ({"node": "n1", "pool": None}, "rack-7"),  # a form that is left as it is
        ({"node": "n1", "pool": ""}, "rack-7"),
        ({"node": "n1", "pool": "rack-8"}, "rack-8"),
        ({"node": "n2"}, None),
        ({"node": "unknown"}, None),
        ({"node": ["n1"]}, None),
        ({}, None),
    ],
)
def test_a_run_that_names_no_pool_loads_its_node_in_the_nodes_own(
    fleet: Path, airflow_db: None, monkeypatch: pytest.MonkeyPatch, conf: dict[str, Any], pool: str | None
) -> None:
    """Over REST or in Airflow's form; another pool would be refused, since a rack's own bounds its watts."""
    from airflow.models.dagrun import DagRun
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from airflow.utils.sqlalchemy import prohibit_commit
    from sqlalchemy import select

    enrol("n1", "rack-7")
    enrol("n2")
    tasks = [instance("claim"), instance("burn_in")]
    monkeypatch.setattr(DagRun, "get_task_instances", lambda _, session: tasks)
    with create_session() as session:
        dag_run = DagRun(dag_id="node_qualification", run_id="n1__new", run_type="manual")
        dag_run.conf = conf
        session.add(dag_run)
        session.flush()
        with prohibit_commit(session):
            listeners.on_dag_run_running(dag_run, "")
            session.flush()
            session.refresh(dag_run)
            assert dag_run.conf == ({**conf, "pool": pool} if pool else conf)
            named = conf.get("pool")  # these tasks were made in it
            assert [task.pool for task in tasks] == ["muster_burn", "muster_burn" if named else pool or "muster_burn"]
            assert pool is None or session.scalar(select(Pool.slots).where(Pool.pool == pool)) == 1
        session.rollback()


def test_a_pool_that_a_run_names_is_there_before_its_tasks_wait_in_it(
    airflow_db: None, caplog: pytest.LogCaptureFixture
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from airflow.utils.sqlalchemy import prohibit_commit
    from sqlalchemy import select

    def pools(session: Any) -> dict[str, tuple[int, bool]]:
        return {pool.pool: (pool.slots, pool.include_deferred) for pool in session.scalars(select(Pool))}

    with create_session() as session:
        dag_run = DagRun(dag_id="node_qualification", run_id="n1__new", run_type="manual")
        dag_run.conf = {"pool": "rack-8"}
        session.add(dag_run)
        session.flush()
        with prohibit_commit(session):  # as the scheduler does
            listeners.on_dag_run_running(dag_run, "")
            assert pools(session)["rack-8"] == (1, True)
            session.scalar(select(Pool).where(Pool.pool == "rack-8")).slots = 5
            listeners.on_dag_run_running(dag_run, "")
        assert pools(session)["rack-8"] == (5, True), "the slots that an operator gave it stay"
        session.rollback()
    assert [each.args for each in caplog.records] == [("rack-8", 1)]


def test_the_burn_pool_that_somebody_deleted_is_back_before_a_new_node_waits_in_it(airflow_db: None) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from airflow.utils.sqlalchemy import prohibit_commit
    from sqlalchemy import delete, select

    with create_session() as session:
        dag_run = DagRun(dag_id="node_qualification", run_id="n1__new", run_type="manual")
        dag_run.conf = {}
        session.add(dag_run)
        session.execute(delete(Pool).where(Pool.pool == "muster_burn"))
        with prohibit_commit(session):
            listeners.on_dag_run_running(dag_run, "")
        made = session.scalar(select(Pool).where(Pool.pool == "muster_burn"))
        assert (made.slots, made.include_deferred) == (settings().burn_slots, True)
        session.rollback()


@pytest.mark.needs_postgresql
def test_a_statement_that_the_database_refuses_leaves_the_scheduler_its_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a transaction that PostgreSQL has aborted, each further statement of the scheduler would fail."""
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from airflow.models.dagrun import DagRun
    from airflow.models.pool import Pool
    from airflow.utils.sqlalchemy import prohibit_commit
    from sqlalchemy import create_engine, select
    from sqlalchemy.orm import Session

    monkeypatch.setattr(policy, "POOL_CHARACTERS", 1000)
    with postgresql.running() as server:
        engine = create_engine(server.create("airflow").replace("://", "+psycopg://"))
        import_all_models()
        Base.metadata.create_all(engine)
        with Session(engine) as session, prohibit_commit(session):
            dag_run = DagRun(dag_id="node_qualification", run_id="n1__new", run_type="manual")
            dag_run.conf = {"pool": "x" * 300}
            session.add(dag_run)
            listeners.on_dag_run_running(dag_run, "")
            assert session.scalar(select(DagRun.run_id)) == "n1__new", "what waited in the session is there"
            assert session.scalars(select(Pool.pool)).all() == []
            caplog.clear()
            for _ in range(2):
                dag_run.conf = {"pool": "rack-8"}
                listeners.on_dag_run_running(dag_run, "")
            assert session.scalars(select(Pool.pool)).all() == ["rack-8"]
            assert [each.args for each in caplog.records] == [("rack-8", 1)]
        engine.dispose()
