"""Asks Airflow what a viewer may do (its auth manager decides), and which node a run or a task is about.

Pages show forms only to those who may send them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from fastapi import Depends, Form, HTTPException, Request
from sqlalchemy import select

from muster import store
from muster.model.dags import ADMISSION, NODE_QUALIFICATION, NODE_REVALIDATION
from muster.model.states import SERVING

read = requires_access_view(AccessView.PLUGINS)
"""Those who may see plugins may see the Fleet page and the read API."""
decide = requires_access_dag("POST", DagAccessEntity.RUN, ADMISSION)
"""Those who may start runs of this DAG may decide about nodes."""
respond = requires_access_dag("PUT", DagAccessEntity.HITL_DETAIL)
"""Those who may answer the questions of the DAG that the address names."""


def allowed(user: BaseUser, method: ResourceMethod, entity: DagAccessEntity, dag_id: str) -> bool:
    """Whether the viewer may do that with the DAG."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user))


def may_decide(user: GetUserDep) -> bool:
    """Whether the viewer may decide about nodes."""
    return allowed(user, "POST", DagAccessEntity.RUN, ADMISSION)


def testing_dag(name: str) -> str:
    """The DAG whose runs test this node now. Raises UnknownNode."""
    return NODE_REVALIDATION if store.nodes.get(name).state in SERVING else NODE_QUALIFICATION


def may_start(user: GetUserDep, dag_id: Annotated[str, Depends(testing_dag)]) -> bool:
    """Whether the viewer may start a test of this node."""
    return allowed(user, "POST", DagAccessEntity.RUN, dag_id)


def start(may: Annotated[bool, Depends(may_start)], dag_id: Annotated[str, Depends(testing_dag)]) -> None:
    """Refuse a viewer who may not start a test of this node. Raises HTTPException."""
    if not may:
        raise HTTPException(403, f"your login may not start runs of {dag_id}")


Log = Callable[[Request, SessionDep, GetUserDep], Awaitable[None]]


def if_confirmed(log: Log) -> Callable[..., Awaitable[None]]:
    """The dependency that writes Airflow's audit log of a change, and nothing of a preview."""

    async def logged(
        request: Request, session: SessionDep, user: GetUserDep, confirmed: Annotated[str, Form()] = ""
    ) -> None:
        if confirmed:
            await log(request, session, user)

    return logged


def node_of(session: SessionDep, dag_id: str, run_id: str, task_id: str = "", map_index: str = "") -> str:
    """The node that a run, or a mapped task of a block's run, is about; "" if Airflow does not know one.

    A block's tasks have their member as the name of their map index; runs of one node name it in their conf.
    ``map_index``: no number on the page of a task that is not mapped, where Airflow fills in nothing.
    """
    if map_index.isdecimal():
        task = session.scalar(
            select(TaskInstance).where(
                TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id,
                TaskInstance.task_id == task_id, TaskInstance.map_index == int(map_index),
            )
        )  # fmt: skip
        return (task.rendered_map_index or "") if task else ""
    conf = session.scalar(select(DagRun.conf).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)) or {}
    return str(conf.get("node", ""))
