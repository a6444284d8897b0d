"""Our ``airflow.policy`` entry point: warm imports for task processes, and the pool in which a new node is tested.

Airflow imports this module in every process, so it preloads only where task processes are forks, which inherit the
imports: in Celery workers, and in the scheduler of a LocalExecutor. A fleet's own ``airflow_local_settings.py`` takes
precedence.
"""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow import settings as airflow_settings
from airflow.configuration import conf
from airflow.policies import hookimpl

from muster.model.dags import NODE_QUALIFICATION, POOL_CHARACTERS
from muster.model.stages import STAGES

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

log = logging.getLogger(__name__)

PRELOAD = (
    "muster_criteria.stage.suite",  # first: it quietens Great Expectations
    "great_expectations",
    "pandas",
    "pyarrow.pandas_compat",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "jinja2.ext",  # of Airflow's templates: each task process imported it
    "paramiko",
    "asyncssh",
    "muster.store",
    "muster_criteria.stage.judge",
    "muster_criteria.context.alike",
    "muster_reports.mail",
    "muster_reports.page",
)
"""Modules to import before task processes are forked. None may import Airflow, which is still being imported."""

WARM = ("muster.integration.warm", "muster.integration.rehearsal")
"""Imported with the modules of the DAG files: they do before a fork what each task would otherwise repeat."""


def dag_modules() -> list[str]:
    """Modules that our DAG files import, and the one with which Airflow reads them: to import once Airflow is loaded
    and before any process is forked.

    Each process of the DAG processor and each task reads such a file.
    """
    operators = importlib.import_module("muster.operators")  # a layer above: by name only
    found = pkgutil.walk_packages(operators.__path__, "muster.operators.")
    return [*(each.name for each in found), "muster.reporting.sending", "airflow.dag_processing.dagbag"]


def forks_tasks(argv: Sequence[str], executors: str) -> bool:
    """Whether a process with these arguments forks task processes: a Celery worker or a LocalExecutor's scheduler.

    ``executors``: Airflow's setting ``core.executor``. Another executor's scheduler would pay for the imports, seconds
    of CPU at each start, and use none.
    """
    arguments = _words(argv)
    return arguments[:2] == ["celery", "worker"] or (is_scheduler(argv) and "LocalExecutor" in executors)


def is_scheduler(argv: Sequence[str]) -> bool:
    """Whether a process with these arguments is ``airflow scheduler``."""
    return _words(argv)[:1] == ["scheduler"]


def is_dag_processor(argv: Sequence[str]) -> bool:
    """Whether a process with these arguments is ``airflow dag-processor``, which forks one to read each DAG file."""
    return _words(argv)[:1] == ["dag-processor"]


def _words(argv: Sequence[str]) -> list[str]:
    return [argument for argument in argv[1:] if not argument.startswith("-")]


def preload(modules: Sequence[str] = PRELOAD) -> dict[str, float]:
    """Import ``modules``. Returns {module: seconds}. An import error is logged only."""
    took = {}
    for name in modules:
        began = time.monotonic()
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken extra must not keep Airflow from starting
            log.warning("Muster could not preload %s, so each task takes longer: %s", name, error)
        took[name] = time.monotonic() - began
    return took


@hookimpl
def task_instance_mutation_hook(task_instance: TaskInstance, dag_run: DagRun | None) -> None:
    """Put a new node's stages into the pool that the run's conf names (its rack's, its PDU's); opens no session."""
    if task_instance.dag_id != NODE_QUALIFICATION or dag_run is None or task_instance.task_id not in STAGES:
        return
    if pool := pool_of(dag_run):
        task_instance.pool = pool


def pool_of(dag_run: DagRun) -> str:
    """Returns the pool that the run's conf names, "" for none and for one that Airflow's database cannot hold."""
    pool = (dag_run.conf or {}).get("pool")
    if isinstance(pool, str) and pool.isprintable() and len(pool) <= POOL_CHARACTERS:
        return pool
    return ""


if os.environ.get("MUSTER_PRELOAD", "auto") == "1" or (
    os.environ.get("MUSTER_PRELOAD", "auto") == "auto" and forks_tasks(sys.argv, conf.get("core", "executor"))
):
    log.info("Muster preloaded %s", ", ".join(f"{name} ({s:.1f} s)" for name, s in preload().items()))

if _words(sys.argv)[:2] == ["celery", "worker"]:
    from celery import signals  # type: ignore[import-untyped]

    # Sent before the worker forks its pool, whose processes fork those of the tasks.
    signals.worker_init.connect(lambda **_: preload([*dag_modules(), *WARM]), weak=False)

# Airflow 3.3 clears this flag only where there is an airflow_local_settings.py; while it is set, task instances are
# made without asking the hooks of entry points.
airflow_settings.task_instance_mutation_hook.is_noop = False  # type: ignore[attr-defined]
