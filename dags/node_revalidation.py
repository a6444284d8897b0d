"""Tests an idle production node again: it returns to production or goes to quarantine.

After an INCONCLUSIVE run that found nothing it serves on; after the third in a row, a person is asked for the cause.
With a finding it stays out of production until the next run.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, TriggerRule, task

from muster.model import dags
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.operators import forms
from muster.operators.lifecycle import revalidation
from muster.operators.testing import stage

PARAMS = {
    "node": forms.node("The name of a node in production"),
    "level": forms.level("short"),
    "reason": forms.reason(),
    "stages": forms.field(
        None,
        type=["null", "array"],
        items={"type": "string", "enum": list(STAGES)},
        title="Stages",
        description_md="Only these stages; empty: all of them.",
    ),
}

with DAG(
    dag_id=dags.NODE_REVALIDATION,
    description="Takes an idle production node through its stages again",
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
        """Take the node out of production, unless it is in use by now."""
        return revalidation.claim(RunKey.of(dag_run), params, dag_run.triggering_user_name, dag_run.run_after)

    @task(trigger_rule=TriggerRule.ALL_DONE, do_xcom_push=False)
    def conclude(dag_run: Any = None) -> dict[str, str]:
        """Combine the stages' verdicts and return the node to production, or keep it out."""
        return revalidation.conclude(RunKey.of(dag_run))

    # Not in a pool of new nodes: a node in service carries users' load anyway, so its test adds none to its rack, and
    # it must not wait for a slot while out of production. The choice of idle nodes is also limited by kW.
    intake, burn_in, integrity, performance, thermal = stage.tasks(*STAGES)
    taken: Any = claim().as_setup()
    concluded = conclude()
    # Teardowns: they run however the run ends, and a failed mail does not change the run's outcome.
    # Reported last: if a run was not concluded, its outcome is settled only when its node is released.
    released, reported = stage.release().as_teardown(setups=taken), stage.report().as_teardown(setups=taken)

    taken >> intake >> burn_in >> integrity >> performance >> thermal >> concluded >> released >> reported
