"""Delivery without a mail server."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from muster import store
from muster.reporting import sending


@pytest.fixture
def deliver() -> Callable[..., sending.Delivery]:
    """The real delivery, which ``no_server`` takes away."""
    return sending.deliver_mail


@pytest.fixture
def no_server(deliver: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """No mail leaves the outbox."""
    monkeypatch.setattr(sending, "deliver_mail", lambda key=None: (0, store.outbox.waiting(key), 0))
    monkeypatch.delenv("MUSTER_MAIL_TO", raising=False)
