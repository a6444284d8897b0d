"""Builds the judge's input from the records, in the same way for a new and for a stored result."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from muster import store
from muster.errors import UnknownSnapshot
from muster.judging import repeats
from muster.judging.references import compares, with_history
from muster.model.nodes import Node
from muster.model.runs import Run
from muster_criteria.chassis import Chassis, joined
from muster_criteria.device_events.judge import events_of, returned
from muster_criteria.sku_files.work import sku_work

if TYPE_CHECKING:
    from muster_criteria.device_events.policy import EventPolicy
    from muster_criteria.fleet.peers.snapshot import Snapshot
    from muster_criteria.measured import StageResult
    from muster_criteria.model import Evidence, Judgement
    from muster_criteria.sku_files.model import Sku
    from muster_criteria.stage.case import Case

log = logging.getLogger(__name__)

NO_PEERS = "none"
"""Given instead of a snapshot's version: judge without peers and history."""


@dataclasses.dataclass(frozen=True)
class Collected:
    """The output of one attempt at a stage.

    ``result``: the node's, None if missing for the reason ``why_missing``. ``chassis``: the BMC's readings.
    ``evidence``: the controller's own evidence. ``replanned``: as ``Case.replanned``.
    """

    result: StageResult | None
    chassis: Chassis | None = None
    why_missing: str = ""
    evidence: tuple[Evidence, ...] = ()
    replanned: str = ""


def fresh_case(run: Run, node: Node, sku: Sku, stage: str, collected: Collected) -> Case:
    """Returns the case of an attempt that has just ended, with the newest peers and all records until now."""
    returns = returning_events(node.name, collected.result, sku.event_policies)
    claimed = store.contested.serials_elsewhere(node.name, collected.result)
    collected = dataclasses.replace(collected, evidence=(*collected.evidence, *returns, *claimed))
    work = sku_work(sku, run.level)
    return _case(run, node, sku, stage, collected, lambda result: _newest(run, node, sku, result), work)


def returning_events(node: str, result: StageResult | None, policies: Sequence[EventPolicy]) -> tuple[Evidence, ...]:
    """Returns evidence for each error of this result that enough earlier boots of the same machine had too.

    Errors recorded before the policy's window, or before a person repaired the node, do not count.
    """
    if result is None:
        return ()
    identity = store.parts.identity_as_known(node, result.identity)
    found = events_of(result.measurements)
    now = [dataclasses.replace(event, pci=store.device_events.part_of(event, identity)) for event in found]
    evidence: list[Evidence] = []
    for policy in policies:
        if now and policy.escalation is not None:
            boots = store.device_events.standing(node, policy.escalation.within)
            boots.setdefault(str(identity.get("boot_id", "")), []).extend(now)
            evidence += returned(list(boots.values()), now, policy)
    return tuple(evidence)


def stored_case(
    run: Run, sku: Sku, recorded: Judgement, collected: Collected, before: datetime.datetime, version: str
) -> Case:
    """Returns the case of a recorded judgement, with the records ``before`` and the peer snapshot ``version``.

    ``version``: "" for the snapshot that the judgement cites, ``NO_PEERS`` for none. Raises UnknownSnapshot.
    """
    run = dataclasses.replace(run, level=recorded.level)
    node = dataclasses.replace(store.nodes.get(run.node), simulated=recorded.simulated)
    cited = version or recorded.snapshot or NO_PEERS
    snapshot = None
    if cited != NO_PEERS:
        snapshot = store.peers.load(cited, run.sku, run.level, simulated=recorded.simulated)
    work = store.revisions.work(recorded.sku, recorded.sku_version, run.level) or sku_work(sku, run.level)
    return _case(run, node, sku, recorded.stage, collected, lambda _: snapshot, work, before=before)


def _case(
    run: Run,
    node: Node,
    sku: Sku,
    stage: str,
    collected: Collected,
    choose: Callable[[StageResult], Snapshot | None],
    work: Mapping[str, str],
    *,
    before: datetime.datetime | None = None,
) -> Case:
    from muster_criteria.stage.case import Case

    fleet_parts = {each.part for each in sku.versions if each.as_the_fleet and stage == "intake"}
    case = Case(
        sku,
        stage,
        run.level,
        why_missing=collected.why_missing,
        evidence=collected.evidence,
        simulated=node.simulated,
    )
    if collected.result is None:
        return case
    measured, others = repeats.arranged(run, sku, work, collected.result, before=before)
    result = joined(measured, collected.chassis)
    others = tuple(joined(each, collected.chassis) if each.repeat else each for each in others)
    simulated = node.simulated or result.simulated
    again, snapshot = repeats.readings(others, sku, node), choose(result)
    return dataclasses.replace(
        case,
        result=result,
        simulated=simulated,
        references=with_history(snapshot, run, node, sku, stage, work, before=before, repeats=again)
        if snapshot
        else None,
        goldens=store.goldens.matching(result, run.run_id, simulated=simulated, before=before),
        others=others,
        repeats=again,
        # A repeat measures a part of the stage: alone, it would pass with that part.
        replanned=collected.replanned or (repeats.ALONE if measured.repeat else ""),
        running=store.running.versions(sku.name, node.name, fleet_parts, simulated=simulated, before=before),
        repaired_for=store.device_events.repaired_for(node.name, before),
        previous_faults=store.past_faults.previous(result, node.name, run.run_id, before=before),
    )


def _newest(run: Run, node: Node, sku: Sku, result: StageResult) -> Snapshot | None:
    """The newest peer snapshot, None if there is none or the result has nothing that the programme compares."""
    if not compares(sku, result):
        return None
    simulated = node.simulated or result.simulated
    latest = store.peers.latest(sku.name, run.level, simulated=simulated)
    if latest is None:
        return None
    try:
        return store.peers.load(latest.version, sku.name, run.level, simulated=simulated)
    except UnknownSnapshot as error:
        log.warning("judged without peers: %s", error)
        return None
