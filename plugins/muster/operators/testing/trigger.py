"""The trigger that waits for a job in the triggerer."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from muster.integration import logins
from muster.remote.job.waiting import Wait, Waiter, make_room


class JobTrigger(BaseTrigger):
    """Waits for one job; fires once, with the ``kind`` of its end (``outcome.Kind``).

    ``wait``: ``Wait.to_json()``, which is enough for another triggerer to take over.
    """

    def __init__(self, *, wait: dict[str, Any], ssh_conn_id: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wait = Wait.from_json(wait)
        self.ssh_conn_id = ssh_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments."""
        return "muster.operators.testing.trigger.JobTrigger", {
            "wait": self.wait.to_json(),
            "ssh_conn_id": self.ssh_conn_id,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until the job is over."""
        make_room()
        kind = await self._waiter().until_over()
        yield TriggerEvent({"kind": str(kind)})  # type: ignore[no-untyped-call]

    async def on_kill(self) -> None:
        """Stop the job on the node, after the task was marked failed or succeeded, or was cleared.

        Airflow 3.3 also calls this in a slow triggerer after its triggers have moved to another one
        (apache/airflow pull request 73454). The task is then still deferred, and the job continues.
        """
        if await self._still_deferred():
            self.log.info("the job on %s continues: another triggerer waits for it", self.wait.node.name)
            return
        self.log.info("stopping the job on %s", self.wait.node.name)
        stopped = await self._waiter().stop()
        level = logging.INFO if stopped else logging.ERROR
        self.log.log(level, "the job on %s %s", self.wait.node.name, "stopped" if stopped else "still runs")

    def _waiter(self) -> Waiter:
        credentials = functools.partial(logins.async_credentials, self.ssh_conn_id)
        return Waiter(self.wait, credentials, logins.bmc_login, self.log)

    async def _still_deferred(self) -> bool:
        """Whether the task still waits for this job; also true if unknown, since a leftover job ends with its run."""
        task: Any = self.task_instance
        if task is None:
            return False
        states_of = sync_to_async(RuntimeTaskInstance.get_task_states)
        try:
            states = await states_of(
                dag_id=task.dag_id, map_index=task.map_index, task_ids=[task.task_id], run_ids=[task.run_id]
            )
        except Exception as error:  # an unknown state must not end hours of work
            self.log.warning("the task's state cannot be read from Airflow (%s)", error)
            return True
        return "deferred" in states.get(task.run_id, {}).values()
