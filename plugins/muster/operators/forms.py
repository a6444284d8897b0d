"""Shared by the DAG files: the fields of their trigger forms, the time limit of every task, how one starts another."""

from __future__ import annotations

import datetime
from typing import Any

from airflow.sdk import Param

from muster.model.dags import POOL_CHARACTERS
from muster_criteria.stages import LEVELS

TASK_DEFAULTS = {
    "execution_timeout": datetime.timedelta(minutes=30),
    "retries": 5,
    "retry_delay": datetime.timedelta(seconds=30),
    "weight_rule": "upstream",
}
"""Gives a run that has begun the next free slot before one that begins: a task weighs as much as there are tasks before
it. Limits each task's time in a worker, where deferred time does not count, and repeats one whose worker was killed, or
that found the records away: both may happen more than once to one task, and a report that is given up is a mail lost.

Airflow can take a task that resumes at once for a killed one; the retry of a question then asks again.
"""

DAG_DEFAULTS: dict[str, Any] = {
    "catchup": False,
    "is_paused_upon_creation": False,
    "default_args": TASK_DEFAULTS,
}
"""Of each of Muster's DAGs: it runs once it is installed, and what it missed while Airflow was down is not repeated."""


def starting(task_id: str, dag_id: str, **more: Any) -> Any:
    """The task that starts a run of a DAG for each of the arguments that another task returned (``expand_kwargs``).

    The ids of runs say what they are for, so that one which exists already is not wanted twice.
    """
    from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

    return TriggerDagRunOperator.partial(
        task_id=task_id, trigger_dag_id=dag_id, logical_date=None, skip_when_already_exists=True, **more
    )


def all_succeed(*tasks: Any) -> None:
    """The run fails if one of these tasks does, although others go on after it: Airflow asks only a run's last tasks.

    What watches the DAGs (`muster doctor`, the alert about a DAG that stopped) asks the run. Takes no worker.
    """
    from airflow.providers.standard.operators.empty import EmptyOperator

    EmptyOperator(task_id="all_succeed").set_upstream([*tasks])


AT_ONCE = 16_384
"""Runs of a DAG that are under way at a time, and tasks of a block: Airflow's own 16 would leave the 17th node untested
while others are in their burn-in, and the 17th question unasked while 16 wait for a person. A number below the fleet's
size does the same to a later node. What bounds the load is the pools, and what bounds the tasks is the workers.
"""

LOAD = {
    "demo": ("13 s", "12 min"),
    "short": ("17 min", "48 min"),
    "standard": ("4 h 45 min", "6 h 51 min"),
    "long": ("51 h 42 min", "80 h 13 min"),
}
"""Load at least at each level, on a node of SKU cpu-generic and on one of h100-sxm-8. Every DAG file reads this, and
adding up the programmes takes 0.7 s; a test compares the two."""

HOW_THOROUGHLY = "How thoroughly. At least so long under load, on a CPU node and on one with 8 GPUs: " + "; ".join(
    f"**{each}** {cpu} and {gpu}" for each, (cpu, gpu) in LOAD.items()
)


def field(*default: Any, **schema: Any) -> Param:
    """A field of a form. Each task validates all: by draft 7 of JSON Schema, in a fifth of the time of the latest."""
    return Param(*default, schema={"$schema": "http://json-schema.org/draft-07/schema#", **schema})


def node(whose: str = "The node's name") -> Param:
    """One enrolled node."""
    return field(type="string", minLength=1, title="Node", description_md=f"{whose}, as `muster node list` shows it.")


def level(default: str = "standard", *, title: str = "Level", description: str = HOW_THOROUGHLY) -> Param:
    """How thoroughly to test."""
    return field(default, type="string", enum=list(LEVELS), title=title, description_md=description)


def reason(description: str = "Why the node is tested now; printed in the report.") -> Param:
    """Why the run is wanted."""
    return field("by hand", type="string", minLength=1, title="Reason", description_md=description)


def force_reason(whom: str = "the node", user: str = "it", refused: str = "a busy node refused") -> Param:
    """The reason to test a node in use; empty to refuse a node in use."""
    return field(
        None,
        type=["null", "string"],
        title="Force, because",
        description_md=f"Test {whom} **although {user} is in use**, for this reason, which is recorded and mailed. "
        f"Leave empty to have {refused}.",
    )


def pool() -> Param:
    """The pool that limits how many new nodes are tested at once."""
    return field(
        None,
        type=["null", "string"],
        maxLength=POOL_CHARACTERS,
        title="Pool",
        description_md="The Airflow pool that limits how many new nodes are tested at once (of a rack, of a PDU). "
        "Empty: the node's own, or `muster_burn` if it has none.",
    )
