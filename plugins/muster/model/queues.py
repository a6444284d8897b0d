"""What waits to be delivered: mails, and events for receivers outside."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any


@dataclasses.dataclass(frozen=True)
class OutboxMessage:
    """A mail waiting to be sent, without its bytes. ``recipients``: those left after a refusal of some; (): all."""

    id: int
    key: str
    created_at: datetime.datetime
    attempts: int
    last_error: str
    retry_at: datetime.datetime | None
    recipients: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class ParkedMail:
    """A mail that the mail server refused for good, and why. ``recipients``: as in ``OutboxMessage``."""

    key: str
    parked_at: datetime.datetime
    last_error: str
    recipients: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why a mail or a notification was not accepted; ``permanent``: it is not tried again, as a mail that the server
    refuses with 5xx (RFC 5321 4.2.1). ``recipients``: those that have not got the mail; (): all to whom it was sent.
    """

    reason: str
    permanent: bool
    recipients: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class AuditEvent:
    """One event as receivers get it. ``id`` grows with each event, and names it when it comes twice. ``kind``:
    "lifecycle" if the node moved, else "audit": a decision, a change or a remark. ``node``: "", as are both states, for
    a decision that concerns no node.
    """

    id: int
    at: str
    kind: str
    node: str
    from_state: str
    to_state: str
    actor: str
    login: str
    reason: str
    evidence: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class AuditLag:
    """What a receiver has not accepted yet. ``since``: when the oldest such event was written, None without any."""

    sink: str
    waiting: int
    since: datetime.datetime | None
    last_error: str

    @property
    def sentence(self) -> str:
        """The state in one sentence."""
        since = f" since {self.since:%Y-%m-%d %H:%M} UTC" if self.since else ""
        return f"audit stream {self.sink}: {self.waiting} events wait{since}" + (
            f": {self.last_error}" if self.last_error else ""
        )
