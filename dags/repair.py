"""Repairs one node that left service: evidence, the next rung of its fault's ladder, then the tests that can see it.

Off until policies/repair.yaml switches rungs on for a group of nodes. A rung that is not switched on, a budget that is
used up, or a history that cannot be read is a person's: this run then ends after the evidence, with a mail.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, TriggerRule, task

from muster.model import dags
from muster.model.runs import RunKey
from muster.operators import forms
from muster.operators.lifecycle import repair

PARAMS = {
    "node": forms.node("The name of a node in quarantine, triage or repair"),
    "fault": forms.field(
        type="string",
        minLength=1,
        title="Fault",
        description_md="The class of the fault, as policies/repair.yaml has it.",
    ),
    "device": forms.field(
        "", type="string", title="Device", description_md="The device, such as `gpu3`; empty: the node."
    ),
    "part": forms.field(
        "",
        type="string",
        title="Part",
        description_md="Its part (`gpu SERIAL`); empty: as the records have it.",
    ),
    "reason": forms.reason("What was seen; it stays in the incident."),
}

with DAG(
    dag_id=dags.REPAIR,
    description="Takes evidence of a fault, carries out the next repair of its ladder, and has it proved",
    schedule=None,
    max_active_runs=forms.AT_ONCE,
    params=PARAMS,
    doc_md=__doc__,
    tags=["muster", "operator"],
    **forms.DAG_DEFAULTS,
):

    @task
    def claim(params: Any = None, dag_run: Any = None) -> int:
        """Hold the node for this run, and open the incident; returns its number."""
        return repair.claim(RunKey.of(dag_run), params)

    @task
    def evidence(incident: int) -> str:
        """Take the evidence, before anything destroys it; returns where it is."""
        return repair.take_evidence(incident)

    @task(multiple_outputs=False)
    def act(incident: int, dag_run: Any = None) -> dict[str, Any]:
        """Carry out the next rung of the ladder, unless a person decides."""
        return repair.act(RunKey.of(dag_run), incident)

    # Without a timeout, which would use a worker's clock: the wait ends by the records' clock.
    @task.sensor(mode="reschedule", poke_interval=30)
    def returned(incident: int, dag_run: Any = None) -> bool:
        """Wait until the node is back after a restart; between two looks no worker is held."""
        return repair.returned(RunKey.of(dag_run), incident)

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def release(dag_run: Any = None) -> list[str]:
        """Release the node."""
        return repair.release(RunKey.of(dag_run))

    @task
    def proofs(incident: int, dag_run: Any = None) -> list[dict[str, Any]]:
        """Returns the run to start of the test that can detect the fault."""
        return repair.proofs(RunKey.of(dag_run), incident)

    opened: Any = claim()
    done: Any = act(opened)
    back = returned(opened)
    proof = proofs(opened)
    evidence(opened) >> done >> back >> release() >> proof
    back >> proof
    forms.starting("prove", dags.NODE_QUALIFICATION).expand_kwargs(proof)
