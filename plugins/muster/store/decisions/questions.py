"""Questions to people about a node, and their answers.

A question carries what it is about: the newest evidence on the node when it was put. An answer is stored once, as
Airflow delivers it to the task that asked, and carried out once, while the node's evidence is still the same.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from muster.errors import IllegalMove, Refusal
from muster.model.questions import Question
from muster.model.runs import RunKey
from muster.model.states import SERVING, State
from muster.settings import settings
from muster.store.database import access
from muster.store.database.decisions import QuestionRow
from muster.store.database.engine import reading, writing
from muster.store.database.models import EventRow, NodeRow

_TESTED_IN = (SERVING, frozenset({State.QUALIFIED, State.CLUSTER_VALIDATION}))
"""Between these states a test takes a node and returns it. A block asks before it releases its members."""


def newest(node: str) -> str:
    """What a question about the node that is put now is about. Raises UnknownNode."""
    with reading() as session:
        return _newest(session, access.node_row(session, node))


def put(
    key: RunKey,
    node: str,
    about: str,
    subject: str = "",
    options: Sequence[str] = (),
    run_after: datetime.datetime | None = None,
) -> Question:
    """Store the question of a run, once: what it is about stays as it was put first.

    It takes the place of the question that another run of this id put without an answer: Airflow knows that run no
    more, so no answer can come. Raises UnknownNode.
    """
    with writing() as session:
        access.node_row(session, node)
        row = _row(session, key)
        if row is not None and row.answered_at is None and access.is_another(row, run_after):
            session.delete(row)
            session.flush()
            row = None
        if row is None:
            row = QuestionRow(
                dag_id=key.dag_id, run_id=key.run_id, node=node, asked_at=access.now(), about=about, subject=subject,
                options=list(options), run_after=run_after,
            )  # fmt: skip
            session.add(row)
            session.flush()
        return _value(row)


def find(key: RunKey, run_after: datetime.datetime | None = None) -> Question | None:
    """The question that the run put, None if it put none.

    Raises IllegalMove if it was answered, to another run of this id than that with ``run_after`` in Airflow.
    """
    with reading() as session:
        row = _row(session, key)
        if row is not None and row.answered_at is not None:
            access.refuse_another(row, run_after, row.asked_at)
        return _value(row) if row else None


def waiting() -> list[tuple[Question, datetime.datetime]]:
    """The questions without an answer that their node's evidence still asks, the oldest first, each with its end.

    Of several about one node, the last.
    """
    with reading() as session:
        rows = {row.node: row for row in _unanswered(session)}
        asked = [row for row in rows.values() if not _is_outdated(session, row)]
    return [(_value(row), row.asked_at + _lasts()) for row in sorted(asked, key=lambda row: row.id)]


def waits(session: Session, node: str) -> bool:
    """Whether ``waiting`` has a question about the node."""
    return any(row.node == node and not _is_outdated(session, row) for row in _unanswered(session))


def outdated() -> frozenset[RunKey]:
    """The runs whose answer would be refused, as the node's evidence is newer: Airflow keeps their questions open."""
    with reading() as session:
        return frozenset(RunKey(row.dag_id, row.run_id) for row in _unanswered(session) if _is_outdated(session, row))


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


def _unanswered(session: Session) -> Sequence[QuestionRow]:
    """The questions that Airflow may still keep open, the oldest first."""
    query = select(QuestionRow).where(QuestionRow.answered_at.is_(None), QuestionRow.asked_at > access.now() - _lasts())
    return session.scalars(query.order_by(QuestionRow.id)).all()


def _is_outdated(session: Session, row: QuestionRow) -> bool:
    return _newest(session, access.node_row(session, row.node)) != row.about


def _check(session: Session, row: QuestionRow) -> None:
    if _is_outdated(session, row):
        raise IllegalMove(
            f"the records hold newer evidence on {row.node} than run {row.run_id} of {row.dag_id} asked about on "
            f"{row.asked_at:%Y-%m-%d %H:%M} UTC: `muster status` names what to do now",
            Refusal.OUTDATED,
        )


def _newest(session: Session, node: NodeRow) -> str:
    """By sequence, not by time: the last verdict, the last move (but for those of a test that leaves the node where it
    was, with its verdict if it has one), the verdict that is held, and the machine.
    """
    moved = select(func.max(EventRow.id)).where(EventRow.node == node.name, EventRow.from_state != EventRow.to_state)
    for states in _TESTED_IN:
        within = [str(state) for state in states]
        moved = moved.where(~and_(EventRow.from_state.in_(within), EventRow.to_state.in_(within)))
    found = (access.last_stage(session, node), session.scalar(moved) or 0, node.machine, node.held_run)
    return " ".join(map(str, found))


def _row(session: Session, key: RunKey, *, lock: bool = False) -> QuestionRow | None:
    query = select(QuestionRow).where(QuestionRow.dag_id == key.dag_id, QuestionRow.run_id == key.run_id)
    return session.scalar(query.with_for_update() if lock else query)


def _value(row: QuestionRow) -> Question:
    return Question(
        row.dag_id, row.run_id, row.node, row.asked_at, row.about, row.option, row.person, row.reason, row.answered_at,
        row.settled_at, row.subject, tuple(row.options),
    )  # fmt: skip
