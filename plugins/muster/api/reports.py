"""``POST /v1/reports``: observations of nodes from outside, by a token that can only report.

No login of Airflow: who has the token can add observations of the nodes that its source may name, at a bounded rate,
and cause no more than its source's ``most``. Bodies are bounded while they are read.
"""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import pydantic
from fastapi import Header, HTTPException, Query, Request
from fastapi.concurrency import run_in_threadpool

from muster import store
from muster.api import report_forms
from muster.api.report_forms import Reported
from muster.errors import MusterError, apart
from muster.integration import report_sources
from muster.integration.report_sources import Source
from muster.judging import health
from muster.model.health import Report
from muster_criteria.health.readings import Reading

log = logging.getLogger(__name__)

BODY_MAX = 1024 * 1024
REPORTS_MAX = 5000
"""The most reports, of one node each, in one body, including unusable ones."""
ALERTS_BODY_MAX = 16 * BODY_MAX
"""The most bytes from Alertmanager, which sends a whole group at once, and not again if it is refused: ``REPORTS_MAX``
alerts of 3 kB."""
_unpacking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reports")
"""JSON takes up to 26 times the memory of its text, so one body is unpacked at a time, until its reports are read. The
others wait in no thread, since all routes share those."""
PROBLEMS_SHOWN = 20


class Accepted(pydantic.BaseModel):
    """How many observations were accepted, of how many nodes; ``refused``: why others were not, the first of them."""

    accepted: int
    nodes: int
    refused: list[str]


class Rates:
    """How many reports each source may still send to this process: refilled evenly, up to its limit for a minute."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, name: str, per_minute: int, count: int, *, taken: int = 0) -> float:
        """Takes ``count`` reports. Returns 0, or after how many seconds to try again: then nothing was taken.

        ``taken``: how many of the same body were taken before, which will be taken again when it is resent.
        """
        now = time.monotonic()
        with self._lock:
            left, at = self._left.get(name, (float(per_minute), now))
            left = min(left + (now - at) * per_minute / 60.0, float(per_minute))
            # More than a minute's worth at once empties the store, rather than never being accepted.
            wanted = min(count, per_minute - taken)
            enough = left >= wanted
            self._left[name] = (left - wanted if enough else left), now
            return 0.0 if enough else (wanted + taken - left) * 60.0 / per_minute


rates = Rates()


async def receive(
    request: Request,
    authorization: Annotated[str, Header()] = "",
    node: Annotated[str, Query(max_length=200, description="the node, for a form that names none")] = "",
) -> Accepted:
    """Record what a source observed: 401 without its token, 413 and 429 beyond its bounds, 422 if nothing is usable."""
    name, source = source_of(authorization)
    if wait := rates.take(name, source.per_minute, 1):
        raise later(wait)
    body = await body_of(request, ALERTS_BODY_MAX if source.form == "alertmanager" else BODY_MAX)
    problems: list[str] = []
    loop = asyncio.get_running_loop()
    reported = await loop.run_in_executor(_unpacking, _admitted, name, source, body, node, problems)
    return await run_in_threadpool(_record, name, source, reported, problems)


def source_of(authorization: str) -> tuple[str, Source]:
    """Returns the source with this token. Raises HTTPException: 401 if no source has it, 503 if there are no sources or
    it may belong to an entry that cannot be used.
    """
    try:
        known, wrong = report_sources.sources()
    except MusterError as error:
        known, wrong = {}, [str(error)]
    scheme, _, given = authorization.partition(" ")
    name = report_sources.named(given.strip(), known) if scheme.lower() == "bearer" else ""
    if name:
        return name, known[name]
    if wrong:  # the token may be that of an entry; why is for those who may see the settings: `muster doctor` shows it
        raise HTTPException(503, "Reports are closed: a setting cannot be used; see `muster doctor`.")
    if not known:
        raise HTTPException(503, "Reports are closed: set MUSTER_REPORT_SOURCES.")
    raise HTTPException(401, "Reports need a source's token: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})


async def body_of(request: Request, most: int = BODY_MAX) -> bytes:
    """Returns the body. Raises HTTPException, 413, for one of more than ``most`` bytes."""
    found = bytearray()
    async for chunk in request.stream():
        found += chunk
        if len(found) > most:
            raise HTTPException(413, f"A body has at most {most} bytes: send several.")
    return bytes(found)


def _record(name: str, source: Source, reported: list[tuple[Reported, str]], problems: list[str]) -> Accepted:
    by_node: dict[tuple[str, str], list[Reading]] = collections.defaultdict(list)
    names = {given for _, given in reported}
    nodes_of = store.schedulers.named(source.cluster, names) if source.cluster else store.nodes.meant(names)
    for report, given in reported:
        known = nodes_of.get(given)
        if known is None:
            problems.append(f"no node has the name {given[:80]!r} in {source.cluster}")
        elif not source.may_report(known):
            problems.append(f"this source may not report {given[:80]!r}")
        else:
            by_node[known, report.boot_id].append(report.seen_of(given))
    accepted, nodes = 0, set()
    for (known, boot_id), seen in by_node.items():
        with apart(f"what was reported of {known[:80]!r}", problems):
            sku = {known: store.nodes.get(known).sku}
            health.record([Report(known, name, tuple(seen), boot_id, source.most)], sku)
            accepted += len(seen)
            nodes.add(known)
    if problems:  # a sender that gets no error does not read which of its reports were refused
        log.warning("%d reports of source %s were refused, such as: %s", len(problems), name, problems[0])
    if problems and not accepted:
        raise HTTPException(422, problems[:PROBLEMS_SHOWN])
    return Accepted(accepted=accepted, nodes=len(nodes), refused=problems[:PROBLEMS_SHOWN])


def _admitted(name: str, source: Source, body: bytes, node: str, problems: list[str]) -> list[tuple[Reported, str]]:
    """Returns each report with each node that it names. Of more than ``REPORTS_MAX``, the first ones if Alertmanager
    sent them, since it cannot divide a body. Raises HTTPException: 400 for no JSON, 413 for more of any other, 429
    beyond the rate.

    An unusable one counts like any other, since checking it is the work.
    """
    read = list(itertools.islice(_reported(source, body, node), REPORTS_MAX + 1))
    if len(read) > 1 and (wait := rates.take(name, source.per_minute, len(read) - 1, taken=1)):
        raise later(wait)
    if len(read) > REPORTS_MAX and source.form != "alertmanager":
        raise HTTPException(413, f"A body has at most {REPORTS_MAX} reports: send several.")
    if len(read) > REPORTS_MAX:
        problems.append(f"a body has at most {REPORTS_MAX} alerts, the others are left out: group by instance")
    kept = read[:REPORTS_MAX]
    problems += [report for report, _ in kept if isinstance(report, str)]
    return [(report, given) for report, given in kept if not isinstance(report, str)]


def _reported(source: Source, body: bytes, node: str) -> Iterator[tuple[Reported | str, str]]:
    """Yields each report with each node that it names, and what is wrong with one that cannot be used."""
    try:
        unpacked = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "The body is not JSON.") from None
    for report in report_forms.read(source.form, unpacked, node):
        for given in ("",) if isinstance(report, str) else report.names:
            yield report, given


def later(wait: float) -> HTTPException:
    """Returns the refusal of a source that sends too much."""
    seconds = str(int(wait) + 1)
    return HTTPException(429, f"Too many reports of this source: try again in {seconds} s.", {"Retry-After": seconds})
