"""A person decides on a node whose withdrawal the circuit breaker holds: withdraw it, test it again, or keep it.

The answer is recorded with their name and reason. Without an answer in time the node stays in production and the
verdict stays held.
"""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, task

from muster.operators import admission, forms, held

PARAMS = {
    "node": forms.node("The name of a node with a verdict that is held"),
    "level": forms.level(
        title="Level of a re-test", description="How thoroughly it is tested if the answer is to test it again."
    ),
}

with DAG(
    dag_id="held_verdict",
    description="Asks a person about a verdict that the circuit breaker holds",
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
        """Put the question together: the findings, and why the verdict is held."""
        return held.look(params["node"])

    ask = admission.question(whether="is withdrawn from production", options=held.OPTIONS)

    @task(retries=5, retry_delay=soon)
    def carry_out(answer: Any, params: Any = None, dag_run: Any = None) -> str:
        """Carry out the decision under that person's name."""
        return held.carry_out(params["node"], dag_run.dag_id, dag_run.run_id, answer)

    @task.short_circuit
    def wants_test(option: str) -> bool:
        """Go on only if the node is to be tested again."""
        return option == held.RETEST

    retest = admission.retest("node_revalidation")

    chosen: Any = carry_out(ask.output)
    look() >> ask
    wants_test(chosen) >> retest
