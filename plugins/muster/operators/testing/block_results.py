"""Collects what each member of a block sent, in the form that the block's judge takes."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster import store
from muster.model.nodes import Node
from muster.model.runs import Job, RunKey
from muster.model.stages import CLUSTER_STAGES
from muster.operators.testing import rounds
from muster.rules.lifecycle.certificate import WATCHED
from muster_criteria.cluster.plan import JOIN_TIMEOUT_S
from muster_criteria.cluster.presence import MEMBER_MISSING
from muster_criteria.model import EVIDENCE, Action, Evidence, FaultClass, Finding, Severity
from muster_criteria.sku_files.model import Sku

if TYPE_CHECKING:
    from muster.store.output.raw import StageBytes
    from muster_criteria.cluster.model import MemberResult

STAGE = CLUSTER_STAGES[0]

ALIKE = (*WATCHED, "kernel", "cuda", "torch", "nccl")
"""Names in a node's environment in which the members of a block should not differ: firmware, driver, libraries."""
VERSIONS_DIFFER = "versions_differ"
NOT_AGAIN = "it was not measured again with the others: clear all instances of train"
"""For a member whose job began before the others met again: a person cleared only the others' tasks."""


@dataclasses.dataclass(frozen=True)
class Collected:
    """The stored result of one member. ``evidence``: what the controller itself established, such as a reboot.

    ``fault``: why the node is not charged with a missing result, "" if it is. ``left_out``: why the member took no part
    in what follows the rounds of pairs, "" if it did.
    """

    result: Any = None
    raw: bytes | None = None
    telemetry: bytes | None = None
    attempts: int = 1
    why_missing: str = ""
    evidence: tuple[Finding, ...] = ()
    fault: str = ""
    left_out: str = ""


def met_since(key: RunKey, names: Sequence[str], claimed_at: datetime.datetime) -> datetime.datetime | None:
    """Returns ``claimed_at`` if any member's job began since; else None, as when only the judgement is repeated."""
    begun = [job.started_at for name in names if (job := store.runs.get_job(key, STAGE, node=name))]
    return claimed_at if any(at and at >= claimed_at for at in begun) else None


def late(key: RunKey, names: Sequence[str], since: datetime.datetime | None) -> dict[str, str]:
    """{member: why} of those whose job began after the others, which met ``since``, had stopped waiting."""
    if since is None:
        return {}
    jobs = {name: store.runs.get_job(key, STAGE, node=name) for name in names}
    begun = {name: job.started_at for name, job in jobs.items() if job and job.started_at and job.started_at >= since}
    after = {name: (at - min(begun.values())).total_seconds() for name, at in begun.items()}
    return {name: f"its task began {s:.0f} s after the others'" for name, s in after.items() if s > JOIN_TIMEOUT_S}


def collect(key: RunKey, name: str, fault: str, lost: str, since: datetime.datetime | None) -> Collected:
    """Returns what is stored of a member. ``fault``: the controller's, ``lost``: why the rounds lost it; "": none.

    A result from an earlier pass of this run does not count if the member's last job returned nothing, or if other
    members have met ``since``, with another seed.
    """
    from muster_criteria.measured import parse_result

    kept = store.raw.stage_bytes(key, STAGE, node=name)
    before = store.reporting.judgements(key, node=name).get(STAGE)
    job = store.runs.get_job(key, STAGE, node=name)
    begun = job and (job.started_at or job.ended_at)  # a job that its node refused has only an end
    left = NOT_AGAIN if since and begun and begun < since else ""
    if kept is not None and (lost or left or not _is_of_last_job(kept, job) or (before and before.replanned)):
        kept = None
    if kept is None or before is None:
        why = lost or left or "its task ended before it returned a result"
        if fault:
            why = f"a fault of the controller: {fault}"
        return Collected(why_missing=why, fault=fault or ("" if lost else left))
    # Without id and waiver: for the new verdict, the records assign an id and apply the waivers that are valid now.
    evidence = tuple(
        dataclasses.replace(each, waived="", id="")
        for each in before.findings
        if each.metric == EVIDENCE and each.rule != VERSIONS_DIFFER
    )
    if kept.result is None:
        # This task may have recorded the missing result, with its reason, before it was killed.
        judged = (each.observed for each in before.findings if each.rule == MEMBER_MISSING)
        why = next(judged, before.reason)
        return Collected(attempts=kept.attempts, why_missing=why, evidence=evidence, fault=fault)
    return Collected(
        parse_result(kept.result), kept.result, kept.telemetry, kept.attempts, evidence=evidence, fault=fault
    )  # fmt: skip


def _is_of_last_job(kept: StageBytes, job: Job | None) -> bool:
    """Whether the stored result belongs to this job."""
    if job is None or kept.recorded_at is None:
        return True  # there was none: the judge itself recorded it
    if job.started_at is None:
        return job.ended_at is not None
    return kept.recorded_at >= job.started_at


def results(
    key: RunKey,
    nodes: Sequence[Node],
    skus: Mapping[str, Sku],
    collected: Mapping[str, Collected],
    pairs: Mapping[str, Sequence[Finding]],
) -> list[MemberResult]:
    """What the judge of a block needs of each member. ``pairs``: what the rounds of pairs found of the members."""
    from muster_criteria.cluster.fabric.judging.floors import pair_limits
    from muster_criteria.cluster.model import MemberResult
    from muster_criteria.cluster.ports import port_limits
    from muster_criteria.cluster.training import dense_peaks
    from muster_criteria.cluster.watched import watch_limits
    from muster_criteria.stage.findings import evidence_finding

    mixed = [
        evidence_finding(Evidence(
            VERSIONS_DIFFER, f"{sentence[0].upper()}{sentence[1:]}.", fault_class=FaultClass.SOFTWARE,
            action=Action.FIX_SOFTWARE, severity=Severity.WARNING, expected="one version in a block",
        ))
        for sentence in differences([node.name for node in nodes if not collected[node.name].left_out])
    ]  # fmt: skip
    in_rounds, members = rounds.ports_of(key), []
    for node in nodes:
        name, sku, member = node.name, skus[node.name], collected[node.name]
        members.append(MemberResult(
            name, member.result, member.why_missing, devices=sku.gpus,
            known=(*member.evidence, *pairs.get(name, ()), *mixed), level=store.runs.get(key, node=name).level,
            sku=sku.name, sku_version=sku.revision, peaks=dense_peaks(sku.all_limits), rack=node.rack,
            domain_nodes=sku.domain_nodes, in_rounds=in_rounds.get(name, ()), left_out=member.left_out,
            port_limits=port_limits((*sku.limits, *sku.block.limits)), pair_limits=pair_limits(sku.block.limits),
            watch_limits=watch_limits(sku.limits),
        ))  # fmt: skip
    return members


def differences(members: Sequence[str]) -> list[str]:
    """A sentence for each name of ``ALIKE`` in which the members differ, as each reported it last."""
    from muster_criteria.context.versions import differing

    return differing(store.certificates.versions_of(members, ALIKE), ALIKE)
