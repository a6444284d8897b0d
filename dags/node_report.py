"""Asset events of `muster_node_report`: GPU errors and crashed jobs of nodes in service, for the choice of idle tests.

Slurm's epilog, a monitoring system or any other program sends them over Airflow's REST API.
"""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, Asset, task

from muster.model import dags
from muster.operators import forms
from muster.operators.lifecycle import reports
from muster.operators.testing import claims

with DAG(
    dag_id=dags.NODE_REPORT,
    description="Notes what is reported of nodes in service; the next idle tests take it up",
    schedule=[Asset(reports.ASSET)],
    catchup=False,
    is_paused_upon_creation=False,
    default_args=forms.TASK_DEFAULTS,
    doc_md=__doc__,
    tags=["muster", "provisioning"],
):

    @task(retries=3, retry_delay=datetime.timedelta(minutes=1))
    def receive(dag_run: Any = None) -> list[str]:
        """Note the reports of all events since the last run; returns the nodes of which one is new."""
        with claims.failing_at_once():
            return reports.receive([event.extra for event in dag_run.consumed_asset_events])

    receive()
