"""Delivers the audit stream: each receiver goes on after the last event that it accepted."""

from __future__ import annotations

import logging

from muster import store
from muster.audit.sinks import NotAccepted, Sink, sinks
from muster.errors import DatabaseNotReady
from muster.settings import settings

log = logging.getLogger(__name__)

BATCH = 500
BATCHES = 200
"""For one receiver in one call, so that a receiver that was away for weeks does not keep the others waiting."""


def deliver() -> dict[str, int]:
    """Send the events that wait. Returns {receiver: how many it accepted}.

    One that fails is tried again by the next call, and keeps no other waiting. Raises BadSettings.
    """
    return {name: _deliver(name, sink) for name, sink in sinks(settings().audit_sinks).items()}


def _deliver(name: str, sink: Sink) -> int:
    sent = 0
    for _ in range(BATCHES):
        try:
            events = store.audit.batch(name, BATCH)
            if not events:
                break
            sink.send(events)
        except (OSError, NotAccepted, DatabaseNotReady) as error:  # the last: a lock was not free in time
            store.audit.failed(name, (str(error) or type(error).__name__)[:500])
            break
        store.audit.delivered(name, events[-1].id)
        sent += len(events)
    return sent
