"""A person decides on a node that the gate does not admit: admit it, test it again, or return it (RMA).

The answer is recorded with their name and reason. Without an answer in time the node stays out of production.
"""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, task

from muster.operators import admission, forms

PARAMS = {
    "node": forms.node(),
    "level": forms.level(
        title="Level of a re-test", description="How thoroughly it is tested if the answer is to test it again."
    ),
    "reason": forms.reason("Why a person decides now."),
}

with DAG(
    dag_id="admission",
    description="Asks a person about a node that the gate does not admit",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    default_args=forms.TASK_DEFAULTS,
    params=PARAMS,
    doc_md=__doc__,
    tags=["muster", "operator"],
):
    soon = datetime.timedelta(seconds=30)

    @task(retries=2, retry_delay=soon)
    def look(params: Any = None) -> dict[str, str]:
        """Put the question together: the gate's reasons against the node."""
        return admission.look(params["node"])

    ask = admission.question(whether="enters production", options=admission.OPTIONS)

    @task(retries=5, retry_delay=soon)
    def carry_out(answer: Any, params: Any = None, dag_run: Any = None) -> str:
        """Carry out the decision under that person's name."""
        return admission.carry_out(params["node"], dag_run.dag_id, dag_run.run_id, answer)

    @task.short_circuit
    def wants_test(option: str) -> bool:
        """Go on only if the node is to be tested again."""
        return option == admission.RETEST

    retest = admission.retest("node_qualification")

    chosen: Any = carry_out(ask.output)
    look() >> ask
    wants_test(chosen) >> retest
