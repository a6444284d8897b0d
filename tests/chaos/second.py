"""A second controller: another Airflow with its own home and database, on the records, DAGs and login of the first."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys

import psycopg

from muster import store
from muster.integration import closing
from muster.integration.airflow_api import AirflowClient
from muster.model.dags import NODE_REVALIDATION
from muster.model.states import SERVING
from muster_demo.services import free_port
from muster_demo.stack import airflow_settings, write_password
from tests.chaos.evidence import HOLDING
from tests.chaos.world import World
from tests.support import airflow_home, orphans

DATABASE = "airflow_2"
COMPONENTS = ("api-server", "scheduler", "triggerer")
"""It needs no DAG processor: it has the DAGs as the first one has read them."""
SERVICES = tuple(f"second-{component}" for component in COMPONENTS)
READY_S = 600.0
"""For how long it stays until it has begun a test, at most: on a machine with much to do it is ready after minutes."""
EVERY_S = 10.0
"""How often it is asked to begin a test."""
COPY = (
    "set -o pipefail; '{bin}/pg_dump' '{first}' | '{bin}/psql' -q '{own}' "
    "&& '{bin}/psql' -q '{own}' -c 'TRUNCATE dag_run, job, trigger CASCADE'"
)
COPY_S = 20
CLAIMED = "SELECT 1 FROM task_instance WHERE task_id = 'claim' AND state IN ('success', 'failed', 'skipped')"
RUNS = "SELECT dag_id, run_id, conf FROM dag_run WHERE state = 'running' AND dag_id = ANY('{%s}')"
ENDED = "when housekeeping looked"
"""In the headline of a run that an Airflow ended which knew it no more."""


def start(world: World) -> None:
    """Start it with the DAGs that the first one has read, and no runs; it is ready later.

    Raises psycopg.Error, subprocess.SubprocessError.
    """
    world.sql("postgres", f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
    world.sql("postgres", f"CREATE DATABASE {DATABASE}")
    copy = COPY.format(bin=world.database.bin, first=world.database.url("airflow"), own=world.database.url(DATABASE))
    subprocess.run(["bash", "-c", copy], capture_output=True, timeout=COPY_S, check=True)
    api = free_port()
    login = dataclasses.replace(world.stack.login, port=api, execution_port=api)
    home = world.folder / DATABASE
    write_password(home, login.username, login.password)
    settings = {
        **world.stack.environment,
        **airflow_settings(login, home, airflow_home.ROOT / "dags", airflow_home.ROOT / "plugins"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": world.database.url(DATABASE),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "MUSTER_AIRFLOW_URL": login.url,
    }
    del settings["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"]
    for name, component in zip(SERVICES, COMPONENTS, strict=True):
        options = ["--port", str(api)] if component == "api-server" else ["--skip-serve-logs"]
        world.supervisor.start(name, [sys.executable, "-m", "airflow", component, *options], settings)
    world.second = AirflowClient(login.url, login.username, login.password, timeout_s=5)


def stop(world: World) -> None:
    """End it with all that it runs."""
    world.second = None
    world.supervisor.stop(SERVICES, patience_s=0)
    orphans.end(world.folder / DATABASE)


def has_begun(world: World) -> bool:
    """Whether it has claimed a node, or tried to. Raises psycopg.Error."""
    with psycopg.connect(world.database.url(DATABASE)) as second:
        return second.execute(CLAIMED).fetchone() is not None


class Person:
    """Begins tests there: of a node that serves, or of one that the first controller tests, at times by the same id."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world, self.dice, self.count = world, dice, 0

    def step(self) -> None:
        """Begin one. Raises as ``lives.TROUBLE``."""
        second = self.world.second
        if second is None:
            return
        self.count += 1
        with psycopg.connect(self.world.database.url("airflow"), connect_timeout=5) as airflow:
            live = airflow.execute((RUNS % ",".join(HOLDING[:2])).encode()).fetchall()
        serving = [node.name for node in store.nodes.find() if node.state in SERVING]
        tests = [(NODE_REVALIDATION, "", {"node": node, "stages": ["intake", "burn_in"]}) for node in serving] + live
        if not tests:
            return
        dag, run, conf = self.dice.choice(sorted(tests, key=str))
        if not run or self.dice.random() < 0.5:
            run = f"{conf['node']}__second-{self.count}"
        second.trigger(dag, run, {"level": "demo", **conf, "reason": "the second controller's"})
        self.world.ledger.write("second", run=run, dag=dag)


def give_up(world: World, since: float) -> None:
    """Free, as a person who ended it for good, the nodes of its runs; ``since``: when it began, seconds of the epoch.

    Its runs are that person's to lose, and those of the first controller that it ended under way: Muster prevents only
    that it ends any before it has begun one of its own.
    """
    with (
        psycopg.connect(world.database.url(DATABASE)) as second,
        psycopg.connect(world.database.url("airflow")) as first,
        psycopg.connect(world.database.url(world.records)) as records,
    ):
        own = dict(first.execute("SELECT run_id, end_date FROM dag_run").fetchall())
        of_second = {run for (run,) in second.execute("SELECT run_id FROM dag_run").fetchall()}
        ended = records.execute(
            "SELECT run_id, ended_at FROM runs WHERE ended_at > to_timestamp(%s) AND headline LIKE %s",
            (since, f"%{ENDED}"),
        ).fetchall()
    under_way = {run for run, at in ended if run in own and (own[run] is None or own[run] > at)}
    for run in (of_second - own.keys()) | under_way:
        world.ledger.touch(run, "the second controller was ended, or ended it")
    for lease in store.leases.live():
        if lease.run_id in of_second - own.keys():
            closing.release(lease.key, "its run is over in Airflow")
