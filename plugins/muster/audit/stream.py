"""Delivers the audit stream: each receiver goes on after the last event that it accepted."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster import redaction, store
from muster.audit.sinks import as_json, sink
from muster.model.queues import AuditEvent
from muster.settings import settings

log = logging.getLogger(__name__)

BATCH = 500
BATCH_BYTES = 256 * 1024
"""The most JSON of several events sent at once: proxies refuse bodies of more than 1 MiB."""
LIMIT_S = 60.0
"""After this time no further batch is begun for a receiver in one call, so that one that is slow, or was away for
weeks, does not delay the others.
"""


def deliver() -> dict[str, int]:
    """Send the events that wait. Returns {receiver: how many it accepted}.

    One that fails, whatever it raises, is tried again by the next call, and does not delay the others.
    """
    return {name: _deliver(name, configured) for name, configured in settings().audit_sinks.items()}


def _deliver(name: str, configured: Mapping[str, Any]) -> int:
    sent, until = 0, time.monotonic() + LIMIT_S
    try:
        receiver = sink(name, configured)
        for events in _waiting(name):
            receiver.send(events)
            store.audit.delivered(name, events[-1].id)
            sent += len(events)
            if time.monotonic() >= until:
                break
    except Exception as error:
        why = redaction.of_text(str(error) or type(error).__name__)[:500]
        log.warning("%s: %s", name, why)
        store.audit.failed(name, why)
    return sent


def _waiting(name: str) -> Iterator[list[AuditEvent]]:
    """Yields what waits for a receiver, in batches; each has to be delivered before the next one is taken."""
    while events := store.audit.batch(name, BATCH):
        yield from _cut(events)


def _cut(events: Sequence[AuditEvent]) -> Iterator[list[AuditEvent]]:
    """Yields the events in order, in batches of at most ``BATCH_BYTES`` of JSON, or one event that has more."""
    some: list[AuditEvent] = []
    size = 0
    for event in events:
        length = len(as_json(event)) + 1
        if some and size + length > BATCH_BYTES:
            yield some
            some, size = [], 0
        some.append(event)
        size += length
    yield some
