"""The health sweep: reads every node in service, without putting load on it, and acts by the health policy.

Reading and acting are separate tasks, so reports from programs are acted upon even if no node can be read.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import logging
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from muster import store
from muster.admission import service
from muster.admission.silence import silence
from muster.errors import ControllerFault, IllegalMove, MusterError, Refusal, apart
from muster.integration import logins
from muster.judging import health, policies, sweep
from muster.model.health import OF_PLACE, Cursor, Observation, Report
from muster.model.nodes import Node
from muster.model.schedulers import UsersJob
from muster.model.states import SERVING
from muster.operators import upkeep
from muster.remote import sweeping
from muster.remote.job.zipapp import build_agent
from muster.remote.sweeping import Answer
from muster.reporting import notices
from muster.rules.service import health as rules
from muster.settings import settings
from muster_reports.text import mark

log = logging.getLogger(__name__)

BATCH = 50
"""Nodes that are recorded in one transaction."""
PASS_S = 900.0
"""Time (s) after which a pass begins no further node: the DAG's run also has to act, and ends after half an hour."""
ALL_PORTS = "all_ports_down"
ASKED = "a person was notified"
Held = dict[tuple[Refusal, bool], list[tuple[Observation, str]]]
"""{(why a node stays in service, whether it is simulated): [(observation, sentence)]}"""


@dataclasses.dataclass
class Tally:
    """What a sweep did. ``judged``: {node: until when tests have judged its kernel log}. ``away``: nodes whose silence
    says nothing about them; ``down``: nodes that are down in their scheduler; ``left``: how many were not begun.
    """

    nodes: int = 0
    left: int = 0
    unreachable: int = 0
    new: int = 0
    fault: str = ""
    judged: dict[str, datetime.datetime] = dataclasses.field(default_factory=dict)
    away: Collection[str] = ()
    down: Collection[str] = ()

    def __str__(self) -> str:
        left = f"; {self.left} are left to later passes" if self.left else ""
        return f"{self.nodes} nodes, of which {self.unreachable} did not answer; {self.new} observations are new{left}"


def sweep_nodes() -> str:
    """Read all nodes in service that no run holds and whose tests are not paused, and record what they show.

    The order is random, so that a pass cut short by ``PASS_S`` omits different nodes each time; sorted by last answer,
    nodes that never answer would always come first.
    Raises ControllerFault if the controller cannot do its part; what was read is still recorded.
    """
    current = settings()
    who = logins.credentials(current.ssh_conn_id)
    who.key()
    agent = build_agent(current.home / "agents")
    policies.health()
    leased = {lease.node for lease in store.leases.live()}
    nodes = [each for each in store.nodes.find(states=SERVING) if each.name not in leased and not each.pause]
    random.shuffle(nodes)
    names = [each.name for each in nodes]
    cursors = store.health.cursors(names)
    said = silence(names)
    tally = Tally(judged=store.health.judged_until(), away=said.away, down=said.down, left=len(nodes))

    async def read() -> None:
        waiting: list[Answer] = []
        pairs = [(node, cursors[node.name]) for node in nodes]
        options = {"parallel": current.sweep_nodes, "limit_s": current.sweep_seconds, "pass_s": PASS_S}
        async for answer in sweeping.read_all(pairs, who, agent, **options):  # type: ignore[arg-type]
            waiting.append(answer)
            tally.left -= 1
            if len(waiting) >= BATCH:
                await asyncio.to_thread(record, waiting, cursors, tally)
                waiting = []
        await asyncio.to_thread(record, waiting, cursors, tally)

    asyncio.run(read())
    log.info("%s", tally)
    if tally.fault:
        raise ControllerFault(tally.fault)
    return str(tally)


def record(answers: Sequence[Answer], cursors: Mapping[str, Cursor], tally: Tally) -> None:
    """Record answers in one transaction or, if that fails, each in its own, so that one bad answer stops no other."""
    now, counted = store.clock.now(), time.monotonic()
    reports, skus = [], {}
    last = {each.node.name: cursors[each.node.name].swept_at for each in answers}
    jobs = store.users_jobs.since({name: at for name, at in last.items() if at is not None})
    for answer in answers:
        node, cursor = answer.node, cursors[answer.node.name]
        at = now - datetime.timedelta(seconds=counted - answer.arrived)
        if answer.ours:
            tally.fault = answer.trouble
            continue
        tally.nodes += 1
        if answer.trouble:
            log.warning("%s: %s", node.name, answer.trouble)
        if answer.unreadable:
            reports.append(sweep.unreadable(node, cursor, answer.trouble))
        elif answer.trouble:
            tally.unreachable += 1
            if node.name not in tally.away:
                reports.append(sweep.unreachable(node, cursor, answer.trouble, down=node.name in tally.down))
        else:
            reports.append(_report(answer, cursor, at, tally.judged.get(node.name), jobs.get(node.name, [])))
        skus[node.name] = node.sku
    tally.new += len(recorded(reports, skus))


def recorded(reports: Sequence[Report], skus: Mapping[str, str]) -> list[Observation]:
    """Record reports as ``record`` does; returns the observations that are new, or of which more follows."""
    try:
        found = health.record(reports, skus)
    except Exception:
        log.exception("%d nodes are recorded one by one", len(reports))
        found = [each for report in reports for each in _alone(report, skus)]
    for each in found:
        log.info("%s: %s; %s", each.node, each.sentence, each.action)
    return found


def _report(
    answer: Answer,
    cursor: Cursor,
    now: datetime.datetime,
    judged_until: datetime.datetime | None,
    jobs: Sequence[UsersJob],
) -> Report:
    node = answer.node
    try:
        return sweep.report_of(node, cursor, answer.raw, now, judged_until, jobs)
    except Exception as error:  # nothing that a node sends stops the sweep
        log.exception("%s: its answer cannot be judged", node.name)
        return sweep.unreadable(node, cursor, f"its answer cannot be judged: {type(error).__name__}")


def _alone(report: Report, skus: Mapping[str, str]) -> list[Observation]:
    for odd in (False, True):
        try:
            return health.record([sweep.unrecorded(report) if odd else report], skus)
        except MusterError as error:  # the records are unreachable, or lack the node: the answer is not at fault
            log.warning("%s: %s", report.node, error)
            break
        except Exception:
            log.exception("%s: what it showed is not recorded", report.node)
    return []


def act() -> list[str]:
    """Carry out the policy's actions for open observations. Returns a sentence for each node that left service or was
    held, and for each spare that replaced one.

    Where the setting allows it, spares enter at once: a node repaired within minutes no longer counts as broken when
    housekeeping looks, yet it stays out of service until its tests have passed."""
    now = store.clock.now()
    policy = policies.health()
    nodes = {node.name: node for node in store.nodes.find(states=SERVING)}
    seen = store.health.open_in_service(now - rules.EVENTS_FOR)
    shared = rules.common(seen, list(nodes.values()), policy)
    events = {each.id: each for each in seen if each.track is None and each.action.leaves and not each.acted}
    for place in shared:
        log.warning("%s", place.sentence)
        # The hour is part of the key: what returns on the same day is notified again. No node leaves service for it.
        began = [each.track.since if each.track else each.last_seen for each in seen
                 if each.id in place.seen and (each.track is None or each.track.bad)]  # fmt: skip
        if began:
            about = f"place {place.place}/{place.check}/{max(began):%d %H}"
            notices.notify(about, place.sentence, of=place.simulated)
        with store.engine.transaction():
            for number in place.seen & events.keys():
                store.health.note_acted(events.pop(number), OF_PLACE)
    theirs = rules.theirs(seen, shared)
    due = rules.due(theirs, nodes)
    _tell_of_ports(theirs)
    done: list[str] = []
    held: Held = collections.defaultdict(list)
    for name, each in due.items():
        with apart(name, done):
            done += _withdraw(each, nodes[name], held)
    _tell_of_held(held)
    stay = [f"{mark(simulated)}{sentence}" for (_, simulated), those in held.items() for _, sentence in those]
    return done + stay + upkeep.replace_nodes()


def _withdraw(seen: Observation, node: Node, held: Held) -> Iterator[str]:
    """Yields a sentence for what was done. The observation of a node that stays is added to ``held``."""
    why = f"{seen.sentence}; {seen.action} by policy {policies.health().cited}"
    sentence = (
        f"{node.name} left service between tests: {why}. See `muster node show {node.name}` and "
        f"docs/failed-node.md; a test is `muster node move {node.name} registered --reason …`, then "
        f"`muster qualify {node.name} --reason …`"
    )
    try:
        with store.engine.transaction():  # no node leaves service unless its mail is queued
            store.health.withdraw(seen, why)
            if proposed := store.replacing.proposal_for(node.name):
                sentence += f". {proposed.spare} {proposed.sentence}; `muster status` has the command"
            notices.notify(f"observed/{node.name}", sentence, of=node.name)
    except IllegalMove as error:
        log.info("%s: %s", node.name, error)
        if error.code in (Refusal.BREAKER, Refusal.SHADOW):
            sentence = f"{node.name} would leave service: {why}; it stays: {error}. See `muster node show`"
            held[error.code, node.simulated].append((seen, sentence))
        return
    if trouble := service.carry_out(node.name):
        later = f"its scheduler gets the change later: {trouble}"
        log.warning("%s: %s", node.name, later)
        notices.notify(f"observed/{node.name}/waits", f"{node.name} left service, and {later}", of=node.name)
        sentence += f"; {later}"
    yield f"{mark(node.simulated)}{sentence}"


def _tell_of_held(held: Held) -> None:
    """Notify people of the withdrawals that the circuit breaker holds, once a day and when one is added; of nodes in
    shadow mode, only of new ones.
    """
    for (code, simulated), those in held.items():
        newest = max(seen.id for seen, _ in those)
        head, *lines = sentences = [sentence for _, sentence in those]
        if lines:
            head = f"{len(those)} nodes would leave service, and stay"
            lines = sentences
        notices.notify(f"held observations/{code}/{newest}", head, of=simulated, lines=lines)
        if code is Refusal.SHADOW:
            for seen, _ in those:
                store.health.note_acted(seen, ASKED)


def _tell_of_ports(seen: Sequence[Observation]) -> None:
    for each in seen:
        if each.check == ALL_PORTS and each.track and each.track.bad and not each.acted:
            notices.notify(
                f"{ALL_PORTS}/{each.node}/{each.track.since}",
                f"{each.node} lost the link of {each.value or 'all ports'} at once: look at its switch or leaf; "
                "the node goes on serving",
                of=each.node,
            )
            store.health.note_acted(each, ASKED)
