"""A node's life as one list: its states, tests, observations, users' jobs, certificates, parts, its BMC. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator, Sequence

from muster.model.certificates import Certificate
from muster.model.events import Event
from muster.model.figures import BmcReading
from muster.model.health import ACTOR as OBSERVED
from muster.model.parts import Placement
from muster.model.runs import Run
from muster.model.schedulers import UsersJob
from muster.model.states import State


@dataclasses.dataclass(frozen=True)
class Entry:
    """One thing that happened. ``by``: who did it, or "".

    ``kind``: state, remark, observation, test, job, certificate, part or BMC.
    """

    at: datetime.datetime
    kind: str
    what: str
    by: str = ""
    state: State | None = None
    run: Run | None = None


def timeline(
    events: Sequence[Event],
    runs: Sequence[Run],
    certificates: Sequence[Certificate],
    parts: Sequence[Placement],
    bmc: Sequence[BmcReading],
    jobs: Sequence[UsersJob],
    now: datetime.datetime,
    most: int,
) -> list[Entry]:
    """The latest ``most`` entries, latest first. A test or job is listed at its end, or at its begin while it runs.

    Readings of ``bmc`` are listed if they show trouble or a state other than ok, expiries if no newer certificate was
    issued by then.
    """
    found = [*_events(events), *_runs(runs), *_certificates(certificates, now), *_parts(parts), *_bmc(bmc)]
    found += _jobs(jobs)
    return sorted(found, key=lambda entry: entry.at, reverse=True)[:most]


def _events(events: Sequence[Event]) -> Iterator[Entry]:
    for each in reversed(events):
        moved = each.from_state != each.to_state
        by = f"{each.actor} {each.login}".strip()
        kind = "state" if moved else "observation" if each.actor == OBSERVED else "remark"
        yield Entry(each.at, kind, each.reason, by, each.to_state if moved else None)


def _runs(runs: Sequence[Run]) -> Iterator[Entry]:
    for each in runs:
        yield Entry(each.ended_at or each.started_at, "test", each.headline or each.reason, run=each)


def _certificates(certificates: Sequence[Certificate], now: datetime.datetime) -> Iterator[Entry]:
    for each in certificates:
        yield Entry(each.issued_at, "certificate", f"{each.id} issued: {each.verdict}")
        if each.revoked_at:
            yield Entry(each.revoked_at, "certificate", f"{each.id} revoked: {each.revoked}")
        followed = any(each.issued_at < other.issued_at <= each.expires_at for other in certificates)
        if each.expires_at <= min(now, each.revoked_at or now) and not followed:
            yield Entry(each.expires_at, "certificate", f"{each.id} expired")


def _bmc(readings: Sequence[BmcReading]) -> Iterator[Entry]:
    for each in readings:
        states = [f"{row.device} is {row.text}" for row in each.chassis.readings if row.text not in (None, "ok")]
        if shown := "; ".join(filter(None, [each.chassis.trouble, *states])):
            yield Entry(each.at, "BMC", f"during {each.stage}: {shown}")


def _jobs(jobs: Sequence[UsersJob]) -> Iterator[Entry]:
    for each in jobs:
        since = f"{each.since:%Y-%m-%d %H:%M} UTC"
        yield Entry(
            each.until or each.since, "job", f"{each.what} {'ran from' if each.until else 'runs since'} {since}"
        )


def _parts(parts: Sequence[Placement]) -> Iterator[Entry]:
    for each in parts:
        part = f"{each.kind} {each.serial}"
        yield Entry(each.since, "part", f"{part} seen in {each.slot}")
        if each.until:
            yield Entry(each.until, "part", f"{part} gone from {each.slot}")
