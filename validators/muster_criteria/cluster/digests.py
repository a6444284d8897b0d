"""Silent corruption: digests of the same batch, compared between all devices of a block, and with a second run.

Only digests with the same key (models, driver, libraries, settings and sizes) are compared. A device that differs from
its own second run fails, and its digests are left out. Another device fails if it contradicts a strict majority of at
least three devices; without such a majority all are suspects. A majority on one node counts only on that node.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from muster_criteria.cluster.model import PAYLOAD, TRAINING, ZERO, BlockFindings, Measurements, fault_of
from muster_criteria.devices import natural
from muster_criteria.model import Action, Extent, FaultClass, Finding, Lack, Severity
from muster_criteria.words import listed, unlike

VOTERS_MIN = 3
"""Fewer devices have no majority."""

Part = tuple[str, str]
"""Kind and layer of one digest; two empty texts for the digest of all parts together."""


@dataclasses.dataclass
class Vote:
    """One device's digests. ``steps``: {the node's label of a step, or of several together: {part: digest}}.
    ``differs_from_itself``: how many of the ``repeated`` digests differed in the device's own second run."""

    member: str
    device: str
    key: str
    differs_from_itself: float | None
    repeated: int
    steps: dict[str, dict[Part, str]]
    note: str = ""
    against: list[str] = dataclasses.field(default_factory=list)
    confirmed: int = 0
    compared: int = 0

    @property
    def erratic(self) -> bool:
        """Whether it differs from its own second run."""
        return bool(self.differs_from_itself)


def votes_of(name: str, measured: Measurements) -> list[Vote]:
    """One vote for each device of a member that reported digests."""
    votes = {}
    for row in measured.rows(TRAINING, "step_digest"):
        if row.device not in votes:
            own = [other for other in measured.rows(TRAINING, "self_mismatches") if other.device == row.device]
            notes = [other.note for other in own]
            counts = [other.value for other in own if other.value is not None]
            wrong = sum(counts) if counts else None
            key = measured.text(TRAINING, "digest_key", row.device) or "unknown"
            repeated = sum(other.samples for other in own)
            votes[row.device] = Vote(name, row.device, key, wrong, repeated, {}, note="; ".join(filter(None, notes)))
        step = votes[row.device].steps.setdefault(row.labels.get("step", ""), {})
        part = (row.labels.get("kind", ""), row.labels.get("layer", ""))
        # Reported twice with different values: agrees with no other device.
        step[part] = step[part] + "|" + str(row.text) if step.get(part, row.text) != row.text else str(row.text)
    return list(votes.values())


def judge_digests(members: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Finds devices that corrupt data; members whose digests no other device confirms are suspects."""
    votes = [vote for name, measured in members.items() for vote in votes_of(name, measured)]
    groups: dict[str, list[Vote]] = {}
    for vote in votes:
        groups.setdefault(vote.key, []).append(vote)
    for group in groups.values():
        _judge_group(group, [vote.key for vote in votes if vote.key != group[0].key], block)


def _judge_group(group: Sequence[Vote], other_keys: Sequence[str], block: BlockFindings) -> None:
    erratic = [vote for vote in group if vote.erratic]
    if len({vote.member for vote in erratic}) > 1 and 2 * len(erratic) > len(group):
        why = (
            f"{len(erratic)} of {len(group)} devices of the block differ from themselves: suspect software, not devices"
        )
        block.note(why)
        block.suspect({vote.member for vote in group}, Lack.MOST_ERRATIC, why)
        return
    comparable = [vote for vote in group if not vote.erratic]
    # The step after the load has no number and comes last.
    for step in sorted(
        {step for vote in comparable for step in vote.steps}, key=lambda step: (not step[:1].isdecimal(), natural(step))
    ):
        _compare_step(step, comparable, block)
    faulty = [vote for vote in group if vote.erratic or vote.against]
    for member in sorted({vote.member for vote in group}):
        mine = [vote for vote in group if vote.member == member]
        _judge_member(member, mine, [vote for vote in faulty if vote.member == member], len(group), block)
    for vote in comparable:
        if not vote.against and vote.confirmed < vote.compared:
            why = f"no other device confirms the digests of {vote.device}"
            if other_keys:
                why += f", which are not comparable with those of most others ({unlike(vote.key, other_keys)})"
            block.suspect([vote.member], Lack.NOT_CONFIRMED, why)


def _compare_step(step: str, comparable: Sequence[Vote], block: BlockFindings) -> None:
    """Confirms devices in the majority and notes the step against the others; without a majority all are suspects."""
    parts = Counter(frozenset(vote.steps.get(step, ())) for vote in comparable).most_common(1)[0][0]
    present = [vote for vote in comparable if vote.steps.get(step, {}).keys() == parts]
    answers = {id(vote): tuple(vote.steps[step][part] for part in sorted(parts)) for vote in present}
    answer, count = max(Counter(answers.values()).items(), key=lambda item: (item[1], item[0]))
    agreeing = [vote for vote in present if answers[id(vote)] == answer]
    dissenting = [vote for vote in present if answers[id(vote)] != answer]
    for vote in comparable:
        vote.compared += 1
    if dissenting and (len(present) < VOTERS_MIN or 2 * count <= len(present)):
        _undecided(step, present, len(set(answers.values())), block)
        return
    witnesses = {vote.member for vote in agreeing}
    for vote in dissenting:
        if len(witnesses) < 2 and vote.member not in witnesses:
            # Two nodes contradict each other, however many devices each has.
            _undecided(step, present, len(set(answers.values())), block)
            return
    for vote in agreeing:
        vote.confirmed += len(agreeing) > 1
    for vote in dissenting:
        pairs = zip(sorted(parts), answers[id(vote)], answer, strict=True)
        kind, layer = next(part for part, own, right in pairs if own != right)
        vote.against.append(f"step {step}" + (f", {kind} of layer {layer}" if kind else ""))


def _undecided(step: str, present: Sequence[Vote], answers: int, block: BlockFindings) -> None:
    names = sorted({vote.member for vote in present})
    if answers == len(present) and answers >= VOTERS_MIN:
        why = f"in step {step} all {answers} devices differ from each other: suspect a common cause, software first"
        code = Lack.ALL_DIFFER
        block.note(why)
    else:
        code = Lack.NO_MAJORITY
        gave = f"in step {step} {len(present)} devices gave {answers} answers, none by a majority"
        why = f"{gave}: {listed(names)} are suspects"
    block.suspect(names, code, why)


def _judge_member(
    member: str, mine: Sequence[Vote], faulty: Sequence[Vote], devices: int, block: BlockFindings
) -> None:
    if len(mine) > 1 and len(faulty) == len(mine):
        why = f"all its {len(mine)} devices corrupt at once: suspect its software, host or power before its devices"
        block.suspect([member], Lack.ALL_CORRUPT, why)
        for vote in faulty:
            block.add(member, _finding(vote, devices, Severity.WARNING, FaultClass.SOFTWARE, Action.INSPECT))
        return
    for vote in faulty:
        block.add(member, _finding(vote, devices, Severity.CRITICAL, fault_of(vote.device), Action.RMA))


def _finding(vote: Vote, devices: int, severity: Severity, fault: FaultClass, action: Action) -> Finding:
    if vote.erratic:
        observed = f"{vote.differs_from_itself:.0f} of {vote.repeated} digests differ in a second run"
        return Finding(
            rule="repeats_itself",
            metric="self_mismatches",
            device=vote.device,
            severity=severity,
            fault_class=fault,
            action=action,
            observed=f"{observed} ({vote.note})" if vote.note else observed,
            expected="0",
            source=ZERO["self_mismatches"],
            summary=f"{vote.device} corrupts: {observed} of the same batch.",
            extent=Extent(vote.differs_from_itself or 0.0, "count", "higher"),
        )
    first = vote.against[0]
    observed = f"differs in {len(vote.against)} of {vote.compared} comparisons, first in {first}"
    return Finding(
        rule="same_batch",
        metric="step_digest",
        device=vote.device,
        severity=severity,
        fault_class=fault,
        action=action,
        observed=observed,
        expected="the digest that the majority of devices gave",
        source="by definition: the same batch and weights on the same device model and library give the same bits",
        summary=f"{vote.device} corrupts: of {devices} devices with the same batch it {observed}.",
        extent=Extent(float(len(vote.against)), "count", "higher"),
    )


def judge_weights(members: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Suspects the members not found to corrupt data, if their final weights of one shard differ.

    All ranks add the same sums to the same weights. A ring forwards a sum that was corrupted on the way, so the ranks
    with other weights need not be those that corrupted it. A member that computes wrong explains its own weights only,
    since all ranks receive the same sum; a member that corrupts payloads explains those of all.
    """
    others = {name: measured for name, measured in members.items() if name not in block.corrupting()}
    shards: dict[str, set[str]] = {}
    for measured in others.values():
        for row in measured.rows(TRAINING, "weights_digest"):
            if row.text and row.device != "node":
                shards.setdefault(row.labels.get("shard", ""), set()).add(row.text)
    if block.corrupting({PAYLOAD}) or all(len(digests) < 2 for digests in shards.values()):
        return
    why = (
        "the ranks of the block ended with different weights after the same sums, which does not show who corrupted one"
    )
    block.suspect(others, Lack.WRONG_SUM, why)
    block.note(why)
