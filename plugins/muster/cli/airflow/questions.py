"""The questions in Airflow that wait for a person."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from muster.model.runs import RunKey

if TYPE_CHECKING:
    from muster.integration.airflow_api import AirflowClient


def waiting(airflow: AirflowClient) -> list[Question]:
    """The questions that wait for a person. Raises MusterError if Airflow does not give them."""
    return [Question.of(each) for each in airflow.hitl_pending()]


def answerable(waiting: Iterable[Question]) -> list[Question]:
    """The questions that newer evidence in the records has not outdated; Airflow keeps outdated ones open too."""
    from muster import store

    outdated = store.questions.outdated()
    return [each for each in waiting if RunKey(each.dag, each.run) not in outdated]


@dataclasses.dataclass(frozen=True)
class Question:
    """An open question: its run, its subject, and its possible answers."""

    dag: str
    run: str
    task: str
    subject: str
    options: tuple[str, ...]

    @classmethod
    def of(cls, waiting: Mapping[str, Any]) -> Question:
        """Returns the question that Airflow's REST API describes."""
        task = waiting["task_instance"]
        options = tuple(map(str, waiting["options"]))
        return cls(task["dag_id"], task["dag_run_id"], task["task_id"], str(waiting["subject"]), options)
