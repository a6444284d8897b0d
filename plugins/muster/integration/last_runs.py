"""When the DAGs with a schedule succeeded last, by Airflow's database."""

from __future__ import annotations

import datetime

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from muster.model.dags import STOPPED_AFTER


def successes() -> dict[str, datetime.datetime | None]:
    """{DAG: end of its last run that succeeded}; None for a DAG without one, for all if the database cannot be read."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    query = select(DagRun.dag_id, func.max(DagRun.end_date)).where(DagRun.state == "success")
    try:
        with create_session() as session:
            found = session.execute(query.where(DagRun.dag_id.in_(STOPPED_AFTER)).group_by(DagRun.dag_id)).all()
    except SQLAlchemyError:  # no DAG runs without it, and series that vanish would end the alert about that
        return dict.fromkeys(STOPPED_AFTER)
    return dict.fromkeys(STOPPED_AFTER) | {row[0]: row[1] for row in found}
