"""Qualifies a new node: one run for each node and reason."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, TriggerRule, task

from muster.model import dags
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.operators import forms
from muster.operators.testing import qualification, stage

PARAMS = {
    "node": forms.node(),
    "level": forms.level(),
    "reason": forms.reason(),
    "force_reason": forms.force_reason(),
    "pool": forms.pool(),
}

with DAG(
    dag_id=dags.NODE_QUALIFICATION,
    description="Takes one node through intake, burn-in, integrity, performance and thermal tests to a verdict",
    schedule=None,
    max_active_runs=forms.AT_ONCE,
    params=PARAMS,
    doc_md=__doc__,
    tags=["muster", "operator"],
    render_template_as_native_obj=True,
    **forms.DAG_DEFAULTS,
):
    # No XComs: each costs the task a request, no task reads them, and the log shows what is returned.
    @task(do_xcom_push=False)
    def claim(params: Any = None, dag_run: Any = None) -> dict[str, Any]:
        """Claim the node for this run, unless another run holds it or it is in use."""
        return qualification.claim(RunKey.of(dag_run), params, dag_run.triggering_user_name, dag_run.run_after)

    @task(trigger_rule=TriggerRule.ALL_DONE, do_xcom_push=False)
    def conclude(dag_run: Any = None) -> dict[str, str]:
        """Combine the stages' verdicts and move the node: qualified, quarantine, or back to its state before."""
        return qualification.conclude(RunKey.of(dag_run))

    # Intake too: with a slot, a node goes through all of its stages, and none of its verdicts is old at the end.
    intake, burn_in, integrity, performance, thermal = stage.tasks(*STAGES, pool=dags.BURN_POOL)
    taken: Any = claim().as_setup()
    concluded = conclude()
    # Teardowns: they run however the run ends, and a failed mail does not change the run's outcome.
    # Reported last: if a run was not concluded, its outcome is settled only when its node is released.
    released, reported = stage.release().as_teardown(setups=taken), stage.report().as_teardown(setups=taken)

    taken >> intake >> burn_in >> integrity >> performance >> thermal >> concluded >> released >> reported
