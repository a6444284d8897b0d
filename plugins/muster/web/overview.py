"""What the overview shows, read from the records once for all viewers."""

from __future__ import annotations

import datetime
import functools
import hashlib
from typing import Any

from fastapi import Request
from markupsafe import Markup

from muster import store
from muster.integration import last_runs
from muster.judging import health
from muster.model.attention import Attention
from muster.model.dags import HEALTH_SWEEP, HOUSEKEEPING, STOPPED_AFTER
from muster.model.figures import FleetRow
from muster.model.states import State
from muster.rules.lifecycle import certificate
from muster.web import fleet, keys, rack_map, rendering, shading
from muster.web.shared import Shared

SINCE = datetime.timedelta(days=1)
RUNS_MAX, MOVES_MAX = 30, 12
RESTS_ON = {
    HOUSEKEEPING: "no change reaches a scheduler, and what schedulers show is as old",
    HEALTH_SWEEP: "what goes wrong between tests is not seen",
}
"""By DAG, what is lost when it does not run. ``idle_revalidation`` is paused in fleets without idle tests."""
KEPT_S = 10
"""Seconds for which what is read of the whole fleet is shared between viewers."""
_shared_rows = Shared[list[FleetRow]](1)
_shared_notices = Shared[list[str]](1)
_shared_attention = Shared[list[Attention]](1)
_shared_parts = Shared[tuple[Markup, list[str]]](32)


def stamp(questions: int) -> str:
    """A text that changes whenever the overview does: with the fleet, what needs a person, and the minute."""
    rows, version = fleet_now()
    digest = hashlib.sha256("\n".join(_notices_now(rows, version)).encode()).hexdigest()[:8]
    return f"{version}-{int(_now().timestamp()) // 60}-{digest}-{questions}"


def values(request: Request, filters: fleet.Filters, questions: int, stamp: str) -> dict[str, Any]:
    """The values of the overview's templates. The part that does not depend on the viewer is rendered once for all."""

    def made() -> tuple[Markup, list[str]]:
        found = _overview(filters)
        return Markup(rendering.markup(request, "_live.html.j2", **found)), found["skus"]

    part, skus = _shared_parts.get((stamp, filters, rendering.base(request)), made)
    metrics = [(keys.address(each), keys.words(each)) for each in shading.metrics()]
    return {
        "filters": filters, "questions": questions, "version": stamp, "part": part, "skus": skus, "metrics": metrics,
    }  # fmt: skip


def _overview(filters: fleet.Filters) -> dict[str, Any]:
    rows, version = fleet_now()
    found = store.overview.nodes_with(filters.q) if filters.q else set()
    chosen = fleet.chosen(rows, filters, found)
    only = {row.node for row in chosen} if filters.narrowed else None
    runs, under_way = store.overview.runs_under_way(RUNS_MAX, only)
    typical_s = functools.cache(store.runs.typical_duration_s)  # read once for all runs of one kind
    usual_s = [
        typical_s(run.sku, run.level, run.dag_id, simulated=run.simulated, stages=run.required_stages)
        for run, _ in runs
    ]
    moves, moved = store.overview.moves_since(_now() - SINCE, MOVES_MAX, only)
    names = {row.node for row in chosen}
    out = [each for each in attention_now(rows, version) if each.node in names]
    waiting = [each for each in out if each.listed]
    away = {each.node: each.why for each in out if each.state is State.PRODUCTION and not each.serving}
    filters = filters.within(len(chosen), len(waiting))
    begin, waits = ((page - 1) * fleet.PAGE for page in (filters.page, filters.waits))
    colours = rack_map.by_state(chosen, away)
    if filters.colour:
        colours = rack_map.by_metric(chosen, shading.figures(filters.colour))
    return {
        "filters": filters, "version": version, "total": len(rows), "rows": chosen[begin : begin + fleet.PAGE],
        "shown": len(chosen), "begin": begin, "waiting": waiting[waits : waits + fleet.PAGE],
        "waiting_all": len(waiting), "waits": waits, "by_muster": fleet.by_muster(out),
        "out": fleet.not_serving(chosen, out), "away": away,
        "counts": fleet.counts(chosen), "verdicts": fleet.verdict_counts(chosen),
        "pods": rack_map.pods(rack_map.racks(chosen, colours, away)), "colours": colours,
        "running": fleet.progress(runs, {row.node: row.state for row in rows}, usual_s, _now()),
        "running_more": under_way - len(runs), "moves": moves, "moves_more": moved - len(moves),
        "now": _now(), "skus": sorted({row.sku for row in rows}), "notices": _notices_now(rows, version),
        "simulated": {row.node for row in rows if row.simulated},
    }  # fmt: skip


def fleet_now() -> tuple[list[FleetRow], str]:
    """All rows and their version; read once for all viewers until something changes, or ``KEPT_S`` are over."""
    version = store.overview.version()
    return _shared_rows.get(_kept(version), store.overview.rows), version


def attention_now(rows: list[FleetRow], version: str) -> list[Attention]:
    """``store.attention.collect``, read as rarely for all viewers and filters."""
    return _shared_attention.get(_kept(version), lambda: store.attention.collect(rows, health.leaving()))


def _notices_now(rows: list[FleetRow], version: str) -> list[str]:
    """``_notices``, read as rarely for all viewers and filters."""
    return _shared_notices.get(_kept(version), lambda: _notices(rows))


def _kept(version: str) -> tuple[str, int]:
    # PostgreSQL numbers a row before it is committed, so a change may leave the version as it is.
    return version, int(_now().timestamp()) // KEPT_S


def _notices(rows: list[FleetRow]) -> list[str]:
    """One sentence for each thing of the fleet as a whole that needs a person."""
    found = _stopped()
    for simulated in sorted({row.simulated for row in rows}):
        breaker = store.withdrawals.breaker(simulated=simulated)
        if breaker.open:
            found.append(f"The circuit breaker{' of simulated nodes' if simulated else ''} is open: {breaker.sentence}")
    found += [f"{rack.sentence}." for rack in store.racks.held()]
    if lack := certificate.without_one(store.certificates.uncertified(), {row.node for row in rows if row.simulated}):
        found.append(lack)
    if parked := len(store.outbox.parked()):
        found.append(f"Mails or notifications given up: {parked:,}. `muster status` shows why.")
    found += [f"{lag.sentence}." for lag in store.audit.lags() if lag.last_error]
    return found


def _stopped() -> list[str]:
    """One sentence for each DAG that has stopped, without which the page is out of date."""
    enrolled = store.nodes.enrolled_since()
    if enrolled is None:
        return []
    found, known, now = [], last_runs.successes(), _now()
    for dag, lost in RESTS_ON.items():
        last = known[dag]
        if abs(now - (last or enrolled)) > STOPPED_AFTER[dag]:
            since = f"since {last:%Y-%m-%d %H:%M} UTC" if last else "as far as is known"
            found.append(f"No run of the DAG {dag} succeeded {since}: {lost}. `muster doctor` shows why.")
    return found


def _now() -> datetime.datetime:
    return store.clock.now()
