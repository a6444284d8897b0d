"""What each member of a block sent, as the judge of the block takes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster import store
from muster.model.nodes import Node
from muster.model.runs import RunKey
from muster.model.stages import CLUSTER_STAGES
from muster.operators.testing import rounds
from muster.rules.certificate import WATCHED
from muster_criteria.model import EVIDENCE, Action, Evidence, FaultClass, Finding, Severity
from muster_criteria.sku_files.figures import in_base_units
from muster_criteria.sku_files.model import Sku

if TYPE_CHECKING:
    from muster_criteria.cluster.model import MemberResult

STAGE = CLUSTER_STAGES[0]

ALIKE = (*WATCHED, "kernel", "cuda", "torch", "nccl")
"""Names in a node's environment in which the members of a block should not differ: firmware, driver, libraries."""


@dataclasses.dataclass(frozen=True)
class Collected:
    """The stored result of one member. ``evidence``: what the controller itself established, such as a reboot.

    ``fault``: why the controller could not collect a result, "" if it could. ``left_out``: why the member took no part
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


def collect(key: RunKey, name: str, fault: str, lost: str) -> Collected:
    """What is stored of a member. ``fault``: of the controller, ``lost``: the rounds of pairs lost it; "": neither."""
    from muster_criteria.measured import parse_result

    kept = store.raw.stage_bytes(key, STAGE, node=name)
    before = store.reporting.judgements(key, node=name).get(STAGE)
    if kept is None or before is None:
        why = f"a fault of the controller: {fault}" if fault else lost or "its task ended before it returned a result"
        return Collected(why_missing=why, fault=fault)
    # Without its waivers: the records apply those that are valid now to the new verdict.
    evidence = tuple(dataclasses.replace(each, waived="") for each in before.findings if each.metric == EVIDENCE)
    if kept.result is None:
        # The fault too: this task may have recorded the missing result before it was killed.
        return Collected(attempts=kept.attempts, why_missing=before.reason, evidence=evidence, fault=fault)
    return Collected(parse_result(kept.result), kept.result, kept.telemetry, kept.attempts, evidence=evidence)


def results(
    key: RunKey,
    nodes: Sequence[Node],
    skus: Mapping[str, Sku],
    collected: Mapping[str, Collected],
    pairs: Mapping[str, Sequence[Finding]],
) -> list[MemberResult]:
    """What the judge of a block needs of each member. ``pairs``: what the rounds of pairs found of the members."""
    from muster_criteria.cluster.fabric.floors import pair_limits
    from muster_criteria.cluster.judge import MemberResult
    from muster_criteria.cluster.ports import port_limits
    from muster_criteria.cluster.watched import watch_limits
    from muster_criteria.stage.findings import evidence_finding

    mixed = [
        evidence_finding(Evidence(
            "versions_differ", f"{sentence[0].upper()}{sentence[1:]}.", fault_class=FaultClass.SOFTWARE,
            action=Action.FIX_SOFTWARE, severity=Severity.WARNING, expected="one version in a block",
        ))
        for sentence in differences([node.name for node in nodes if not collected[node.name].left_out])
    ]  # fmt: skip
    in_rounds, members = rounds.ports_of(key), []
    for node in nodes:
        name, sku, member = node.name, skus[node.name], collected[node.name]
        members.append(MemberResult(
            name, member.result, member.why_missing, devices=rounds.gpus_of(sku),
            known=(*member.evidence, *pairs.get(name, ()), *mixed), level=store.runs.get(key, node=name).level,
            sku=sku.name, sku_version=sku.revision, peaks=_peaks(sku), rack=node.rack, domain_nodes=sku.domain_nodes,
            in_rounds=in_rounds.get(name, ()), port_limits=port_limits((*sku.limits, *sku.block.limits)),
            pair_limits=pair_limits(sku.block.limits), watch_limits=watch_limits(sku.limits), left_out=member.left_out,
        ))  # fmt: skip
    return members


def _peaks(sku: Sku) -> dict[str, tuple[float, str]]:
    """Dense peaks of a GPU in FLOP/s with their sources, by PyTorch's name of the number format."""
    names = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    return {
        names[dtype]: (in_base_units(figure.peak, figure.unit), figure.source)
        for figure in sku.figures
        if figure.metric == "gemm_rate" and figure.peak and (dtype := figure.labels.get("dtype", "")) in names
    }


def differences(members: Sequence[str]) -> list[str]:
    """A sentence for each name of ``ALIKE`` in which the members differ, as each reported it last."""
    from muster_criteria.context.versions import differing

    return differing(store.certificates.versions_of(members, ALIKE), ALIKE)
