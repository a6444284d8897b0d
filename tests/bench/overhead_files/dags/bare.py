"""What Airflow itself costs: as many tasks and deferrals as a node's qualification, with nothing in them."""

from __future__ import annotations

import datetime
import itertools
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseOperator, task

WAIT = datetime.timedelta(seconds=2)


class Waiting(BaseOperator):
    """Defers once."""

    def execute(self, context: Any) -> None:
        """Wait for as long as the benchmark's jobs take."""
        self.defer(trigger=TimeDeltaTrigger(WAIT), method_name="execute_complete")

    def execute_complete(self, context: Any, event: Any = None) -> None:
        """Do nothing."""


with DAG(dag_id="bare", schedule=None, is_paused_upon_creation=False):

    @task
    def nothing() -> None:
        """Do nothing."""

    chain = [
        nothing.override(task_id="claim")(),
        *(Waiting(task_id=name) for name in ("intake", "burn_in", "integrity", "performance", "thermal")),
        *(nothing.override(task_id=name)() for name in ("conclude", "release", "report")),
    ]
    for before, after in itertools.pairwise(chain):
        before >> after
