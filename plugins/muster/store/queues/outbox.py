"""Mails waiting to be sent: stored first, so that none is lost while the mail server is down."""

from __future__ import annotations

import contextlib
import datetime
import email
import email.policy
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from muster.model.queues import OutboxMessage, ParkedMail
from muster.rules.lifecycle.decisions import check_decision
from muster.store.database import access
from muster.store.database.engine import reading, writing
from muster.store.database.outgoing import OutboxRow

RETRY_FIRST = datetime.timedelta(minutes=4)
"""Less than the five minutes between two deliveries of the housekeeping DAG."""

RETRY_MAX = datetime.timedelta(hours=6)

CLAIMED = datetime.timedelta(minutes=4)
"""How long a mail is left to the process that has begun to send it; that process may have died."""

NOTIFICATION = "notify/"
"""Begins the key of each notification in the outbox; the rest are mails."""
LIST = "flood/"
"""Begins the key of each list of mails; in the key of a list of notifications it follows the rule."""
NOTIFICATION_AGE = datetime.timedelta(hours=24)
"""How long a notification is tried: later, what it reports would be over."""


def add(key: str, message: bytes, due: datetime.datetime | None = None) -> str:
    """Put a mail in the outbox: "added", or "replaced" if one of that key was still waiting, or "sent already".

    ``key`` names what the mail is about ("node_qualification/gpu-0001__new"), so that a retry does not mail twice.
    ``due``: when to send it at the earliest. A mail that some recipients have already got goes only to the others in
    its new header. One that is being sent at this moment is not sent again before that has ended.
    """
    with writing() as session:
        row, new = _put(session, key, message, due)
        if new:
            return "added"
        if row.sent_at is not None:
            return "sent already"
        if row.recipients:
            left = _left(row, message)
            if not left:
                row.sent_at, row.parked_at, row.message = access.now(), None, b""
                return "sent already"
            row.recipients = ",".join(left)
        row.message, row.retry_at, row.parked_at, row.attempts = message, due, None, 0
        row.due_at = due or row.created_at
        return "replaced"


def _put(session: Session, key: str, message: bytes, due: datetime.datetime | None) -> tuple[OutboxRow, bool]:
    """(the row with that key, locked; whether it was made now, with this message)."""
    found = select(OutboxRow).where(OutboxRow.key == key).with_for_update()
    if (row := session.scalar(found)) is not None:
        return row, False
    row = _made(key, message, due)
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:  # another process made it at this moment
        return session.scalars(found).one(), False
    return row, True


def _left(row: OutboxRow, message: bytes) -> list[str]:
    """The mailboxes that still need ``message``: all but the row's ``recipients`` got its earlier version."""
    refused = {each.lower() for each in row.recipients.split(",")}
    had = {each.lower() for each in _mailboxes(row.message)} - refused
    return sorted(each for each in _mailboxes(message) if each.lower() not in had)


def _mailboxes(message: bytes) -> list[str]:
    header = email.message_from_bytes(message, policy=email.policy.SMTP)["To"]
    return [each.addr_spec for each in header.addresses]


def _made(key: str, message: bytes, due: datetime.datetime | None) -> OutboxRow:
    now = access.now()
    return OutboxRow(
        key=key, message=message, created_at=now, attempts=0, last_error="", retry_at=due, due_at=due or now, lines={}
    )


def gather(key: str, about: str, line: str, made: Callable[[Sequence[str]], bytes], due: datetime.datetime) -> bool:
    """Add a line about ``about``, once, to the list that waits under ``key``; False if that was sent without it.

    ``made``: makes the message of all lines. ``due``: when to send it at the earliest.
    """
    with writing() as session:
        row, _ = _put(session, key, b"", due)
        if row.sent_at is not None:
            return about in row.lines
        row.lines = {**row.lines, about: line}
        row.message = made(list(row.lines.values()))
        return True


def notify(rule: str, about: str, known: Mapping[str, object], due: datetime.datetime | None = None) -> str:
    """Put a notification of ``rule`` about ``about`` in the outbox, once; returns its key.

    ``known``: the values for its templates. ``due``: when to send it at the earliest.
    """
    key = f"{NOTIFICATION}{rule}/{about}"
    add(key, notification(known, due or access.now()), due)
    return key


def notification(known: Mapping[str, object], begins: datetime.datetime) -> bytes:
    """A notification as the outbox stores it. ``begins``: when it is first tried."""
    return json.dumps({"known": known, "last": (begins + NOTIFICATION_AGE).isoformat()}).encode()


def resend(key: str, person: str, reason: str) -> bool:
    """Make the mail of ``key`` due now, a parked one too; returns whether there is an unsent mail of that key.

    A notification is tried for another ``NOTIFICATION_AGE``. Raises NoPerson without a named person and a reason.
    """
    check_decision(person, reason, f"the mail {key} is not sent again")
    with writing() as session:
        row = session.scalar(
            select(OutboxRow).where(OutboxRow.key == key, OutboxRow.sent_at.is_(None)).with_for_update()
        )
        if row is not None:
            row.retry_at, row.parked_at, row.due_at = None, None, access.now()
            if key.startswith(NOTIFICATION):
                row.message = notification(json.loads(row.message)["known"], access.now())
            access.write_decision(session, person, reason, f"mail {key} sent again", {"mail": key})
        return row is not None


def drop(key: str, person: str, reason: str) -> bool:
    """Delete the unsent mail of ``key``; returns whether there was one. Raises NoPerson as ``resend``.

    Its key counts as sent, so that no later try makes the mail again.
    """
    check_decision(person, reason, f"the mail {key} is not dropped")
    with writing() as session:
        row = session.scalar(
            select(OutboxRow).where(OutboxRow.key == key, OutboxRow.sent_at.is_(None)).with_for_update()
        )
        if row is not None:
            row.sent_at, row.parked_at, row.message = access.now(), None, b""
            access.write_decision(session, person, reason, f"mail {key} dropped unsent", {"mail": key})
        return row is not None


def pending(
    limit: int = 100,
    *,
    due: bool = False,
    key: str | None = None,
    notifications: bool | None = None,
    but_of: Collection[str] = (),
) -> list[OutboxMessage]:
    """The unsent mails, then notifications, oldest first, without their bytes: a hundred mails may have 600 MB.

    ``due``: only those that may be tried now. ``key``: only the one with that key. ``notifications``: only
    notifications if true, only mails if false. ``but_of``: rules whose notifications are left out.
    """
    columns = (
        OutboxRow.id,
        OutboxRow.key,
        OutboxRow.created_at,
        OutboxRow.attempts,
        OutboxRow.last_error,
        OutboxRow.retry_at,
    )
    query = select(*columns, OutboxRow.recipients).where(OutboxRow.sent_at.is_(None), OutboxRow.parked_at.is_(None))
    if key is not None:
        query = query.where(OutboxRow.key == key)
    if notifications is not None:
        query = query.where(OutboxRow.key.startswith(NOTIFICATION).is_(notifications))
    for rule in but_of:
        query = query.where(~OutboxRow.key.startswith(f"{NOTIFICATION}{rule}/", autoescape=True))
    if due:
        query = query.where(_may_be_tried())
    with reading() as session:
        rows = session.execute(query.order_by(OutboxRow.key.startswith(NOTIFICATION), OutboxRow.id).limit(limit))
        return [OutboxMessage(*row[:-1], _addresses(row[-1])) for row in rows]


def message(message_id: int) -> bytes:
    """The bytes of one mail in the outbox; b"" if another process has sent it or it was dropped."""
    unsent = select(OutboxRow.message).where(OutboxRow.id == message_id, OutboxRow.sent_at.is_(None))
    with reading() as session:
        return session.scalars(unsent).one_or_none() or b""


def parked() -> list[ParkedMail]:
    """All mails that the mail server refused for good, and the notifications that were given up, oldest first."""
    columns = (OutboxRow.key, OutboxRow.parked_at, OutboxRow.last_error, OutboxRow.recipients)
    query = select(*columns).where(OutboxRow.parked_at.is_not(None))
    with reading() as session:
        rows = session.execute(query.order_by(OutboxRow.id))
        return [ParkedMail(key, at, error, _addresses(left)) for key, at, error, left in rows if at]


def tried() -> ColumnElement[bool]:
    """Condition: the mail has been due, that is, it was tried or may be tried now."""
    return or_(OutboxRow.attempts > 0, _may_be_tried())


def _may_be_tried() -> ColumnElement[bool]:
    """Condition: the mail need not wait. A time that was set by a clock that was ahead does not count."""
    now = access.now()
    ahead = or_(OutboxRow.attempts > 0, OutboxRow.created_at > now) & (OutboxRow.retry_at > now + RETRY_MAX)
    return or_(OutboxRow.retry_at.is_(None), OutboxRow.retry_at <= now, ahead)


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def waiting(key: str | None = None) -> int:
    """How many mails wait to be sent, of all or of ``key``, without those whose quiet hours are not over."""
    waiting = select(func.count()).where(OutboxRow.sent_at.is_(None), OutboxRow.parked_at.is_(None), tried())
    if key is not None:
        waiting = waiting.where(OutboxRow.key == key)
    with reading() as session:
        return session.scalar(waiting) or 0


def added(prefix: str, since: datetime.datetime) -> int:
    """How many mails whose keys begin with ``prefix`` were added since then."""
    return _count(prefix, OutboxRow.created_at.between(since, access.now()))


def due_in(prefix: str, begin: datetime.datetime, span: datetime.timedelta, other_than: str) -> int:
    """How many mails whose keys begin with ``prefix`` are first due within ``span`` from ``begin`` on, without lists
    and without the one with key ``other_than``.
    """
    within = OutboxRow.due_at >= begin, OutboxRow.due_at < begin + span
    single = OutboxRow.key != other_than, ~OutboxRow.key.startswith(prefix + LIST, autoescape=True)
    return _count(prefix, *within, *single)


def _count(prefix: str, *which: ColumnElement[bool]) -> int:
    mine = select(func.count()).select_from(OutboxRow).where(OutboxRow.key.startswith(prefix, autoescape=True), *which)
    with reading() as session:
        return session.scalar(mine) or 0


def newest(prefix: str) -> str:
    """The key of the last mail whose key begins with ``prefix``, "" if there is none."""
    query = select(OutboxRow.key).where(OutboxRow.key.startswith(prefix, autoescape=True))
    with reading() as session:
        return session.scalar(query.order_by(OutboxRow.id.desc()).limit(1)) or ""


def take(seen: OutboxMessage) -> bool:
    """Claim a message for sending, for ``CLAIMED`` at most; False if it is claimed, or changed since it was ``seen``.

    This tells a delayed sender that another has sent the message meanwhile, or is sending it.
    """
    with writing() as session:
        row = session.scalar(select(OutboxRow).where(OutboxRow.id == seen.id).with_for_update())
        if (
            row is None
            or row.sent_at
            or row.parked_at
            or (row.attempts, row.retry_at) != (seen.attempts, seen.retry_at)
            or _claimed(row)
        ):
            return False
        row.claimed_until = access.now() + CLAIMED
        return True


def _claimed(row: OutboxRow) -> bool:
    """Whether a process is sending it. A claim that ends later than ``CLAIMED`` from now, by a wrong clock, is void."""
    left = row.claimed_until - access.now() if row.claimed_until else datetime.timedelta()
    return datetime.timedelta() < left <= CLAIMED


@contextlib.contextmanager
def _tried(message_id: int, message: bytes) -> Iterator[OutboxRow]:
    """The row of the mail that was tried as ``message``, its claim released. If it was dropped, or says something else
    by now, a row that is not stored, so that the attempt has no effect.
    """
    with writing() as session:
        row = session.get(OutboxRow, message_id, with_for_update=True)
        if row is not None:
            row.claimed_until = None
        same = row is not None and row.sent_at is None and _same(row.key, row.message, message)
        yield row if row is not None and same else _made("", b"", None)


def _same(key: str, one: bytes, other: bytes) -> bool:
    """Whether two messages have the same content: one that is made again has another date, boundaries or end."""
    return one == other or _content(key, one) == _content(key, other)


def _content(key: str, message: bytes) -> object:
    if key.startswith(NOTIFICATION):
        return json.loads(message)["known"]
    mail = email.message_from_bytes(message)
    parts = [(part.get_content_type(), part.get_payload(decode=True)) for part in mail.walk()]
    return mail["To"], mail["Subject"], parts


def sent(message_id: int, message: bytes) -> None:
    """Mark the mail as accepted by the mail server, and delete its bytes.

    If its content was replaced while ``message`` was being sent, or a line was added, it stays unsent, so that the new
    content is sent.
    """
    with _tried(message_id, message) as row:
        row.sent_at, row.attempts, row.last_error = access.now(), row.attempts + 1, ""
        row.message = b""


def unreachable(message_id: int, error: str) -> None:
    """Record that the mail server could not be reached: the mail is due again at the next delivery.

    Does nothing if another process, which reached the server, is sending the mail.
    """
    with writing() as session:
        row = session.get(OutboxRow, message_id, with_for_update=True)
        if row is not None and row.sent_at is None and not _claimed(row):
            row.attempts, row.last_error = row.attempts + 1, error


def failed(
    message_id: int, message: bytes, error: str, *, park: bool = False, recipients: Collection[str] = ()
) -> None:
    """Record that the server refused the mail, and why: it waits twice as long as before, or is parked.

    ``message``: as in ``sent``. ``recipients``: those that were refused while the others were accepted; only they are
    tried from now on.
    """
    with _tried(message_id, message) as row:
        row.retry_at = access.now() + min(RETRY_FIRST * 2 ** min(row.attempts, 10), RETRY_MAX)
        row.parked_at = access.now() if park else None
        row.attempts, row.last_error = row.attempts + 1, error
        row.recipients = ",".join(sorted(recipients)) or row.recipients
