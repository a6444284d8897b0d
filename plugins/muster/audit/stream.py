"""Delivers the audit stream: each receiver goes on after the last event that it accepted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from muster import redaction, store
from muster.audit.sinks import sink
from muster.settings import settings

log = logging.getLogger(__name__)

BATCH = 500
BATCHES = 200
"""For one receiver in one call, so that a receiver that was away for weeks does not keep the others waiting."""


def deliver() -> dict[str, int]:
    """Send the events that wait. Returns {receiver: how many it accepted}.

    One that fails, whatever it raises, is tried again by the next call, and keeps no other waiting.
    """
    return {name: _deliver(name, configured) for name, configured in settings().audit_sinks.items()}


def _deliver(name: str, configured: Mapping[str, Any]) -> int:
    sent = 0
    for _ in range(BATCHES):
        try:
            receiver = sink(name, configured)
            events = store.audit.batch(name, BATCH)
            if not events:
                break
            receiver.send(events)
        except Exception as error:
            log.warning("%s: %s", name, error)
            store.audit.failed(name, redaction.of_text(str(error) or type(error).__name__)[:500])
            break
        store.audit.delivered(name, events[-1].id)
        sent += len(events)
    return sent
