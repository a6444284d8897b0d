"""Starts the test of a node from its page: previewed first, then a DAG run under the viewer's login in Airflow."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.datamodels.dag_run import TriggerDAGRunPostBody
from airflow.api_fastapi.core_api.routes.public.dag_run import trigger_dag_run
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.models.dagbag import DBDagBag
from airflow.models.dagrun import DagRun
from fastapi import Depends, Form, Request
from sqlalchemy import select

from muster import store
from muster.admission.startable import exists, startable
from muster.errors import MusterError
from muster.integration.runid import run_id
from muster.model.dags import NODE_QUALIFICATION
from muster.model.nodes import Node
from muster.model.runs import RunKey
from muster.rules import preview
from muster.settings import settings
from muster.web.access import if_confirmed, testing_dag
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stages import LEVELS

audited = if_confirmed(action_logging("trigger_dag_run"))


class Start:
    """One test, as the form describes it: ``preview`` says what it would do and risks, ``apply`` starts its run."""

    def __init__(
        self,
        name: str,
        user: GetUserDep,
        session: SessionDep,
        request: Request,
        dag_id: Annotated[str, Depends(testing_dag)],
        level: Annotated[str, Form(max_length=20)],
        reason: Annotated[str, Form(max_length=500)] = "",
    ) -> None:
        self.node, self.level, self.reason = name, level, reason.strip()
        self.person = user.get_name()
        self.path = f"/node/{quote(name)}/test"
        self.fields = {"level": level, "reason": self.reason}
        self._dag_id = dag_id
        self._user, self._session, self._request = user, session, request

    def preview(self) -> tuple[str, list[str]]:
        """Returns (what would run and how long, its risks). Raises MusterError if it would not get the node."""
        node, run = self._wanted()
        used_by = startable(node, self._dag_id, run, self.level, self.reason, "")
        plans = preview.stage_plans(load_sku(node.sku, settings().sku_folders), self.level)
        usual_s = store.runs.typical_duration_s(node.sku, self.level, self._dag_id, simulated=node.simulated)
        needed = preview.time_needed(plans, usual_s, 1, 1)
        sentence = f"Run {run} of {self._dag_id} at level {self.level}: {needed}"
        return sentence, list(preview.risks_of_test(node, plans, used_by))

    def apply(self) -> None:
        """Start the run. Raises MusterError, HTTPException if Airflow refuses it."""
        node, run = self._wanted()
        startable(node, self._dag_id, run, self.level, self.reason, "")
        conf = {"node": node.name, "level": self.level, "reason": self.reason}
        conf |= {"pool": node.pool} if node.pool and self._dag_id == NODE_QUALIFICATION else {}
        body = TriggerDAGRunPostBody(dag_run_id=run, logical_date=None, conf=conf, note=f"{node.name}: {self.reason}")
        trigger_dag_run(self._dag_id, body, DBDagBag(), self._user, self._session, self._request)

    @property
    def run(self) -> str:
        """The run that ``apply`` started, as "dag_id/run_id"."""
        return str(RunKey(self._dag_id, run_id(self.node, self.reason)))

    def _wanted(self) -> tuple[Node, str]:
        if not self.reason:
            raise MusterError("give a reason: it stays in the node's history and names the run")
        if self.level not in LEVELS:
            raise MusterError(f"there is no level {self.level!r}: choose one of {', '.join(LEVELS)}")
        node = store.nodes.get(self.node)
        run = run_id(node.name, self.reason)
        # The records do not know a run that is queued, or whose claim was refused.
        if self._session.scalar(select(DagRun.id).where(DagRun.dag_id == self._dag_id, DagRun.run_id == run)):
            raise exists(run)
        return node, run
