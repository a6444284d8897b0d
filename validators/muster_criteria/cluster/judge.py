"""The judge of a block: what its members sent becomes a verdict on each of them.

Pure, and the order of members does not matter. A member passes only if everything required was measured, another device
confirmed each of its digests, and nothing was found on it. A member left out after the rounds of pairs can only fail,
by what these rounds found.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from muster_criteria.cluster.digests import judge_digests, judge_weights
from muster_criteria.cluster.domains import judge_domains
from muster_criteria.cluster.fabric.judging.covered import count_rails
from muster_criteria.cluster.fabric.judging.found import FabricJudgement
from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.judging.verdict import judge_fabric
from muster_criteria.cluster.model import (
    STAGE,
    TRAINING,
    ZERO,
    BlockFindings,
    ClusterJudgement,
    Earlier,
    Measurements,
    MemberResult,
)
from muster_criteria.cluster.payloads import judge_payloads
from muster_criteria.cluster.plan import block_needs
from muster_criteria.cluster.ports import judge_ports
from muster_criteria.cluster.presence import judge_presence
from muster_criteria.cluster.rack import RackState
from muster_criteria.cluster.stragglers import judge_pace
from muster_criteria.cluster.training import judge_training, mfu_of
from muster_criteria.cluster.watched import judge_watched
from muster_criteria.devices import kind_of
from muster_criteria.labels import labelled
from muster_criteria.measured import Measured, StageResult
from muster_criteria.model import Gap, Judgement, Lack, Observation, Verdict
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import BlockProgramme
from muster_criteria.sku_files.programme import Need
from muster_criteria.stage.coverage import Tally
from muster_criteria.stage.findings import bounded, in_order
from muster_criteria.stage.verdict import verdict_of

log = logging.getLogger(__name__)

TIMED = ("scaling", "step_p95_to_p50")
"""Metrics compared directly with a block's limits; on simulated members they are the host's and not judged."""


def judge_block(
    members: Sequence[MemberResult], programme: BlockProgramme, rounds: Rounds | None = None,
    earlier: Earlier | None = None,
) -> ClusterJudgement:  # fmt: skip
    """Judges a block by its programme. ``rounds``: what its rounds of pairs measured, None where it had none.
    ``earlier``: what earlier blocks reached with the same recipe, None where they are not known.

    Raises ValueError for fewer than two members or two of one name, never for what a node sent.
    """
    names = [member.name for member in members]
    if len(names) < 2 or len(set(names)) != len(names):
        raise ValueError(f"a block is at least two members, each named once, not {names!r}.")
    everyone = sorted(members, key=lambda member: member.name)
    measured = {member.name: Measurements(member.result) for member in everyone if not member.left_out}
    block = BlockFindings()
    fabric, racks = _find(everyone, measured, programme, rounds, earlier, block)
    measured |= {member.name: Measurements(None) for member in everyone if member.left_out}
    devices = _devices_expected(everyone, measured)
    needs = tuple(block_needs(programme))
    simulated = any(member.simulated for member in members)
    limits = {} if simulated else {metric: programme.limit(metric, "warn") for metric in TIMED}
    pairs = functools.partial(count_rails, rounds, found=fabric, simulated=simulated) if rounds else None
    judged = {
        member.name: _judgement(
            member, measured[member.name], needs, devices[member.name], block, pairs, limits
        )
        for member in everyone
    }  # fmt: skip
    for member in everyone:
        if member.left_out and judged[member.name].verdict is not Verdict.FAIL:
            del judged[member.name]
    missing = tuple(name for name in judged if name in block.missing)
    return ClusterJudgement(judged, missing, tuple(block.notes), fabric, racks)


def _find(
    everyone: Sequence[MemberResult], measured: Mapping[str, Measurements], programme: BlockProgramme,
    rounds: Rounds | None, earlier: Earlier | None, block: BlockFindings,
) -> tuple[FabricJudgement, tuple[RackState, ...]]:  # fmt: skip
    """Adds to ``block`` what each part of the judge finds; returns the fabric's judgement and the racks' states."""
    here = [member for member in everyone if not member.left_out]
    for member in everyone:
        if member.left_out:
            block.suspect([member.name], Lack.NO_RESULT, member.left_out)
    guarded = functools.partial(_guarded, block, [member.name for member in everyone])
    with guarded("presence"):
        judge_presence(here, measured, block)
    with guarded("digests"):
        judge_digests(measured, block)
    with guarded("pace"):
        judge_pace(programme, measured, block)
    for what, judge in (("payloads", judge_payloads), ("the weights", judge_weights), ("the loss", _judge_loss)):
        with guarded(what):
            judge(measured, block)
    with guarded("the training"):
        judge_training(programme, any(member.simulated for member in everyone), earlier, measured, block)
    with guarded("ports"):
        rows = {member.name: (*_rows(member.result), *member.in_rounds) for member in everyone}
        limits = {member.name: member.port_limits for member in everyone}
        judge_ports(rows, limits, block, rounds.topology if rounds is not None else None)
    with guarded("what was watched"):
        judge_watched(
            {member.name: member.watch_limits for member in here}, {member.name: member.rack for member in here},
            measured, block,
        )  # fmt: skip
    fabric = FabricJudgement()
    racks: tuple[RackState, ...] = ()
    with guarded("the rounds"):
        if rounds is not None:
            fabric = judge_fabric(rounds, block, {member.name: member.pair_limits for member in everyone})
    with guarded("NVLink domains"):
        racks = judge_domains(here, programme, measured, block)
    return fabric, racks


@contextlib.contextmanager
def _guarded(block: BlockFindings, names: Sequence[str], what: str) -> Iterator[None]:
    """Whatever is wrong with a part of the judge must not become a pass."""
    try:
        yield
    except Exception as error:
        log.exception("judging %s failed", what)
        why = f"the judge of {what} failed with an error ({type(error).__name__}: {error})"
        block.suspect(names, Lack.JUDGE_FAILED, why)


def _rows(result: StageResult | None) -> Sequence[Measured]:
    return result.measurements if result is not None else ()


def _judge_loss(members: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Suspects members with a loss that is not finite. A member that corrupts data explains its own loss, and a step in
    which the loss of every reporting member (more than half of all) is not finite: all share its sums, but each loss is
    of the member's own batch."""
    finite: dict[str, dict[str, bool]] = {}
    for name, measured in members.items():
        for row in measured.rows(TRAINING, "loss"):
            by_name = finite.setdefault(row.labels.get("step", ""), {})
            by_name[name] = by_name.get(name, True) and not (row.value is None and row.text is None)
    corrupting, reporting = block.corrupting(), {name for by_name in finite.values() for name in by_name}
    for by_name in finite.values():
        whole = len(by_name) == len(reporting) and 2 * len(reporting) > len(members)
        if corrupting and whole and not any(by_name.values()):
            continue
        unusable = [name for name, good in by_name.items() if not good and name not in corrupting]
        why = "the loss was not a finite number, and no member was found that caused it"
        block.suspect(unusable, Lack.LOSS_NOT_FINITE, why)


def _devices_expected(members: Sequence[MemberResult], measured: Mapping[str, Measurements]) -> dict[str, int]:
    """Devices that each member must test: the SKU's number; else that of the block's largest member, or its own
    CPUs."""
    tested = {member.name: measured[member.name].devices(TRAINING, "self_mismatches") for member in members}
    gpus = {name: sum(device.startswith("gpu") for device in devices) for name, devices in tested.items()}
    most = max(gpus.values())
    return {
        member.name: member.devices or (most if gpus[member.name] else max(1, len(tested[member.name])))
        for member in members
    }


def _judgement(
    member: MemberResult,
    measured: Measurements,
    needs: Iterable[Need],
    devices: int,
    block: BlockFindings,
    count_pairs: Callable[..., None] | None,
    limits: Mapping[str, Limit],
) -> Judgement:
    counted = Tally()
    for gap in block.suspected.get(member.name, ()):
        counted.miss(gap)
    _count(measured, needs, devices, counted, gpus=member.devices is not None)
    if count_pairs is not None:
        count_pairs(member.name, counted)
    counted.unjudged += block.unjudged.get(member.name, ())
    coverage, every = counted.coverage(), in_order((*member.known, *block.findings.get(member.name, ())))
    verdict, reason = verdict_of(every, coverage)
    broken = {(finding.metric, finding.device) for finding in every}
    result = member.result
    rows = _rows(result)
    return Judgement(
        stage=STAGE,
        level=member.level,
        verdict=verdict,
        reason=reason,
        coverage=coverage,
        findings=bounded(every),
        observations=(
            *(_observation(row, broken, limits) for row in rows if row.metric != "step_digest"),
            *mfu_of(measured, member.peaks, block.training_devices),
        ),
        simulated=result is not None and result.simulated,
        sku=member.sku,
        sku_version=member.sku_version,
        notes=tuple(result.notes) if result is not None else (),
    )


def _observation(row: Measured, broken: set[tuple[str, str]], limits: Mapping[str, Limit]) -> Observation:
    limit, zero = limits.get(row.metric), 0.0 if row.metric in ZERO else None
    return Observation(
        probe=row.probe,
        metric=row.metric,
        device=row.device,
        unit=row.unit,
        value=row.value,
        text=row.text,
        labels=tuple(sorted(row.labels.items())),
        samples=row.samples,
        spread=row.spread,
        floor=limit.number if limit and limit.key == "floor" else zero,
        ceiling=limit.number if limit and limit.key == "ceiling" else zero,
        source=limit.source if limit else ZERO.get(row.metric, ""),
        ok=(row.metric, row.device) not in broken,
        note=row.note,
    )


def _count(measured: Measurements, needs: Iterable[Need], devices: int, counted: Tally, *, gpus: bool) -> None:
    """Counts what the programme requires of a member that tests so many devices, whatever its plan was.

    ``gpus``: they are the GPUs of its SKU, in whose place a node without its driver tests CPUs.
    """
    for need in needs:
        probe, requirement, labels = need.probe, need.requirement, dict(need.labels)
        metric = requirement.metric
        rows = [
            row
            for row in measured.rows(probe, metric)
            if labels.items() <= row.labels.items()
            and (row.value is not None or row.text or (requirement.where_readable and row.note))
        ]
        if requirement.devices == "node":
            there = any(row.device == "node" for row in rows)
            if metric == "block_intact":
                there = measured.value(probe, metric) == 1
            if there:
                counted.required += 1
            else:
                counted.miss(Gap(Lack.NOT_REPORTED, "", f"{labelled(metric, labels)} of {probe}"))
            continue
        named = {row.device for row in rows}
        found = sum(kind_of(device) == "gpu" for device in named) if gpus else len(named)
        counted.required += min(found, devices)
        for _ in range(found, devices):
            counted.miss(Gap(Lack.NOT_REPORTED, f"{found} reported it", f"{metric} on each of {devices} devices"))
