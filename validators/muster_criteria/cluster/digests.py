"""Who corrupts: digests of the same batch, compared between all devices of a block, and of each device with itself.

Only digests with the same key can be compared (same device model, library and sizes), and only then is a difference a
fault. A device that differs from itself stands convicted alone, and its digests count for nothing. Of the others a
strict majority of at least three convicts who differs; where there is none, nobody is named.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

from muster_criteria.cluster.model import TRAINING, Case, Measurements
from muster_criteria.model import Action, FaultClass, Finding, Severity
from muster_criteria.words import listed

VOTERS_MIN = 3
"""Of two that differ, neither can be believed more than the other."""

Part = tuple[str, str]
"""Kind and layer of one digest."""


@dataclasses.dataclass
class Ballot:
    """What one device says: per step its digests, and how many of them differed in its own second run."""

    member: str
    device: str
    key: str
    differs_from_itself: float | None
    steps: dict[str, dict[Part, str]]
    note: str = ""
    against: list[str] = dataclasses.field(default_factory=list)
    confirmed: int = 0
    voted: int = 0

    @property
    def erratic(self) -> bool:
        """Whether it disagrees with itself."""
        return bool(self.differs_from_itself)


def ballots_of(name: str, measured: Measurements) -> list[Ballot]:
    """One ballot for each device of a member that reported digests."""
    ballots = {}
    for row in measured.rows(TRAINING, "step_digest"):
        if row.device not in ballots:
            wrong = measured.value(TRAINING, "self_mismatches", row.device)
            notes = [other.note for other in measured.rows(TRAINING, "self_mismatches") if other.device == row.device]
            key = measured.text(TRAINING, "digest_key", row.device) or "unknown"
            ballots[row.device] = Ballot(name, row.device, key, wrong, {}, note="; ".join(filter(None, notes)))
        step = ballots[row.device].steps.setdefault(row.labels.get("step", ""), {})
        part = (row.labels.get("kind", ""), row.labels.get("layer", ""))
        # Said twice with different values, it agrees with nobody.
        step[part] = step[part] + "|" + str(row.text) if step.get(part, row.text) != row.text else str(row.text)
    return list(ballots.values())


def judge_digests(members: Mapping[str, Measurements], case: Case) -> None:
    """Convict devices that corrupt; doubt members whose digests nobody could confirm."""
    ballots = [ballot for name, measured in members.items() for ballot in ballots_of(name, measured)]
    groups: dict[str, list[Ballot]] = {}
    for ballot in ballots:
        groups.setdefault(ballot.key, []).append(ballot)
    for group in groups.values():
        _judge_group(group, case, mixed=len(groups) > 1)
    _judge_weights(members, case)


def _judge_group(group: Sequence[Ballot], case: Case, mixed: bool) -> None:
    erratic = [ballot for ballot in group if ballot.erratic]
    if len({ballot.member for ballot in erratic}) > 1 and 2 * len(erratic) > len(group):
        why = (
            f"{len(erratic)} of {len(group)} devices of the block differ from themselves: suspect software, not devices"
        )
        case.note(why)
        case.doubt({ballot.member for ballot in group}, why)
        return
    voters = [ballot for ballot in group if not ballot.erratic]
    for step in sorted({step for ballot in voters for step in ballot.steps}):
        _vote(step, voters, case)
    guilty = [ballot for ballot in group if ballot.erratic or ballot.against]
    for member in sorted({ballot.member for ballot in group}):
        mine = [ballot for ballot in group if ballot.member == member]
        _judge_member(member, mine, [ballot for ballot in guilty if ballot.member == member], len(group), case)
    for ballot in voters:
        if not ballot.against and ballot.confirmed < ballot.voted:
            comparable = "comparable " if mixed else ""
            why = f"no other {comparable}device confirms the digests of {ballot.device} ({ballot.key})"
            case.doubt([ballot.member], why)


def _vote(step: str, voters: Sequence[Ballot], case: Case) -> None:
    """One step: who has the majority is confirmed, who has not is accused; without majority all are suspects."""
    parts = Counter(frozenset(ballot.steps.get(step, ())) for ballot in voters).most_common(1)[0][0]
    present = [ballot for ballot in voters if ballot.steps.get(step, {}).keys() == parts]
    answers = {id(ballot): tuple(ballot.steps[step][part] for part in sorted(parts)) for ballot in present}
    answer, count = max(Counter(answers.values()).items(), key=lambda item: (item[1], item[0]))
    agreeing = [ballot for ballot in present if answers[id(ballot)] == answer]
    dissenting = [ballot for ballot in present if answers[id(ballot)] != answer]
    for ballot in voters:
        ballot.voted += 1
    if dissenting and (len(present) < VOTERS_MIN or 2 * count <= len(present)):
        _nobody_named(step, present, len(set(answers.values())), case)
        return
    witnesses = {ballot.member for ballot in agreeing}
    for ballot in dissenting:
        if len(witnesses) < 2 and ballot.member not in witnesses:
            # One node's word against another's, however many devices it has.
            _nobody_named(step, present, len(set(answers.values())), case)
            return
    for ballot in agreeing:
        ballot.confirmed += len(agreeing) > 1
    for ballot in dissenting:
        pairs = zip(sorted(parts), answers[id(ballot)], answer, strict=True)
        kind, layer = next(part for part, own, right in pairs if own != right)
        ballot.against.append(f"step {step}, {kind} of layer {layer}")


def _nobody_named(step: str, present: Sequence[Ballot], answers: int, case: Case) -> None:
    names = sorted({ballot.member for ballot in present})
    if answers == len(present) and answers >= VOTERS_MIN:
        why = f"in step {step} all {answers} devices differ from each other: suspect a common cause, software first"
        case.note(why)
    else:
        gave = f"in step {step} {len(present)} devices gave {answers} answers, none by a majority"
        why = f"{gave}: {listed(names)} are suspects"
    case.doubt(names, why)


def _judge_member(member: str, mine: Sequence[Ballot], guilty: Sequence[Ballot], devices: int, case: Case) -> None:
    if len(mine) > 1 and len(guilty) == len(mine):
        why = f"all its {len(mine)} devices corrupt at once: suspect its software, host or power before its devices"
        case.doubt([member], why)
        for ballot in guilty:
            case.find(member, _finding(ballot, devices, Severity.WARNING, FaultClass.SOFTWARE, Action.INSPECT))
        return
    for ballot in guilty:
        fault = FaultClass.CPU if ballot.device.startswith("cpu") else FaultClass.GPU
        case.find(member, _finding(ballot, devices, Severity.CRITICAL, fault, Action.RMA))


def _finding(ballot: Ballot, devices: int, severity: Severity, fault: FaultClass, action: Action) -> Finding:
    total = sum(len(step) for step in ballot.steps.values())
    if ballot.erratic:
        observed = f"{ballot.differs_from_itself:.0f} of {total} digests differ in a second run"
        return Finding(
            rule="repeats_itself",
            metric="self_mismatches",
            device=ballot.device,
            severity=severity,
            fault_class=fault,
            action=action,
            observed=f"{observed} ({ballot.note})" if ballot.note else observed,
            expected="0",
            source="by definition: one device, library, batch and set of weights give one answer",
            summary=f"{ballot.device} corrupts: {observed} of the same batch.",
        )
    first = ballot.against[0]
    observed = f"differs in {len(ballot.against)} of {ballot.voted} steps, first in {first}"
    return Finding(
        rule="same_batch",
        metric="step_digest",
        device=ballot.device,
        severity=severity,
        fault_class=fault,
        action=action,
        observed=observed,
        expected="the digest that the majority of devices gave",
        source="by definition: the same batch and weights on the same device model and library give the same bits",
        summary=f"{ballot.device} corrupts: of {devices} devices with the same batch it {observed}.",
    )


def _judge_weights(members: Mapping[str, Measurements], case: Case) -> None:
    """All nodes add the same sums to the same weights, so they must end with the same."""
    said = {name: text for name, measured in members.items() if (text := measured.text(TRAINING, "weights_digest"))}
    if len(set(said.values())) < 2:
        return
    (digest, count), *_ = Counter(said.values()).most_common()
    if len(said) < VOTERS_MIN or 2 * count <= len(said):
        case.doubt(said, f"{listed(sorted(said))} ended with different weights, none by a majority")
        return
    for name in sorted(name for name, text in said.items() if text != digest):
        finding = Finding(
            rule="same_weights",
            metric="weights_digest",
            device="node",
            severity=Severity.CRITICAL,
            fault_class=FaultClass.NODE,
            action=Action.INSPECT,
            observed="weights that differ from all others' after the same sums",
            expected="the weights of the majority",
            source="by definition: all nodes add the same sums to the same weights",
            summary=f"The node ended with other weights than {count} of {len(said)} nodes of the block.",
        )
        case.find(name, finding)
