"""An asset event for a node and its delivery starts that node's qualification.

The system that provisions nodes sends an event of the asset `muster_new_hardware` with the partition key
`NODE__DELIVERY`; a repeated event starts nothing.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Asset, PartitionedAssetTimetable, task

from muster.model import dags
from muster.operators import forms
from muster.operators.lifecycle import arrival

with DAG(
    dag_id=dags.NEW_HARDWARE,
    description="Starts one qualification run for each node and delivery that is announced",
    schedule=PartitionedAssetTimetable(assets=Asset(arrival.ASSET)),
    max_active_runs=forms.AT_ONCE,
    doc_md=__doc__,
    tags=["muster", "provisioning"],
    **forms.DAG_DEFAULTS,
):

    @task(multiple_outputs=True, on_failure_callback=arrival.lost, **arrival.RETRIES)
    def receive(dag_run: Any = None, ti: Any = None) -> dict[str, Any]:
        """Read the event, enrol the node if the event describes it, and skip a delivery that was received before."""
        return arrival.receive(
            dag_run.partition_key,
            [event.extra for event in dag_run.consumed_asset_events],
            lambda run_id: ti.get_dr_count(dags.NODE_QUALIFICATION, run_ids=[run_id]) > 0,
        )

    received: Any = receive()
    # If two runs reach this task with one delivery, Airflow refuses the second run of the same id.
    TriggerDagRunOperator(
        task_id="qualify",
        trigger_dag_id=dags.NODE_QUALIFICATION,
        trigger_run_id=received["trigger_run_id"],
        conf=received["conf"],
        logical_date=None,
        skip_when_already_exists=True,
        on_failure_callback=arrival.lost,
    )
