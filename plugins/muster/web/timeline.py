"""A node's life as one list: its states, tests, certificates and parts. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator, Sequence

from muster.lifecycle.transitions import State
from muster.records import CertificateRecord, EventRecord, PlacementRecord, RunRecord


@dataclasses.dataclass(frozen=True)
class Entry:
    """One thing that happened. ``kind``: state, remark, test, certificate or part; ``by``: who did it, "" if no one."""

    at: datetime.datetime
    kind: str
    what: str
    by: str = ""
    state: State | None = None
    run: RunRecord | None = None


def timeline(
    events: Sequence[EventRecord],
    runs: Sequence[RunRecord],
    certificate: CertificateRecord | None,
    parts: Sequence[PlacementRecord],
    most: int,
) -> list[Entry]:
    """The latest ``most`` entries, latest first. A test stands where it ended, or where it began while it runs."""
    found = [*_events(events), *_runs(runs), *_certificate(certificate), *_parts(parts)]
    return sorted(found, key=lambda entry: entry.at, reverse=True)[:most]


def _events(events: Sequence[EventRecord]) -> Iterator[Entry]:
    for each in reversed(events):
        moved = each.from_state != each.to_state
        by = f"{each.actor} {each.login}".strip()
        yield Entry(each.at, "state" if moved else "remark", each.reason, by, each.to_state if moved else None)


def _runs(runs: Sequence[RunRecord]) -> Iterator[Entry]:
    for each in runs:
        yield Entry(each.ended_at or each.started_at, "test", each.headline or each.reason, run=each)


def _certificate(certificate: CertificateRecord | None) -> Iterator[Entry]:
    if certificate:
        revoked = f"; revoked: {certificate.revoked}" if certificate.revoked else ""
        yield Entry(certificate.issued_at, "certificate", f"{certificate.id} issued{revoked}")


def _parts(parts: Sequence[PlacementRecord]) -> Iterator[Entry]:
    for each in parts:
        part = f"{each.kind} {each.serial}"
        yield Entry(each.since, "part", f"{part} seen in {each.slot}")
        if each.until:
            yield Entry(each.until, "part", f"{part} gone from {each.slot}")
