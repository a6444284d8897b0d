"""Questions to people about a node, and their answers.

A question records the newest evidence on the node when it was asked. An answer is stored once, as Airflow delivers it
to the task that asked, and carried out once, provided that the node's evidence is still the same.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from muster.errors import IllegalMove, Refusal
from muster.model.questions import Question
from muster.model.runs import RunKey
from muster.model.states import SERVING, State
from muster.settings import settings
from muster.store.database import access
from muster.store.database.decisions import QuestionRow
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, NodeRow, StageRow

_TESTED_IN = (SERVING, frozenset({State.QUALIFIED, State.CLUSTER_VALIDATION}))
"""A test moves a node between the states of one group, and back. A block asks before it releases its members."""


def newest(node: str) -> str:
    """The node's newest evidence, as ``Question.about`` holds it. Raises UnknownNode."""
    with reading() as session:
        access.node_row(session, node)
        return _newest(session, [node])[node]


def put(
    key: RunKey,
    node: str,
    about: str,
    subject: str = "",
    options: Sequence[str] = (),
    run_after: datetime.datetime | None = None,
) -> Question:
    """Store the question of a run. An answered one stays as it is. The waiting time of an open one about the same
    evidence starts again, as in Airflow, where the run asks again.

    A cleared run asks a new question if the evidence has changed or the old question has expired. So does another run
    with this id: Airflow no longer knows the first, so no answer can come. Raises UnknownNode.
    """
    with writing() as session:
        access.node_row(session, node)
        row = _row(session, key, lock=True)
        if row is not None and row.answered_at is None and not _asks_still(row, about, run_after):
            session.delete(row)  # rather than updated: a new question gets a new number
            session.flush()
            row = None
        if row is None:
            row = QuestionRow(
                dag_id=key.dag_id, run_id=key.run_id, node=node, asked_at=access.now(), about=about, subject=subject,
                options=list(options), run_after=run_after,
            )  # fmt: skip
            session.add(row)
            session.flush()
        elif row.answered_at is None:
            row.asked_at = access.now()
        return _value(row)


def _asks_still(row: QuestionRow, about: str, run_after: datetime.datetime | None) -> bool:
    over = row.asked_at <= access.now() - _lasts()
    return row.about == about and not over and not access.is_another(row, run_after)


def find(key: RunKey, run_after: datetime.datetime | None = None) -> Question | None:
    """The question that the run asked, None if it asked none.

    Raises IllegalMove if the answer was given to another run with this id, whose ``run_after`` in Airflow differs.
    """
    with reading() as session:
        row = _row(session, key)
        if row is not None and row.answered_at is not None:
            access.refuse_another(row, run_after, row.asked_at)
        return _value(row) if row else None


def waiting() -> list[tuple[Question, datetime.datetime]]:
    """The open questions that no newer evidence has outdated, oldest first, each with the time when it closes.

    Of several about one node, only the last.
    """
    with reading() as session:
        rows = {row.node: row for row in _unanswered(session)}.values()
        old = _outdated(session, rows)
    asked = sorted((row for row in rows if row not in old), key=lambda row: row.id)
    return [(_value(row), row.asked_at + _lasts()) for row in asked]


def end(key: RunKey) -> datetime.datetime | None:
    """When the question of that run closes without an answer; None if it put none."""
    with reading() as session:
        row = _row(session, key)
        return row.asked_at + _lasts() if row else None


def waits(session: Session, node: str) -> bool:
    """Whether ``waiting`` has a question about the node."""
    rows = _unanswered(session, QuestionRow.node == node)
    return len(_outdated(session, rows)) < len(rows)


def outdated() -> frozenset[RunKey]:
    """The runs whose answer would be refused, since the node has newer evidence; Airflow keeps their questions open."""
    with reading() as session:
        return frozenset(RunKey(row.dag_id, row.run_id) for row in _outdated(session, _unanswered(session)))


def unmailed() -> list[tuple[Question, datetime.datetime]]:
    """Those of ``waiting`` that were not mailed yet."""
    query = select(QuestionRow.dag_id, QuestionRow.run_id).where(~QuestionRow.mailed)
    with reading() as session:
        new = {RunKey(*row) for row in session.execute(query)}
    return [(question, until) for question, until in waiting() if question.key in new]


def note_mailed(keys: Sequence[RunKey]) -> None:
    """Note that these questions were mailed."""
    with writing() as session:
        for key in keys:
            if (row := _row(session, key)) is not None:
                row.mailed = True


def unanswered() -> dict[RunKey, datetime.datetime]:
    """{run: when it asked} of the questions that Airflow may still keep open."""
    with reading() as session:
        return {RunKey(row.dag_id, row.run_id): row.asked_at for row in _unanswered(session)}


def drop(key: RunKey, asked_at: datetime.datetime) -> bool:
    """Delete the question of a run that is over, since no answer can come; returns whether it was there.

    One that has an answer, or was put again since ``asked_at``, stays.
    """
    with writing() as session:
        row = _row(session, key, lock=True)
        if row is None or row.answered_at is not None or row.asked_at != asked_at:
            return False
        session.delete(row)
        return True


def answer(key: RunKey, option: str, person: str, reason: str) -> Question:
    """Store the answer as Airflow delivered it; the first one stays. Raises IllegalMove if nothing was asked."""
    with writing() as session:
        row = _row(session, key, lock=True)
        if row is None:
            raise IllegalMove(f"run {key.run_id} of {key.dag_id} has asked nothing", Refusal.UNANSWERED)
        if row.answered_at is None:
            row.option, row.person, row.reason, row.answered_at = option, person, reason, access.now()
        return _value(row)


def check(key: RunKey) -> None:
    """Raise IllegalMove if the node's evidence is newer than the question of that run; without one, pass."""
    with reading() as session:
        row = _row(session, key)
        if row is not None and row.settled_at is None:
            _check(session, row)


def settle(key: RunKey) -> None:
    """Note that the answer is carried out, in the transaction that does so.

    Raises IllegalMove if there is none, it was carried out before, or the node's evidence is newer than the question.
    """
    with writing() as session:
        row = _row(session, key, lock=True)
        if row is None or row.answered_at is None:
            raise IllegalMove(f"no answer to run {key.run_id} of {key.dag_id} is recorded", Refusal.UNANSWERED)
        if row.settled_at is not None:
            raise IllegalMove(
                f"the answer to run {key.run_id} of {key.dag_id} was carried out before", Refusal.OUTDATED
            )
        access.node_row(session, row.node, lock=True)
        _check(session, row)
        row.settled_at = access.now()


def _lasts() -> datetime.timedelta:
    return datetime.timedelta(hours=settings().approval_hours)


def _unanswered(session: Session, *which: ColumnElement[bool]) -> Sequence[QuestionRow]:
    """The questions that match ``which`` and that Airflow may still keep open, oldest first."""
    query = select(QuestionRow).where(QuestionRow.answered_at.is_(None), QuestionRow.asked_at > access.now() - _lasts())
    return session.scalars(query.where(*which).order_by(QuestionRow.id)).all()


def _outdated(session: Session, rows: Collection[QuestionRow]) -> set[QuestionRow]:
    """Those of ``rows`` whose node has newer evidence."""
    newest = _newest(session, {row.node for row in rows}) if rows else {}
    return {row for row in rows if newest[row.node] != row.about}


def _check(session: Session, row: QuestionRow) -> None:
    if _outdated(session, [row]):
        raise IllegalMove(
            f"the records hold newer evidence on {row.node} than run {row.run_id} of {row.dag_id} asked about on "
            f"{row.asked_at:%Y-%m-%d %H:%M} UTC: `muster status` names what to do now",
            Refusal.OUTDATED,
        )


def _newest(session: Session, nodes: Collection[str]) -> dict[str, str]:
    """{node: its newest evidence}, in one statement, since every page view needs it.

    By sequence, not by time: the last verdict, the last move (without those that a test makes within a group of
    ``_TESTED_IN``), the machine, and the verdict that is held.
    """
    judged = select(func.max(StageRow.id)).where(StageRow.node == NodeRow.name)
    moved = select(func.max(EventRow.id)).where(EventRow.node == NodeRow.name, EventRow.from_state != EventRow.to_state)
    for within in _TESTED_IN:
        moved = moved.where(~and_(EventRow.from_state.in_(within), EventRow.to_state.in_(within)))
    query = select(
        NodeRow.name, func.coalesce(judged.scalar_subquery(), 0), func.coalesce(moved.scalar_subquery(), 0),
        NodeRow.machine, NodeRow.held_run,
    ).where(NodeRow.name.in_(nodes))  # fmt: skip
    return {name: " ".join(map(str, found)) for name, *found in session.execute(query)}


def _row(session: Session, key: RunKey, *, lock: bool = False) -> QuestionRow | None:
    query = select(QuestionRow).where(QuestionRow.dag_id == key.dag_id, QuestionRow.run_id == key.run_id)
    return session.scalar(query.with_for_update() if lock else query)


def _value(row: QuestionRow) -> Question:
    return Question(
        number=row.id, dag_id=row.dag_id, run_id=row.run_id, node=row.node, asked_at=row.asked_at, about=row.about,
        option=row.option, person=row.person, reason=row.reason, answered_at=row.answered_at,
        settled_at=row.settled_at, subject=row.subject, options=tuple(row.options),
    )  # fmt: skip
