"""Goldens: digests that enough GPUs on enough nodes agree on, and the findings for devices that return others.

The right answer of a full-entropy operation is unknown. A digest becomes golden when at least three devices on at least
three nodes returned it and at most one node in ten returned another (docs/science.md#determinism-and-goldens). Devices
under suspicion have no vote. Pure: the records keep the sightings.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence

from muster_criteria.measured import StageResult
from muster_criteria.model import Action, FaultClass, Finding, Gap, Lack, Severity, Variant, measurement_reference
from muster_criteria.words import listed

KEY, DIGEST = "golden_key", "full_entropy_digest"
"""The metric of what must be equal for digests to be comparable, and the metric of the digests."""
GOLDEN = "golden"
"""The rule of findings by a golden, and by other nodes' digests where there is none yet."""
PROBE = "full_entropy"
DEVICES_MIN = NODES_MIN = 3
DISSENT_MAX = 0.1
"""The largest share of nodes with a device that returned another digest. More than that is two kinds of node that the
key does not separate; fewer are faults, which must not keep the fleet without a golden."""
SHOWN = 12
"""Characters of a digest that messages show."""
_BY = ", by "


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A digest that the part ``subject``, in slot ``device`` of ``node``, gave in a run, and when.

    ``machine``: which of the machines of the node's name that was.
    """

    golden_id: str
    key: str
    op: str
    digest: str
    subject: str
    device: str
    node: str
    run: str
    seen_at: datetime.datetime
    machine: int = 1


@dataclasses.dataclass(frozen=True)
class Golden:
    """A promoted digest and the parts that agreed on it, as text ("gpu 123 on a in dag/run")."""

    id: str
    digest: str
    promoted_at: datetime.datetime
    agreed: tuple[str, ...]

    @property
    def cited(self) -> str:
        """The golden's origin, as findings cite it."""
        return f"golden {self.id} of {self.promoted_at:%Y-%m-%d %H:%M} UTC{_BY}{listed(list(self.agreed), 3)}"


def without_parts(cited: str) -> str:
    """What ``Golden.cited`` says, without the parts that agreed: their serials and nodes may be another owner's."""
    return cited.partition(_BY)[0]


@dataclasses.dataclass(frozen=True)
class Goldens:
    """References for a result: goldens by id, and other devices' digests where there is none yet.

    ``simulated``: the records know the node as simulated; the result's own mark is not trusted.
    """

    promoted: Mapping[str, Golden] = dataclasses.field(default_factory=dict)
    seen: tuple[Sighting, ...] = ()
    simulated: bool = False


@dataclasses.dataclass(frozen=True)
class Consensus:
    """The digest of a key to promote if enough parts agree; else ``why_not``: why none is promoted.

    ``devices`` and ``nodes`` are those that returned the most frequent digest and no other.
    """

    digest: str
    why_not: str
    devices: int
    nodes: int


@dataclasses.dataclass(frozen=True)
class Digest:
    """The digest that one device of a result returned for one operation."""

    device: str
    op: str
    key: str
    digest: str


def golden_id(key: str, op: str, *, simulated: bool) -> str:
    """Returns the id of a key and operation; real and simulated digests never share one."""
    identity = json.dumps([key, op, "simulated" if simulated else "real"])
    return "g-" + hashlib.sha256(identity.encode()).hexdigest()[:12]


def digests_of(result: StageResult) -> list[Digest]:
    """Returns the result's digests with a known key; a device that returned two for one operation is left out."""
    keys = {each.device: each.text for each in result.measurements if each.metric == KEY and each.text}
    returned: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for each in result.measurements:
        if each.metric == DIGEST and each.text:
            returned[each.device, each.labels.get("op", "")].add(each.text)
    return [
        Digest(device, op, keys[device], next(iter(digests)))
        for (device, op), digests in sorted(returned.items())
        if device in keys and op and len(digests) == 1
    ]


def consensus(sightings: Iterable[Sighting], suspects: Collection[str] = ()) -> Consensus:
    """Returns the consensus of one key's sightings. ``suspects``: parts that have no vote."""
    voting = [each for each in sightings if each.subject not in suspects]
    votes = collections.Counter(digest for digest, _ in {(each.digest, each.subject) for each in voting})
    first = min(votes, key=lambda digest: (-votes[digest], digest), default="")
    dissenting = {each.subject for each in voting if each.digest != first}
    devices = {each.subject for each in voting} - dissenting
    nodes = {each.node for each in voting if each.subject in devices}
    opposing = {each.node for each in voting if each.subject in dissenting}
    if len(opposing) > DISSENT_MAX * len(nodes | opposing):
        counted = listed([f"{digest[:SHOWN]} by {count}" for digest, count in votes.most_common()])
        over = f"; they agree since: {_withdraw({voting[0].golden_id})}" if _agree_since(voting, first) else ""
        return Consensus("", f"undecided: devices disagree ({counted}){over}", len(devices), len(nodes))
    if len(devices) < DEVICES_MIN or len(nodes) < NODES_MIN:
        agreed = f"{len(devices)} devices on {len(nodes)} nodes have agreed so far, of {DEVICES_MIN} on {NODES_MIN}"
        return Consensus("", agreed, len(devices), len(nodes))
    return Consensus(first, "", len(devices), len(nodes))


def _agree_since(seen: Iterable[Sighting], digest: str) -> bool:
    """Whether each part returned this digest last; ``seen``: the oldest first."""
    return set({each.subject: each.digest for each in seen}.values()) <= {digest}


def _withdraw(ids: Collection[str]) -> str:
    return "forget the earlier bits by " + listed([f"`muster golden withdraw {each}`" for each in sorted(ids)])


def golden_findings(result: StageResult, goldens: Goldens) -> list[Finding]:
    """Returns a finding for each device whose digest differs from the golden, or from other nodes without a golden."""
    answers, simulated = digests_of(result), goldens.simulated or result.simulated
    return [*_against_goldens(answers, goldens, simulated), *_against_others(answers, goldens, simulated)]


def uncompared(result: StageResult, goldens: Goldens) -> tuple[list[Gap], list[str]]:
    """Returns (gaps, notes) for devices whose bits were compared only with their own, without a sibling or a golden.

    The only device of a node gets a note instead of a gap: it has no siblings, and a golden may never form.
    """
    keys = {each.device: each.text for each in result.measurements if each.metric == KEY and each.text}
    shared = collections.Counter(keys.values())
    simulated = goldens.simulated or result.simulated
    left_out = {
        each.device
        for each in digests_of(result)
        if shared[each.key] == 1 and golden_id(each.key, each.op, simulated=simulated) not in goldens.promoted
    }
    if len(keys) == 1:
        return [], [
            f"{each} has no sibling and no golden: its bits were compared with its own alone" for each in left_out
        ]
    why = "its golden key is that of no sibling, and has no golden: its bits were compared with its own alone"
    return [Gap(Lack.NOT_COMPARED, why, DIGEST, each) for each in sorted(left_out)], []


def _against_goldens(answers: Sequence[Digest], goldens: Goldens, simulated: bool) -> list[Finding]:
    wrong: dict[str, list[tuple[Digest, Golden]]] = collections.defaultdict(list)
    right: dict[str, set[str]] = collections.defaultdict(set)
    for each in answers:
        golden = goldens.promoted.get(golden_id(each.key, each.op, simulated=simulated))
        if golden is None:
            continue
        if each.digest == golden.digest:
            right[golden.id].add(each.device)
        else:
            wrong[each.device].append((each, golden))
    return [_differs(device, found, right) for device, found in sorted(wrong.items())]


def _differs(device: str, found: Sequence[tuple[Digest, Golden]], right: Mapping[str, set[str]]) -> Finding:
    first, golden = found[0]
    peers = sorted(right.get(golden.id, set()))
    confirmed = len(peers) >= 2
    status = (
        f"confirmed by {listed(peers)}" if confirmed else "unconfirmed: fewer than two siblings returned the golden"
    )
    what = listed([each.op for each, _ in found])
    agreed = f"{len(golden.agreed)} devices agreed on another"
    return Finding(
        rule=GOLDEN,
        metric=DIGEST,
        device=device,
        severity=Severity.CRITICAL,
        fault_class=FaultClass.GPU,
        action=Action.RMA if confirmed else Action.RETEST,
        observed=f"{first.digest[:SHOWN]} ({what})",
        expected=golden.digest[:SHOWN],
        source=golden.cited,
        summary=f"{device} returns other bits than the golden in {what}: {agreed}; {status}.",
        confidence=0.99 if confirmed else 0.9,
        variant=Variant.CONFIRMED if confirmed else Variant.UNCONFIRMED,
        measurements=_behind(device, [each for each, _ in found]),
    )


def _against_others(answers: Sequence[Digest], goldens: Goldens, simulated: bool) -> list[Finding]:
    """Returns warnings: before there is a golden, a different digest fails no device."""
    seen: dict[str, dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    for other in goldens.seen:
        seen[other.golden_id][other.digest].add(other.subject)
    alone: dict[str, list[Digest]] = collections.defaultdict(list)
    together: dict[str, list[Digest]] = collections.defaultdict(list)
    over: set[str] = set()
    for each in answers:
        identity = golden_id(each.key, each.op, simulated=simulated)
        others = seen.get(identity, {})
        if identity in goldens.promoted or not set(others) - {each.digest}:
            continue
        alike = [one for one in answers if (one.op, one.key, one.digest) == (each.op, each.key, each.digest)]
        believed = max(len(subjects) for digest, subjects in others.items() if digest != each.digest)
        if len(others.get(each.digest, ())) > believed:
            continue  # most agree with it: the others are judged in their own results
        if len(alike) == 1 and each.digest not in others and believed >= 2:
            alone[each.device].append(each)
        else:
            together[each.device].append(each)
            if _agree_since((one for one in goldens.seen if one.golden_id == identity), each.digest):
                over.add(identity)
    found = [_alone(device, dissents) for device, dissents in sorted(alone.items())]
    return found + ([_disagreement(together, over)] if together else [])


def _alone(device: str, dissents: Sequence[Digest]) -> Finding:
    what = listed([each.op for each in dissents])
    return _dissent(
        device,
        FaultClass.GPU,
        Action.RETEST,
        f"{device} alone returns other bits than devices of other nodes in {what}: it is suspect, and no golden is "
        "formed while it differs.",
        dissents,
        Variant.ALONE,
    )


def _disagreement(together: Mapping[str, Sequence[Digest]], over: Collection[str]) -> Finding:
    dissents = [each for found in together.values() for each in found]
    what, who = listed(sorted({each.op for each in dissents})), listed(sorted(together))
    return _dissent(
        "node",
        FaultClass.SOFTWARE,
        Action.FIX_SOFTWARE,
        f"{who} and devices of other nodes return different bits in {what}, and none is alone: suspect a software "
        "difference that the key does not name first; no golden is formed until they agree"
        f"{f', as they do since: {_withdraw(over)}' if over else ''}.",
        dissents,
        Variant.DISAGREEMENT,
    )


def _dissent(
    device: str, fault: FaultClass, action: Action, summary: str, dissents: Sequence[Digest], variant: Variant
) -> Finding:
    return Finding(
        rule=GOLDEN,
        metric=DIGEST,
        device=device,
        severity=Severity.WARNING,
        fault_class=fault,
        action=action,
        observed=f"{dissents[0].digest[:SHOWN]} ({dissents[0].op})",
        expected="the bits that other nodes returned",
        source=f"a golden needs {DEVICES_MIN} devices on {NODES_MIN} nodes that agree, and none that differs",
        summary=summary,
        confidence=0.5,
        measurements=_behind("", dissents),
        variant=variant,
    )


def _behind(device: str, answers: Iterable[Digest]) -> tuple[str, ...]:
    return tuple(measurement_reference(PROBE, DIGEST, device or each.device, (("op", each.op),)) for each in answers)
