"""The questions that wait for a person, each with its evidence; the answer is the one of Airflow's own page."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from fastapi import Depends, Form, Query
from sqlalchemy import Select, func, select, tuple_

from muster import acting, store
from muster.admission import answers
from muster.errors import MusterError, UnknownNode
from muster.integration.airflow_api import REASON, WAITS
from muster.model.dags import ASKING, HELD_VERDICT
from muster.model.nodes import Node
from muster.model.runs import OpenFinding, Run, RunKey
from muster.rules.lifecycle.decisions import is_person
from muster.rules.lifecycle.gate import Admit
from muster.web import peers, plots
from muster.web.access import allowed, if_confirmed
from muster_reports.model import RunReport

PAGE = 20
"""The most questions of a page: each costs a whole report."""

audited = if_confirmed(action_logging("update_hitl_detail"))
"""Airflow's audit log names the answer like one given on Airflow's own page."""


@dataclasses.dataclass(frozen=True)
class Question:
    """One open question, as Airflow keeps it. ``answerable``: the viewer may answer it."""

    dag_id: str
    run_id: str
    task_id: str
    node: str
    subject: str
    options: tuple[str, ...]
    since: datetime.datetime
    answerable: bool


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What the records hold about the node of a question. ``strips``: the figures out of limits.

    ``effects``: (answer, what it will do). ``until``: when the question closes without an answer.
    """

    node: Node
    reasons: tuple[str, ...]
    run: Run | None
    findings: Sequence[OpenFinding]
    strips: Sequence[plots.Strip]
    effects: Sequence[tuple[str, Sequence[str]]]
    until: datetime.datetime | None


def pending(session: SessionDep, user: GetUserDep, page: Annotated[int, Query(ge=1)] = 1) -> list[Question]:
    """A page of the open questions of DAGs that the viewer may read, the oldest first, and one more if there is one."""
    query = _open(user).order_by(HITLDetail.created_at, HITLDetail.ti_id)
    return _questions(session, user, query.offset((page - 1) * PAGE).limit(PAGE + 1))


def waiting(session: SessionDep, user: GetUserDep) -> int:
    """How many questions of DAGs that the viewer may read are open."""
    return session.scalar(select(func.count()).select_from(_open(user).subquery())) or 0


def about(session: SessionDep, user: GetUserDep, name: str) -> list[Question]:
    """The open questions about the node, the oldest first."""
    return _questions(session, user, _open(user, name).order_by(HITLDetail.created_at).limit(PAGE))


def _open(user: BaseUser, node: str = "") -> Select[HITLDetail]:
    """The open questions without outdated ones, which Airflow keeps open although their answers are refused."""
    # Airflow's filter of readable DAGs reads the state of Airflow's own application, which a mounted one has not.
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET").intersection(ASKING)
    outdated = [(key.dag_id, key.run_id) for key in store.questions.outdated()]
    query = (
        select(HITLDetail)
        .join(TaskInstance, HITLDetail.ti_id == TaskInstance.id)
        .where(HITLDetail.responded_at.is_(None), TaskInstance.dag_id.in_(readable))
        .where(TaskInstance.state.in_(WAITS))
        .where(tuple_(TaskInstance.dag_id, TaskInstance.run_id).not_in(outdated))
    )
    return query.where(TaskInstance.dag_run.has(DagRun.conf["node"].as_string() == node)) if node else query


def _questions(session: SessionDep, user: BaseUser, query: Select[HITLDetail]) -> list[Question]:
    answerable = {dag_id: allowed(user, "PUT", DagAccessEntity.HITL_DETAIL, dag_id) for dag_id in ASKING}
    return [
        Question(
            task.dag_id, task.run_id, task.task_id, str((task.dag_run.conf or {}).get("node", "")),
            each.subject, tuple(each.options), each.created_at, answerable[task.dag_id],
        )
        for each in session.scalars(query)
        for task in (each.task_instance,)
    ]  # fmt: skip


def evidence(asked: Question) -> Evidence | None:
    """The evidence for and against; None if the records know no such node."""
    try:
        node = store.nodes.get(asked.node)
    except UnknownNode:
        return None
    if asked.dag_id == HELD_VERDICT and node.held_run:
        run: Run | None = store.runs.get(node.held_run, node=node.name)
    else:
        run = store.runs.last(node.name)
    report: RunReport | None = store.reporting.run(run.key, node=node.name, attached=False) if run else None
    strips = plots.strips(plots.seen(report), peers.bands(report)) if report else []
    failed = [each for each in strips if each.failed]
    return Evidence(
        node, reasons(asked, node), run, store.verdicts.open_findings(node.name), failed, effects(asked, node),
        store.questions.end(RunKey.of(asked)),
    )  # fmt: skip


def effects(asked: Question, node: Node) -> list[tuple[str, Sequence[str]]]:
    """(answer, what it will do) for each answer to the question."""
    return [(option, answers.effects(option, node)) for option in asked.options]


def reasons(asked: Question, node: Node) -> tuple[str, ...]:
    """Why a person decides; empty if the records have nothing against the node."""
    if asked.dag_id == HELD_VERDICT and node.held_run:
        return (store.runs.get(node.held_run, node=node.name).why_held,)
    decision = store.admission.decision(node.name)
    return () if isinstance(decision, Admit) else tuple(decision.reasons)


def one(session: SessionDep, user: GetUserDep, dag_id: str, dag_run_id: str, task_id: str) -> Question | None:
    """The open question of that task, if there is one."""
    where = (TaskInstance.dag_id == dag_id, TaskInstance.run_id == dag_run_id, TaskInstance.task_id == task_id)
    return next(iter(_questions(session, user, _open(user).where(*where))), None)


class Answer:
    """One answer, as the form has it: ``preview`` says what it will do, ``apply`` gives it as Airflow's page does.

    ``back``: the node on whose page it is given, "" for the page of all questions.
    """

    def __init__(
        self,
        asked: Annotated[Question | None, Depends(one)],
        user: GetUserDep,
        session: SessionDep,
        dag_id: Literal["admission", "held_verdict"],
        dag_run_id: str,
        task_id: str,
        option: Annotated[str, Form(max_length=40)],
        reason: Annotated[str, Form(max_length=500)] = "",
        node: Annotated[str, Form(max_length=200)] = "",
    ) -> None:
        self._asked, self._user, self._session = asked, user, session
        self.node = asked.node if asked else ""
        self.option, self.reason, self.back = option, reason.strip(), node
        self.person = user.get_name()
        self.path = "/approvals/" + "/".join(quote(each, safe="") for each in (dag_id, dag_run_id, task_id))
        self.fields = {"option": option, "reason": self.reason, "node": node}

    def preview(self) -> tuple[str, tuple[str, ...]]:
        """Returns (the answer, what it will do); nothing changes. Raises MusterError where it would be refused."""
        asked = self._question()
        answers.check(self.option, store.nodes.get(asked.node), RunKey.of(asked))
        with acting.under(acting.airflow_login(self.person)), store.engine.rehearsal():
            answers.carry_out(self.option, asked.node, self.person, self.reason)
        return f"{self.option}: {asked.node}", answers.effects(self.option, store.nodes.get(asked.node))

    def apply(self) -> None:
        """Give the answer under the viewer's login. Raises MusterError; HTTPException if Airflow refuses it."""
        asked = self._question()
        answers.check(self.option, store.nodes.get(asked.node), RunKey.of(asked))
        payload = UpdateHITLDetailPayload(chosen_options=[self.option], params_input={REASON: self.reason})
        update_hitl_detail(asked.dag_id, asked.run_id, asked.task_id, payload, self._user, self._session)

    def _question(self) -> Question:
        if not self.reason:
            raise MusterError("give a reason: it stays in the node's history")
        if not is_person(self.person):
            raise MusterError(f"the login {self.person!r} names no person: log in under your own name to answer")
        if self._asked is None:
            raise MusterError("this question is not open any more: somebody has answered it, or its time is over")
        if self.option not in self._asked.options:
            raise MusterError(f"there is no answer {self.option!r}: choose one of {', '.join(self._asked.options)}")
        return self._asked
