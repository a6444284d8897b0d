"""Qualifies a new node: one run for each node and reason."""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, TriggerRule, task

from muster.operators import forms, qualification
from muster.operators.remote_job import controller_faults
from muster.operators.stage import MusterStageOperator
from muster_criteria.sku_files.programme import STAGES

PARAMS = {
    "node": forms.node(),
    "level": forms.level(),
    "reason": forms.reason(),
    "force_reason": forms.force_reason(),
    "pool": forms.pool(),
}

with DAG(
    dag_id="node_qualification",
    description="Takes one node through intake, burn-in, integrity, performance and thermal tests to a verdict",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    default_args=forms.TASK_DEFAULTS,
    params=PARAMS,
    doc_md=__doc__,
    tags=["muster", "operator"],
    render_template_as_native_obj=True,
):
    # One XCom for each task: a dictionary is not taken apart into one for each of its keys.
    @task(retries=2, retry_delay=datetime.timedelta(seconds=30), multiple_outputs=False)
    def claim(params: Any = None, dag_run: Any = None) -> dict[str, Any]:
        """Claim the node for this run, unless another run holds it or it is in use."""
        return qualification.claim(dag_run.dag_id, dag_run.run_id, params, dag_run.triggering_user_name)

    @task(
        retries=2,
        retry_delay=datetime.timedelta(seconds=30),
        trigger_rule=TriggerRule.ALL_DONE,
        multiple_outputs=False,
    )
    def conclude(dag_run: Any = None, ti: Any = None) -> dict[str, str]:
        """Combine the stages' verdicts and move the node: qualified, quarantine, or back to its state before."""
        return qualification.conclude(dag_run.dag_id, dag_run.run_id, lambda: controller_faults(ti, STAGES))

    @task(retries=2, retry_delay=datetime.timedelta(seconds=30))
    def report(dag_run: Any = None) -> str:
        """Mail the report; if mail is down, it is sent later."""
        return qualification.report(dag_run.dag_id, dag_run.run_id)

    @task(retries=2, retry_delay=datetime.timedelta(seconds=30))
    def release(dag_run: Any = None) -> list[str]:
        """Release the node."""
        return qualification.release(dag_run.dag_id, dag_run.run_id)

    # A stage runs once the one before it has succeeded or failed, and is skipped if that was skipped. The
    # stage itself decides whether a failure ends the run: a blocking stage's FAIL and a lasting INCONCLUSIVE do.
    then = TriggerRule.ONE_DONE
    intake = MusterStageOperator(task_id="intake", stage="intake")
    burn_in = MusterStageOperator(task_id="burn_in", stage="burn_in", trigger_rule=then)
    integrity = MusterStageOperator(task_id="integrity", stage="integrity", trigger_rule=then)
    performance = MusterStageOperator(task_id="performance", stage="performance", trigger_rule=then)
    thermal = MusterStageOperator(task_id="thermal", stage="thermal", trigger_rule=then)

    taken: Any = claim().as_setup()
    concluded = conclude()
    taken >> intake >> burn_in >> integrity >> performance >> thermal >> concluded
    # Teardowns: they run however the run ends, and what becomes of the mail does not change the run's own outcome.
    reported = report().as_teardown(setups=taken)
    concluded >> reported >> release().as_teardown(setups=taken)
