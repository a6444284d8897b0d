"""The tasks around a block's members: claim all nodes or none, judge them together, admit, report.

Each is a plain function of run ids and parameters; the DAG file makes tasks of them.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import random
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from muster import acting, store
from muster.admission import entry
from muster.admission.startable import asked, together
from muster.errors import apart
from muster.integration import runid
from muster.judging import verdict
from muster.model.names import SPARE_LABEL
from muster.model.nodes import Node
from muster.model.runs import RunKey, StageVerdict
from muster.model.stages import CLUSTER_STAGES
from muster.model.states import State
from muster.operators.testing import block_results, claims, faults, rounds
from muster.operators.testing.block_results import STAGE, Collected
from muster.reporting import notices
from muster.rules.lifecycle.gate import Admit, Decision
from muster.settings import settings
from muster_criteria.cluster.model import ClusterJudgement
from muster_criteria.cluster.plan import has_rounds
from muster_criteria.cluster.rack import RackState
from muster_criteria.model import Verdict
from muster_criteria.sku_files.skus import current_sku

log = logging.getLogger(__name__)

PAIRS_MAX = 200
"""Pairs of a round, at most: more than the largest block has."""

PORTS = range(20000, 30000)
"""Ports for the rendezvous, below Linux's ephemeral ports (ip_local_port_range begins at 32768)."""

PORTS_TRIED = 3
"""Candidate ports of a block, which takes the first that is free on the first member's node."""

APART = len(PORTS) // PORTS_TRIED


def claim(
    key: RunKey,
    params: Mapping[str, Any],
    try_number: int = 1,
    user: str | None = None,
    run_after: datetime.datetime | None = None,
) -> list[str]:
    """Claim all nodes of the block for this run, or none; record their rendezvous. Returns the members by rank.

    ``user``: the user of Airflow who started the run, in its pages or over REST; ``run_after``: the run's, in Airflow.
    Raises AirflowFailException if a person has to resolve something first, ControllerFault.
    """
    with claims.failing_at_once(), claims.noting_refusal(map(str, params["nodes"])):
        claims.refuse_unknown(params, "nodes", "level", "reason", "soak_minutes", "fault_run", "force_reason")
        claims.controller_ready()
        return _claim(key, params, try_number, acting.airflow_login(user or ""), run_after)


def _claim(
    key: RunKey, params: Mapping[str, Any], try_number: int, login: str, run_after: datetime.datetime | None = None
) -> list[str]:
    names, level = [str(name) for name in params["nodes"]], str(params["level"])
    force, reason, more = claims.forced(params), str(params.get("reason") or ""), asked(params)
    nodes = [claims.testable(name, level, key, run_after) for name in names]
    together(nodes)
    fabric = _fabric(nodes, level)
    differences = block_results.differences(names)
    for sentence in differences:
        log.warning("before the block trains: %s", sentence)
    with claims.leased(names, key):
        claims.refuse_in_use(names, force)
        store.places.load(key, rounds.places_loaded(fabric, simulated=nodes[0].simulated))
        for name in names:
            store.runs.begin(
                key, name, level, reason, force, started_by=login, required_stages=CLUSTER_STAGES, run_after=run_after
            )
        for name in names:
            store.runs.begin_stage(key, STAGE, node=name)
        outdated = rounds.outdate(key)
        store.rounds.reopen(key)  # what was prevented once is tried again
    # Each try has its own ports and secret, so that processes left over from an earlier try cannot join.
    drawn = random.Random(f"{key.dag_id}/{key.run_id}/{try_number}")
    first = drawn.choice(PORTS[: APART - PAIRS_MAX])
    block = {
        **fabric,
        **outdated,
        "asked": dataclasses.asdict(more),
        "claimed_at": store.clock.now().isoformat(),
        "differences": differences,
        "members": names,
        "master_addr": rounds.address_of(nodes[0]),
        # For the rendezvous; the pairs of a round use the ports that follow.
        "ports": [first + tried * APART for tried in range(PORTS_TRIED)],
        "session": secrets.token_hex(16),
        "seed": drawn.getrandbits(31),
    }
    store.attempts.keep_block(key, block)
    return names


def _fabric(nodes: Sequence[Node], level: str) -> dict[str, Any]:
    """What the rounds of pairs need to know, {} where the programme has none. Raises MusterError, BadSettings."""
    skus = [current_sku(node.sku, settings().sku_folders) for node in nodes]
    if not has_rounds(skus[0].block, level):
        return {}
    fabric = rounds.fabric_of(nodes, skus)
    return {**fabric, "pairs": rounds.pair_settings(skus[0].block, level, skus, fabric)}


def judge(key: RunKey) -> None:
    """Judge the block from its members' results and record each verdict.

    A member that fails is quarantined at once, independently of the others. A member that was left out of the training
    fails if the rounds of pairs found a fault of it; else it counts as not tested.
    """
    from muster_criteria.cluster.judge import judge_block
    from muster_criteria.cluster.training import recipe_of

    block_of = store.attempts.block_of(key)
    left_out = {str(name): str(why) for name, why in block_of.get("untested", {}).items()}
    lost, pairs = rounds.left_out(store.rounds.sides(key)).lost, rounds.evidence_of(key)
    names = rounds.members_of(key)
    since = block_results.met_since(key, names, datetime.datetime.fromisoformat(block_of["claimed_at"]))
    unable = {**block_results.late(key, names, since), **faults.of_run(key)}
    collected = {
        name: Collected(left_out=left_out[name]) if name in left_out
        else block_results.collect(key, name, unable.get(name, ""), lost.get(name, ""), since)
        for name in names
    }  # fmt: skip
    nodes = [store.nodes.get(name) for name in names]
    skus = {node.name: current_sku(node.sku, settings().sku_folders) for node in nodes}
    results = block_results.results(key, nodes, skus, collected, pairs)
    # A programme of this name is one for all SKUs of the fleet.
    first, sku = store.runs.get(key, node=names[0]), skus[names[0]]
    earlier = store.trainings.earlier(first, *recipe_of(each.result for each in results))
    block = judge_block(results, sku.block, rounds.rounds_of(key, block_of), earlier)
    store.rounds.keep_parts(key, block.fabric.parts)
    store.attempts.keep_block(key, {**store.attempts.block_of(key), "fabric_notes": _notes(block, left_out)})
    for note in (*block.notes, *block.fabric.notes):
        log.warning("%s", note)
    _hold_racks(key, block.racks, simulated=first.simulated)
    for part in block.fabric.parts:
        log.warning("%s (%s): %s", part.title, "confirmed" if part.confirmed else "suspected", part.observed)
    failed = bool(block.failed.keys() - left_out.keys())
    for name in names:
        if name in block.members:
            _record(key, name, collected, block, failed=failed)
        else:
            store.runs.finish(key, Verdict.SKIPPED, f"cluster validation: {left_out[name]}", node=name)
    training = store.trainings.comparisons(key)
    store.attempts.keep_block(key, {**store.attempts.block_of(key), "training": training})


def _record(
    key: RunKey, name: str, collected: Mapping[str, Collected], block: ClusterJudgement, *, failed: bool
) -> None:
    """Record the verdict of a member that was judged, and finish its run.

    ``failed``: whether any member that was not left out fails.
    """
    member, judged, run = collected[name], block.members[name], store.runs.get(key, node=name)
    judgement = dataclasses.replace(judged, simulated=judged.simulated or run.simulated)
    sent = store.stages.Sent(member.result, member.raw, member.telemetry, member.attempts)
    stored = verdict.record(key, judgement, sent, node=name).judgement
    # A member that is INCONCLUSIVE only because of another member, its rack or a fault of the controller counts as not
    # tested: its own budget is not used up.
    of_rack = any(name in rack.held for rack in block.racks)
    # One that came too late is not missing in a block of two, whose members report each other.
    kept_away = any(each.fault for other, each in collected.items() if other != name)
    others_fault = name not in block.missing and bool(block.missing or failed or of_rack or kept_away)
    untested = (others_fault or member.fault) and stored.verdict is Verdict.INCONCLUSIVE
    ended = Verdict.SKIPPED if untested else stored.verdict
    closed = store.runs.finish(key, ended, f"cluster validation: {stored.reason}", node=name)
    log.info("%s: %s: %s (%s)", name, stored.verdict, stored.reason, closed.state_after)


def _notes(block: ClusterJudgement, left_out: Mapping[str, str]) -> list[str]:
    """Notes of the block's page and report, in addition to its parts; racks first, as a person decides about them."""
    racks = [f"{each.sentence[0].upper()}{each.sentence[1:]}." for each in block.racks if each.troubles]
    return [*racks, *block.fabric.notes, *(f"{name}: {why}" for name, why in left_out.items())]


def _hold_racks(key: RunKey, racks: Sequence[RackState], *, simulated: bool) -> None:
    """Hold each rack with troubles for a person's decision: one hold and one mail, however many nodes it has."""
    for each in racks:
        # A rack that the records do not name has no state; the notes of the block say what was found.
        if each.troubles and each.rack:
            codes = [str(code) for code, _ in each.troubles]
            why = "; ".join(words for _, words in each.troubles)
            with store.engine.transaction():  # no rack is held unless its mail is queued
                if store.racks.hold(key, each.rack, codes, why, each.nodes, simulated=simulated):
                    about, sentence = f"rack/{each.rack}/{key}", f"Rack {each.rack} needs a person: {why}"
                    notices.notify(about, sentence, of=simulated)


def admit(key: RunKey) -> dict[str, Decision]:
    """Admit the members that pass the gate to production. Returns {member: the gate's decision}.

    Only members with PASS or WARN are considered, and no spare that passed. Raises AirflowException if the admission
    backend refuses or cannot be reached; the retry sends all of them again.
    """
    decisions: dict[str, Decision] = {}
    failures: list[str] = []
    for name, judged in _judged(key).items():
        if judged.verdict not in (Verdict.PASS, Verdict.WARN):
            continue
        if _is_spare(name, judged.verdict):
            log.info("%s: kept as a spare (label %s)", name, SPARE_LABEL)
            continue
        with apart(name, failures):
            decisions[name] = decision = entry.admit(name, key)
            log.info("%s: %s", name, "admitted" if isinstance(decision, Admit) else "; ".join(decision.reasons))
    if failures:
        raise AirflowException("; ".join(failures))
    return decisions


def questions(key: RunKey, level: str) -> list[dict[str, Any]]:
    """Returns the arguments of TriggerDagRunOperator for one admission run per member that was not admitted."""
    asked = [
        name
        for name, judged in _judged(key).items()
        if judged.verdict in (Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL) and not _is_spare(name, judged.verdict)
        and store.nodes.get(name).state is not State.PRODUCTION
    ]  # fmt: skip
    # The time makes the id unique: after a Clear, the block has a new verdict and needs a new question.
    ended = {name: store.runs.get(key, node=name).ended_at for name in asked}
    return [
        {
            "trigger_run_id": runid.run_id(name, f"after {key.run_id} on {ended[name]}"),
            "conf": {"node": name, "level": level, "reason": f"after {key.run_id}"},
        }
        for name in asked
    ]


def _is_spare(name: str, verdict: Verdict) -> bool:
    """Whether the member passed and is kept for the place of a node that leaves production."""
    return verdict is Verdict.PASS and bool(store.nodes.get(name).labels.get(SPARE_LABEL))


def _judged(key: RunKey) -> dict[str, StageVerdict]:
    """{member: recorded verdict} of the members whose run has ended; a member that only took part is not judged yet."""
    return {
        run.node: verdict
        for run in reversed(store.runs.find(run=key))
        for verdict in store.runs.stages(key, node=run.node)
        if verdict.stage == STAGE and run.ended_at is not None
    }


def conclude(key: RunKey) -> str:
    """Returns a summary of the block. Raises AirflowFailException if a member is FAIL, INCONCLUSIVE or SKIPPED.

    Members without a verdict of their own count too: a block with a member left out does not pass.
    """
    judged = _judged(key)
    ended = [run for name in rounds.members_of(key) if (run := store.runs.get(key, node=name)).ended_at is not None]
    if not ended:
        raise AirflowFailException("the block was not judged")
    became = {run.node: (run.verdict, judged[run.node].reason if run.node in judged else run.headline) for run in ended}
    failures = {
        verdict: [f"{name} ({reason})" for name, (found, reason) in became.items() if found is verdict]
        for verdict in (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.SKIPPED)
    }
    if any(failures.values()):
        parts = [f"{verdict}: {'; '.join(names)}" for verdict, names in failures.items() if names]
        raise AirflowFailException(". ".join(parts))
    return f"all {len(became)} members completed it"


def report(key: RunKey) -> dict[str, str]:
    """Mail a report for each member. Returns {member: delivery status}.

    Raises AirflowException with the members whose report could not be mailed to all, after the others' are mailed.
    """
    from muster.reporting import mailing, run_note

    run_note.annotate(key)
    fabric, training = store.rounds.fabric(key), store.trainings.training(key)
    became: dict[str, str] = {}
    failures: list[str] = []
    for name in rounds.members_of(key):
        with apart(name, failures):
            became[name] = mailing.send_report(key, node=name, fabric=fabric, training=training)
    if failures:
        raise AirflowException("; ".join(failures))
    return became
