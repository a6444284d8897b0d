"""Every ten minutes: reads each node in service, without load, over one SSH round trip, and records what it shows:
kernel log, GPUs, memory, links, services, disks, clock. The health policy says what follows: a note, a test when the
node is next idle, or that it leaves service: it is drained, and the job on it ends by itself.
Where the policies switch it on, a node that left service is repaired by a run of the DAG repair.
"""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import DAG, TriggerRule, task

from muster.model import dags
from muster.operators import forms
from muster.operators.lifecycle import bmc_sweep, repair, sweep

with DAG(
    dag_id=dags.HEALTH_SWEEP,
    description="Reads nodes in service between tests, and acts by the health policy",
    schedule=dags.SWEPT_EVERY,
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    max_active_runs=1,
    dagrun_timeout=datetime.timedelta(minutes=30),
    doc_md=__doc__,
    tags=["muster", "system"],
    **forms.DAG_DEFAULTS,
):

    @task
    def read() -> str:
        """Read the nodes and record what they show."""
        return sweep.sweep_nodes()

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def read_bmcs() -> str:
        """Read the BMCs that are due; what they show is acted upon by the next sweep."""
        return bmc_sweep.sweep_bmcs()

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def act() -> list[str]:
        """Do what the policy says of what is seen or reported; returns what was done."""
        return sweep.act()

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def repairs(ti: Any = None) -> list[dict[str, Any]]:
        """Close what tests proved to be repaired; returns one run of the DAG repair to start per node."""
        repair.prove_all()
        return repair.unless_paused(repair.wanted(), lambda: ti.get_dag(dags.REPAIR).is_paused)

    wanted = repairs()
    nodes_read = read()
    acted = act()
    nodes_read >> acted >> wanted
    nodes_read >> read_bmcs()
    forms.all_succeed(nodes_read, acted)
    forms.starting("repair", dags.REPAIR).expand_kwargs(wanted)
