"""Shared code of the DAG files: fields of their trigger forms, defaults of every task, one DAG starting another."""

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
"""``weight_rule``: a task's priority is the number of tasks before it, so a run in progress gets the next free slot
before a new one. ``execution_timeout`` limits the time in a worker; deferred time does not count. ``retries``: a worker
may be killed, or the records be unreachable, several times during one task, and a report given up is a lost mail.

Airflow can mistake a task that resumes at once for a killed one; the retry of a question then asks again.
"""

DAG_DEFAULTS: dict[str, Any] = {
    "catchup": False,
    "is_paused_upon_creation": False,
    "default_args": TASK_DEFAULTS,
}
"""Arguments of every Muster DAG: active once installed; runs that Airflow missed while it was down are not made up."""


def starting(task_id: str, dag_id: str, **more: Any) -> Any:
    """Returns a task that starts one run of a DAG for each item that another task returned (``expand_kwargs``).

    A run's id states its purpose, so a run that already exists is skipped.
    """
    from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator

    return TriggerDagRunOperator.partial(
        task_id=task_id, trigger_dag_id=dag_id, logical_date=None, skip_when_already_exists=True, **more
    )


def all_succeed(*tasks: Any) -> None:
    """Fail the run if one of these tasks fails, even if others follow it: Airflow considers only a run's last tasks.

    `muster doctor` and the alert about a stopped DAG look at the run's state. The added task takes no worker.
    """
    from airflow.providers.standard.operators.empty import EmptyOperator

    EmptyOperator(task_id="all_succeed").set_upstream([*tasks])


AT_ONCE = 16_384
"""Maximum number of active runs of a DAG, and of active tasks of a block. With Airflow's default of 16, the 17th node
would wait while others are in burn-in, and the 17th question while 16 wait for a person; any number below the fleet's
size only delays a later node instead. The pools limit the load, and the workers limit the tasks.
"""

LOAD = {
    "demo": ("13 s", "12 min"),
    "short": ("17 min", "48 min"),
    "standard": ("4 h 45 min", "6 h 51 min"),
    "long": ("51 h 42 min", "80 h 13 min"),
}
"""Minimum time under load at each level, on a node of SKU cpu-generic and on one of h100-sxm-8. Constants, since every
DAG file reads them and adding up the programmes takes 0.7 s; a test compares the two."""

HOW_THOROUGHLY = "How thoroughly. At least so long under load, on a CPU node and on one with 8 GPUs: " + "; ".join(
    f"**{each}** {cpu} and {gpu}" for each, (cpu, gpu) in LOAD.items()
)


def field(*default: Any, **schema: Any) -> Param:
    """A form field. Every task validates all of them; JSON Schema draft 7 takes a fifth of the latest draft's time."""
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
