"""A person decides on a node whose withdrawal the circuit breaker holds: withdraw it, test it again, or keep it.

The answer is recorded with their name and reason. Without an answer in time the node stays in production and the
verdict stays held.
"""

from __future__ import annotations

from airflow.sdk import DAG

from muster.model import dags
from muster.operators import forms
from muster.operators.lifecycle import admission, held

PARAMS = {
    "node": forms.node("The name of a node with a verdict that is held"),
    "level": forms.level(
        title="Level of a re-test", description="How thoroughly it is tested if the answer is to test it again."
    ),
}

with DAG(
    dag_id=dags.HELD_VERDICT,
    description="Asks a person about a verdict that the circuit breaker holds",
    schedule=None,
    max_active_runs=forms.AT_ONCE,
    params=PARAMS,
    doc_md=__doc__,
    tags=["muster", "operator"],
    **forms.DAG_DEFAULTS,
):
    admission.decision(
        held.look,
        held.carry_out,
        whether="is withdrawn from production",
        options=held.OPTIONS,
        retest=dags.NODE_REVALIDATION,
    )
