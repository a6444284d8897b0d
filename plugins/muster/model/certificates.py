"""Certificates of admission, and what changed since one was issued."""

from __future__ import annotations

import dataclasses
import datetime


@dataclasses.dataclass(frozen=True)
class Certificate:
    """A certificate of a node. ``tested_since``: when the earliest run that it rests on began, None if some stage did
    not pass, or it is revoked; ``revoked``: why, or "".
    """

    id: str
    node: str
    issued_at: datetime.datetime
    expires_at: datetime.datetime
    verdict: str
    tested_since: datetime.datetime | None
    revoked: str
    document: str
    revoked_at: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True)
class VersionChange:
    """What runs on a node in service since its certificate was revoked, such as "driver 580.10". ``passed``: how many
    other nodes of its SKU hold a certificate for just that.
    """

    versions: str
    passed: int
