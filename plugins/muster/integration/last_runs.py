"""When the DAGs with a schedule succeeded last, by Airflow's database."""

from __future__ import annotations

import datetime

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from muster.model.dags import STOPPED_AFTER

KNOWN = 2 * max(STOPPED_AFTER.values())
"""How far back runs are searched: `run_after` has an index, and Airflow keeps runs for years."""


def successes() -> dict[str, datetime.datetime | None]:
    """{DAG: end of its last run that succeeded}; None without one in ``KNOWN``, for all if the database is away."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    query = select(DagRun.dag_id, func.max(DagRun.end_date)).where(
        DagRun.state == "success", DagRun.dag_id.in_(STOPPED_AFTER),
        DagRun.run_after > datetime.datetime.now(datetime.UTC) - KNOWN,
    ).group_by(DagRun.dag_id)  # fmt: skip
    try:
        with create_session() as session:
            found = session.execute(query).all()
    except SQLAlchemyError:  # no DAG runs without it, and the alert about that would end if the series vanished
        return dict.fromkeys(STOPPED_AFTER)
    return dict.fromkeys(STOPPED_AFTER) | {row[0]: row[1] for row in found}
