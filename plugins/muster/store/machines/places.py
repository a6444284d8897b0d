"""Places in the fabric that one block loads at a time: the uplinks of a leaf, the way out of a pod.

Two blocks that send over the same uplinks at once would slow each other, and find parts slow that are not.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, exists, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from muster.errors import PlaceLoaded
from muster.model.runs import RunKey
from muster.store.database import access
from muster.store.database.engine import writing
from muster.store.database.fabric import LoadedPlaceRow
from muster.store.database.models import LeaseRow


def load(key: RunKey, places: Collection[str]) -> None:
    """Take these places, and no others, for a run that holds its nodes; the places go with the nodes.

    Raises PlaceLoaded naming each place and the run that loads it; then none is taken.
    """
    with writing() as session:
        live = exists().where(
            LeaseRow.dag_id == LoadedPlaceRow.dag_id,
            LeaseRow.run_id == LoadedPlaceRow.run_id,
            LeaseRow.released_at.is_(None),
        )
        mine = (LoadedPlaceRow.dag_id == key.dag_id) & (LoadedPlaceRow.run_id == key.run_id)
        session.execute(delete(LoadedPlaceRow).where(~live | mine))
        # In one order: two blocks that share places cannot deadlock.
        refusals = [why for place in sorted(set(places)) if (why := _take(session, key, place))]
        if refusals:
            raise PlaceLoaded(
                f"another block sends over the same links: {'; '.join(refusals)}; "
                "wait for that run, or end it in Airflow"
            )


def _take(session: Session, key: RunKey, place: str) -> str:
    """Why the place cannot be taken, "" if it was. The primary key decides between two that take it at once."""
    try:
        with session.begin_nested():
            session.add(LoadedPlaceRow(place=place, dag_id=key.dag_id, run_id=key.run_id, since=access.now()))
        return ""
    except IntegrityError:
        row = session.scalar(select(LoadedPlaceRow).where(LoadedPlaceRow.place == place))
        if row is None:
            return f"{place} by a run that ended just now"
        return f"{place} by run {row.run_id} of {row.dag_id} since {row.since:%Y-%m-%d %H:%M} UTC"
