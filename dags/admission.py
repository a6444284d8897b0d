"""A person decides on a node that the gate does not admit: admit it, test it again, or return it (RMA).

The answer is recorded with their name and reason. Without an answer in time the node stays out of production.
"""

from __future__ import annotations

from airflow.sdk import DAG

from muster.model import dags
from muster.operators import forms
from muster.operators.lifecycle import admission

PARAMS = {
    "node": forms.node(),
    "level": forms.level(
        title="Level of a re-test", description="How thoroughly it is tested if the answer is to test it again."
    ),
    "reason": forms.reason("Why a person decides now."),
}

with DAG(
    dag_id=dags.ADMISSION,
    description="Asks a person about a node that the gate does not admit",
    schedule=None,
    max_active_runs=forms.AT_ONCE,
    params=PARAMS,
    doc_md=__doc__,
    tags=["muster", "operator"],
    **forms.DAG_DEFAULTS,
):
    admission.decision(
        admission.look,
        admission.carry_out,
        whether="enters production",
        options=admission.OPTIONS,
        retest=dags.NODE_QUALIFICATION,
    )
