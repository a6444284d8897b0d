"""A question to a person about a node, and its answer."""

from __future__ import annotations

import dataclasses
import datetime

from muster.model.runs import OfRun


@dataclasses.dataclass(frozen=True)
class Question(OfRun):
    """A question of one DAG run and its answer. ``number``: tells several questions of a run apart. ``answered_at``:
    None until a person has answered; ``settled_at``: None until the answer is carried out. ``person``: the login of
    Airflow, "" if it named none. ``subject`` and ``options``: what is asked, and the possible answers.
    """

    number: int
    dag_id: str
    run_id: str
    node: str
    asked_at: datetime.datetime
    about: str
    option: str
    person: str
    reason: str
    answered_at: datetime.datetime | None
    settled_at: datetime.datetime | None
    subject: str = ""
    options: tuple[str, ...] = ()
