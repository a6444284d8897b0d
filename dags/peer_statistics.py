"""Every hour: works out anew what is usual among nodes of one model; each verdict cites the snapshot behind it.

Nodes that were judged before anybody knew what is usual are then judged again by what they measured.
"""

from __future__ import annotations

import datetime

from airflow.sdk import DAG, task

from muster.operators import forms, statistics
from muster.operators import provisional as unsettled

with DAG(
    dag_id="peer_statistics",
    description="Works out what is usual among nodes of one model",
    schedule=datetime.timedelta(hours=1),
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    catchup=False,
    is_paused_upon_creation=False,
    default_args=forms.TASK_DEFAULTS,
    max_active_runs=1,
    dagrun_timeout=datetime.timedelta(minutes=30),
    doc_md=__doc__,
    tags=["muster"],
):

    @task(retries=2, retry_delay=datetime.timedelta(seconds=30))
    def recompute() -> list[str]:
        """Make a snapshot for every model and level whose nodes were tested or moved since the last one."""
        return statistics.recompute()

    @task(retries=2, retry_delay=datetime.timedelta(seconds=30))
    def speak_again() -> dict[str, str]:
        """Judge qualified nodes whose verdict is PROVISIONAL by the newest snapshot; what it settles is mailed."""
        return unsettled.speak_again()

    recompute() >> speak_again()
