"""Every hour: recomputes the statistics of the nodes of each model; each verdict cites the snapshot that it used.

PROVISIONAL verdicts, made before there were peers, are then re-evaluated from the stored results. The fleet's numbers
(MTBI, availability, repair times and the like) are counted as well.
"""

from __future__ import annotations

import datetime

from airflow.sdk import DAG, task

from muster.model import dags
from muster.operators import forms, provisional, statistics

with DAG(
    dag_id=dags.PEER_STATISTICS,
    description="Recomputes the statistics of the nodes of each model, and the numbers of the fleet",
    schedule=datetime.timedelta(hours=1),
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    max_active_runs=1,
    dagrun_timeout=datetime.timedelta(minutes=30),
    doc_md=__doc__,
    tags=["muster", "system"],
    **forms.DAG_DEFAULTS,
):

    @task
    def recompute() -> list[str]:
        """Make a snapshot for every model and level whose nodes were tested or moved since the last one."""
        return statistics.recompute()

    # If the statistics of one model fail, those of the others are still new.
    @task(trigger_rule="all_done")
    def reevaluate_provisional() -> dict[str, str]:
        """Re-evaluate PROVISIONAL verdicts by the newest snapshot; runs with a new verdict are mailed."""
        return provisional.reevaluate_provisional()

    @task
    def count() -> list[str]:
        """Count what managers ask for of the last 30 days: pages, metrics and the CLI only read it."""
        return statistics.count()

    recomputed = recompute()
    recomputed >> reevaluate_provisional()
    forms.all_succeed(recomputed)
    count()
