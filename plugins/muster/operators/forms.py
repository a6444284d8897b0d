"""What the DAG files share: the fields of their forms, each explained once, and the time limit of every task."""

from __future__ import annotations

import datetime

from airflow.sdk import Param

from muster_criteria.sku_files.programme import LEVELS

TASK_DEFAULTS = {"execution_timeout": datetime.timedelta(minutes=30)}
"""Bounds the work of every task in a worker; the time for which a task is deferred does not count."""

HOW_THOROUGHLY = "How thoroughly: **demo** seconds, **short** minutes, **standard** the usual, **long** hours."


def node(whose: str = "The node's name") -> Param:
    """One enrolled node."""
    return Param(type="string", minLength=1, title="Node", description_md=f"{whose}, as `muster node list` shows it.")


def level(default: str = "standard", *, title: str = "Level", description: str = HOW_THOROUGHLY) -> Param:
    """How thoroughly to test."""
    return Param(default, type="string", enum=list(LEVELS), title=title, description_md=description)


def reason(description: str = "Why the node is tested now; it stands in the report.") -> Param:
    """Why the run is wanted."""
    return Param("by hand", type="string", minLength=1, title="Reason", description_md=description)


def force_reason(whom: str = "the node", user: str = "it", refused: str = "a busy node refused") -> Param:
    """Why the in-use guard may be overruled; empty: it may not."""
    return Param(
        None,
        type=["null", "string"],
        title="Force, because",
        description_md=f"Test {whom} **although somebody uses {user}**, for this reason; it is recorded and mailed. "
        f"Leave empty to have {refused}.",
    )


def pool() -> Param:
    """The pool whose slots bound how many nodes are loaded at once."""
    return Param(
        None,
        type=["null", "string"],
        title="Pool",
        description_md="The Airflow pool that bounds how many nodes burn at once (a rack's, a PDU's). "
        "Empty: `muster_burn`.",
    )
