"""A node in production tested again while nobody uses it: back into production, or into quarantine.

If nothing can be said of it, it waits out of service for the next run; the third time in a row a person has to look.
"""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, TriggerRule, task

from muster.operators import forms, qualification, revalidation
from muster.operators.stage import MusterStageOperator

PARAMS = {
    "node": forms.node("The name of a node in production"),
    "level": forms.level("short"),
    "reason": forms.reason(),
    "pool": forms.pool(),
}

with DAG(
    dag_id="node_revalidation",
    description="Takes an idle production node through its stages again",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    default_args=forms.TASK_DEFAULTS,
    params=PARAMS,
    doc_md=__doc__,
    tags=["muster"],
    render_template_as_native_obj=True,
):
    soon = datetime.timedelta(seconds=30)

    # One XCom for each task: a dictionary is not taken apart into one for each of its keys.
    @task(retries=2, retry_delay=soon, multiple_outputs=False)
    def claim(params: Any = None, dag_run: Any = None) -> dict[str, Any]:
        """Take the node out of service, unless it has come into use."""
        return revalidation.claim(dag_run.dag_id, dag_run.run_id, params)

    @task(retries=2, retry_delay=soon, trigger_rule=TriggerRule.ALL_DONE, multiple_outputs=False)
    def conclude(dag_run: Any = None) -> dict[str, str]:
        """Put the stages' verdicts together and give the node back, or keep it out."""
        return revalidation.conclude(dag_run.dag_id, dag_run.run_id)

    @task(retries=2, retry_delay=soon)
    def report(dag_run: Any = None) -> str:
        """Mail the report; if mail is down, it is sent later."""
        return qualification.report(dag_run.dag_id, dag_run.run_id)

    @task(retries=2, retry_delay=soon)
    def release(dag_run: Any = None) -> list[str]:
        """Release the node."""
        return qualification.release(dag_run.dag_id, dag_run.run_id)

    then = TriggerRule.ONE_DONE
    intake = MusterStageOperator(task_id="intake", stage="intake")
    burn_in = MusterStageOperator(task_id="burn_in", stage="burn_in", trigger_rule=then)
    integrity = MusterStageOperator(task_id="integrity", stage="integrity", trigger_rule=then)
    performance = MusterStageOperator(task_id="performance", stage="performance", trigger_rule=then)
    thermal = MusterStageOperator(task_id="thermal", stage="thermal", trigger_rule=then)

    taken: Any = claim().as_setup()
    concluded = conclude()
    taken >> intake >> burn_in >> integrity >> performance >> thermal >> concluded
    told = report().as_teardown(setups=taken)
    concluded >> told >> release().as_teardown(setups=taken)
