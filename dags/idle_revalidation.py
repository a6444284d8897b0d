"""Every five minutes: tests the idle production nodes for which a test is worth most, a share of the fleet at a time.

Nodes whose last revalidation was INCONCLUSIVE stay out of production until they pass, and are tested with them.
"""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, task

from muster.model import dags
from muster.operators import forms
from muster.operators.lifecycle import revalidation
from muster.settings import settings

PARAMS = {
    "level": forms.level(
        settings().revalidation_level,
    ),
}

with DAG(
    dag_id=dags.IDLE_REVALIDATION,
    description="Tests idle production nodes again, the most suspect first, few at a time",
    schedule=datetime.timedelta(minutes=5),
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    max_active_runs=1,
    dagrun_timeout=datetime.timedelta(minutes=30),
    params=PARAMS,
    doc_md=__doc__,
    tags=["muster", "system"],
    **forms.DAG_DEFAULTS,
):

    @task
    def pick(params: Any = None, dag_run: Any = None) -> list[dict[str, Any]]:
        """Choose the nodes."""
        return revalidation.pick(dag_run.run_id, params)

    # While the DAG is paused, its runs would queue up, and later begin all at once.
    forms.starting("revalidate", dags.NODE_REVALIDATION, fail_when_dag_is_paused=True).expand_kwargs(pick())
