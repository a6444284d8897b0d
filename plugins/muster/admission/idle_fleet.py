"""Collects what is known of the nodes that may be tested while idle, to choose among them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from muster import store
from muster.admission import service
from muster.blackout import closed
from muster.model.nodes import Node
from muster.model.states import State
from muster.rules.idle.capacity import Limits, Signs
from muster.rules.idle.selection import Idle, Known, Passes
from muster.rules.lifecycle.transitions import INCONCLUSIVE_BUDGET
from muster.rules.preview import stage_minutes
from muster.settings import settings
from muster_criteria.sku_files.model import SkuError
from muster_criteria.sku_files.skus import changed, load_sku
from muster_criteria.stages import STAGES

if TYPE_CHECKING:
    from muster.rules.idle.past import Risk

REFUSED_FOR = datetime.timedelta(hours=1)
"""How long a node is passed over after its test was refused; else it would take the place of others for ever."""


def limits(now: datetime.datetime) -> Limits:
    """Returns the limits of the settings, as they are at ``now``."""
    current = settings()
    return Limits(
        share=current.revalidation_share,
        minutes=current.revalidation_minutes,
        after=datetime.timedelta(hours=current.revalidation_after_hours),
        whole_after=datetime.timedelta(days=current.revalidation_whole_days),
        node_kw=current.revalidation_node_kw,
        domain_kw=current.revalidation_domain_kw,
        closed=closed(current.revalidation_blackouts, now),
    )


def known(nodes: Sequence[Node], now: datetime.datetime, level: str = "") -> Known:
    """Returns what is known of the nodes at ``now``, from the records, the schedulers and the settings. ``level``: of
    the tests, "" for that of the settings.

    A node comes first, with the whole test, if a person requested its test in its scheduler, if something grave was
    reported since its last whole test, or if its certificate is no longer valid.
    """
    tested = store.verdicts.stage_tests()
    idle = service.idle([node.name for node in nodes if node.state is State.PRODUCTION])
    due = _due(tested, idle, now)
    signs: dict[str, Signs] = {}
    tests = store.signs.last_tests()
    for node in due.keys() | tests.keys():
        why, since = due.get(node, ("", None))
        test = tests.get(node)
        # A test that began before the request does not answer it.
        answered = bool(test and test.began and (since is None or test.began > since))
        signs[node] = Signs(
            requested=why, answered=answered, skipped=_skipped(test, since) if test else 0,
            in_vain=_in_vain(test, tested.get(node, {})) if test else {}, took=_last_stages(test) if test else (),
        )  # fmt: skip
    asked = {each.node: f"a person is asked: {each.question}" for each in store.schedulers.places() if each.question}
    # A test would outdate the question about a held verdict, and its answers would be refused; a person may request
    # one.
    asked |= {
        question.node: f"a person is asked: {question.subject}" for question, _ in store.questions.waiting()
        if question.node not in idle or not idle[question.node].requested
    }  # fmt: skip
    for node, why in {**store.signs.refusals(now - REFUSED_FOR), **asked}.items():
        signs[node] = dataclasses.replace(signs.get(node, Signs()), refused=why)
    for node, change in store.certificates.version_changes().items():
        sign = signs.get(node, Signs())
        signs[node] = dataclasses.replace(sign, change=change.versions, proven=change.passed)
    breakers = {
        simulated: store.withdrawals.breaker(simulated=simulated).why
        for simulated in {node.simulated for node in nodes}
    }
    return Known(
        nodes,
        now,
        idle,
        tested,
        limits(now),
        signs=signs,
        risk=_risk(nodes, now),
        leased={lease.node for lease in store.leases.live()},
        queued=store.leases.queued(),
        barred=lambda node: breakers[node.simulated],
        minutes=_minutes({node.sku for node in nodes}, level or settings().revalidation_level),
    )


def due_after(skus: Iterable[str], serving: int) -> dict[str, datetime.timedelta]:
    """{SKU: how long after a PASS no test of an idle node is due}, without SKUs that cannot be read.

    This is the rest after a whole test if some set of stages fits into the minutes of the settings, else the time until
    the whole test is due. ``serving``: how many nodes are in service.
    """
    current, found = limits(store.clock.now()), dict[str, datetime.timedelta]()
    for sku, minutes in _minutes(skus, settings().revalidation_level).items():
        always, *others = (minutes[stage] for stage in STAGES)
        fits = always + min(others) <= current.minutes
        found[sku] = current.rest(sum(minutes.values()), serving) if fits else current.whole_after
    return found


def _minutes(skus: Iterable[str], level: str) -> dict[str, dict[str, float]]:
    """{SKU: {stage: its minutes}}, without a SKU that cannot be read: a test of such a node is refused."""
    found: dict[str, dict[str, float]] = {}
    folders = tuple(settings().sku_folders)
    files = changed(folders)
    for sku in skus:
        with contextlib.suppress(SkuError):
            found[sku] = _minutes_of(sku, level, folders, files)
    return found


@functools.lru_cache(maxsize=64)
def _minutes_of(sku: str, level: str, folders: tuple[Path, ...], _files: tuple[object, ...]) -> dict[str, float]:
    # Cached, since each scrape of the metrics would otherwise spend a fraction of a second on reading each SKU.
    return stage_minutes(load_sku(sku, folders), level)


def _due(
    tested: Passes, idle: Mapping[str, Idle], now: datetime.datetime
) -> dict[str, tuple[str, datetime.datetime | None]]:
    """{node: (why its whole test is due at once, since when)}."""
    numbers = store.verdicts.stage_numbers()
    due: dict[str, tuple[str, datetime.datetime | None]] = {
        node: (each.why, each.at)
        for node, each in store.health.urgent().items()
        if not _whole_test_after(each.after, numbers.get(node, {}))
    }
    ended = store.signs.certificate_ends()
    for node, why in store.certificates.uncertified().items():
        # If a whole test did not renew the certificate, as with a PROVISIONAL stage, the next one waits its turn.
        end, after = ended.get(node, (None, None))
        if after is not None:
            tested_since = _whole_test_after(after, numbers.get(node, {}))
        else:  # it expired by time, so times are compared
            tested_since = end is not None and _whole_test_within(end, now, tested.get(node, {}))
        if not tested_since:
            due[node] = f"its certificate holds no longer: {why}", end
    return due | {node: (f"requested: {each.requested}", each.since) for node, each in idle.items() if each.requested}


def _in_vain(test: store.signs.Tried, tested: Mapping[str, datetime.datetime]) -> dict[str, datetime.datetime]:
    """{stage: when its last test ended} of the stages whose last test gave no result.

    Tests that were skipped ``INCONCLUSIVE_BUDGET`` times in a row count as one of each of their stages, so that the
    next is not urgent.
    """
    found: dict[str, datetime.datetime] = {
        stage: ended
        for stage, (began, ended) in test.stages.items()
        if stage in STAGES and (stage not in tested or tested[stage] < began)
    }
    for stages, each in sorted(test.skipped.items(), key=lambda item: item[1].at):
        if each.often >= INCONCLUSIVE_BUDGET:
            found |= {stage: each.at for stage in stages if stage not in tested or tested[stage] < each.at}
    return found


def _skipped(test: store.signs.Tried, since: datetime.datetime | None) -> int:
    """How many tests like the last one were skipped in a row, 0 if it was made; or how many whole tests, once these
    reach ``INCONCLUSIVE_BUDGET``. ``since``: when a test was requested; earlier ones do not count.
    """
    found = {stages: each for stages, each in test.skipped.items() if since is None or each.at > since}
    if not found:
        return 0
    whole, last = found.get(STAGES), max(found.values(), key=lambda each: each.at)
    if whole and whole.often >= INCONCLUSIVE_BUDGET:
        return whole.often
    return last.often if test.ended is None or last.at > test.ended else 0


def _last_stages(test: store.signs.Tried) -> tuple[str, ...]:
    return tuple(stage for stage, (_, ended) in test.stages.items() if ended == test.ended)


def _risk(nodes: Sequence[Node], now: datetime.datetime) -> Risk:
    """Returns the risk of each node, from the fleet's failures. The model is fitted once a day, since that takes
    seconds for a large fleet; when each node failed and came back is as of now.
    """
    from muster.rules.idle.past import HORIZON, Learned, risk_of  # imports numpy, which a DAG file must not load

    today = None
    if kept := store.risk_models.of_day(now.date()):
        with contextlib.suppress(ValueError):  # another version stored it
            today = Learned.from_json(kept)
    risk, learned = risk_of(nodes, store.failures.served(now), store.failures.since(now - HORIZON), now, today)
    if today is None:
        store.risk_models.keep(now.date(), learned.to_json())
    return risk


def _whole_test_after(number: int, tests: Mapping[str, int]) -> bool:
    """Whether every stage was tested after the event of that number."""
    return len(tests) == len(STAGES) and min(tests.values()) > number


def _whole_test_within(
    begin: datetime.datetime, end: datetime.datetime, tested: Mapping[str, datetime.datetime]
) -> bool:
    """Whether every stage was tested between ``begin`` and ``end``; not so for tests dated in the future."""
    return len(tested) == len(STAGES) and all(begin <= at <= end for at in tested.values())
