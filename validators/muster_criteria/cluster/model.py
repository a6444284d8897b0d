"""The values of judging a block of nodes: results of members, judgements on members."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from muster_criteria.cluster.fabric.judging.found import FabricJudgement
from muster_criteria.cluster.rack import RackState
from muster_criteria.devices import kind_of, natural
from muster_criteria.measured import Measured, StageResult
from muster_criteria.model import FaultClass, Finding, Gap, Judgement, Lack, Severity
from muster_criteria.sku_files.limits import Limit

T = TypeVar("T")
Which = TypeVar("Which", bound=Hashable)

STAGE = "cluster_validation"
COLLECTIVES, TRAINING = "cluster_collectives", "cluster_training"
"""The probes whose measurements are judged here."""
ZERO = {
    "collective_mismatches": "by definition: payloads are small integers, so every element has one right value",
    "self_mismatches": "by definition: one device, library, batch and set of weights give one answer",
    "member_missing": "by definition: each member takes part in everything that the block does together",
}
"""Metrics for which any value other than 0 is a finding, and why."""
PAYLOAD = "payload"
"""The rule of findings on a member that corrupts what it exchanges, so that others get it from it."""
CORRUPTION = frozenset({"repeats_itself", "same_batch", PAYLOAD})
"""Rules of findings on members that corrupt data; these explain wrong figures that all members compute together. A slow
or ill member explains none."""
SLOWED = frozenset({"straggler", "slow_alone", "slow_path", "tokens_per_s", "slow_save", "slow_shared_path"})
"""Rules of findings on a member slower than others, or a block slower than earlier ones. Rules with their own limit
(``scaling``, ``step_p95_to_p50``) are left out: if every block broke it, none would be left to compare with."""
OTHERS_MIN = 3
"""Fewest others to compare with: with fewer, one wrong report moves their median by half of its error."""
SAVED = "checkpoint_"
"""Prefix of checkpoint figures, which are compared only between blocks with equally many devices: all ranks share one
save, so a node of a small block writes more of it."""
REASONS_MAX = 200
"""Most reasons why a member cannot pass, and sentences about a block, that are kept: a node may report any labels."""


@dataclasses.dataclass(frozen=True)
class Earlier:
    """Medians of earlier sound blocks of the SKU with the same recipe that were not found slow.

    ``tokens_per_s`` of a device, over ``blocks``; ``save_s``: 95th percentile of a checkpoint's saves, over the
    ``saves`` blocks with as many devices that made some, None without any.
    """

    tokens_per_s: float
    blocks: int
    save_s: float | None = None
    saves: int = 0


@dataclasses.dataclass(frozen=True)
class MemberResult:
    """The result of one member; ``result`` None: nothing usable came back, and ``why_missing`` is the reason.

    ``devices`` is how many GPUs its SKU counts; None: as many as the member of the block that tested most, and on nodes
    without GPUs as many as it has itself. ``known``: findings on it that are known before, of the controller.
    ``level``, ``sku`` and ``sku_version`` are copied into its judgement. ``peaks``: dense peak of a device in FLOP/s,
    and its source, by PyTorch's name of the number format. ``domain_nodes``: how many nodes an NVLink domain of its SKU
    has, which share its ``rack``; None: NVLink ends at the machine. ``in_rounds``: what its sides of the rounds'
    pairs measured of its ports, which ``port_limits`` of its SKU are held to; ``pair_limits``: floors of its rails;
    ``watch_limits``: what its GPUs are held to under load. ``left_out``: why it took no part in what follows the
    rounds, "" if it did.
    """

    name: str
    result: StageResult | None
    why_missing: str = ""
    devices: int | None = None
    known: tuple[Finding, ...] = ()
    level: str = ""
    sku: str = ""
    sku_version: str = ""
    peaks: Mapping[str, tuple[float, str]] = dataclasses.field(default_factory=dict)
    rack: str = ""
    domain_nodes: int | None = None
    in_rounds: tuple[Measured, ...] = ()
    port_limits: tuple[Limit, ...] = ()
    pair_limits: tuple[Limit, ...] = ()
    watch_limits: tuple[Limit, ...] = ()
    left_out: str = ""

    @property
    def simulated(self) -> bool:
        """Whether its result is of simulated hardware."""
        return self.result is not None and self.result.simulated


@dataclasses.dataclass(frozen=True)
class ClusterJudgement:
    """The judgements of a block's members by name, in order; ``missing``: members that did not join or were lost;
    ``notes`` concern all members; ``fabric``: the parts that the rounds of pairs found; ``racks``: those that are one
    NVLink domain. Of the members left out, it has only those that fail."""

    members: Mapping[str, Judgement]
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fabric: FabricJudgement = dataclasses.field(default_factory=FabricJudgement)
    racks: tuple[RackState, ...] = ()

    @property
    def failed(self) -> dict[str, tuple[Finding, ...]]:
        """Critical findings by member; each names its device."""
        critical = {
            name: tuple(finding for finding in judgement.findings if finding.severity is Severity.CRITICAL)
            for name, judgement in self.members.items()
        }
        return {name: findings for name, findings in critical.items() if findings}


@dataclasses.dataclass
class BlockFindings:
    """Findings so far, by member. ``suspected``: why a member cannot pass; ``unjudged``: what was measured but not
    compared with anything. ``slower``: members without a comparison that compute longer than a comparable member may.
    ``training_devices``: of all members together, 0 if one does not say."""

    findings: dict[str, list[Finding]] = dataclasses.field(default_factory=dict)
    suspected: dict[str, list[Gap]] = dataclasses.field(default_factory=dict)
    unjudged: dict[str, list[Gap]] = dataclasses.field(default_factory=dict)
    slower: set[str] = dataclasses.field(default_factory=set)
    training_devices: float = 0.0
    missing: set[str] = dataclasses.field(default_factory=set)
    notes: list[str] = dataclasses.field(default_factory=list)

    def add(self, member: str, finding: Finding) -> None:
        """Add one finding on a member."""
        self.findings.setdefault(member, []).append(finding)

    def suspect(self, members: Iterable[str], code: Lack, why: str) -> None:
        """Add a reason why none of these members can pass."""
        gap = Gap(code, why)
        for member in members:
            rows = self.suspected.setdefault(member, [])
            if len(rows) < REASONS_MAX and gap not in rows:
                rows.append(gap)

    def note(self, sentence: str) -> None:
        """Add a sentence about the whole block."""
        if len(self.notes) < REASONS_MAX and sentence not in self.notes:
            self.notes.append(sentence)

    def with_rule(self, rules: Collection[str]) -> list[str]:
        """Returns the members with a finding by one of these rules, in order."""
        return sorted(name for name, found in self.findings.items() if any(each.rule in rules for each in found))

    def corrupting(self, rules: Collection[str] = CORRUPTION) -> set[str]:
        """Returns the members that fail so far because they corrupt data, by these rules."""
        return {
            member
            for member, found in self.findings.items()
            if any(each.severity is Severity.CRITICAL and each.rule in rules for each in found)
        }


class Measurements:
    """One member's measurements, found by probe and metric."""

    def __init__(self, result: StageResult | None) -> None:
        self._rows: dict[tuple[str, str], list[Measured]] = {}
        for row in result.measurements if result is not None else ():
            self._rows.setdefault((row.probe, row.metric), []).append(row)

    def rows(self, probe: str, metric: str) -> Sequence[Measured]:
        """All rows of one metric."""
        return self._rows.get((probe, metric), ())

    def value(self, probe: str, metric: str, device: str = "node", **labels: str) -> float | None:
        """The one value with these labels; None if there is none, or several that differ."""
        return _only({row.value for row in self._matching(probe, metric, device, labels)})

    def text(self, probe: str, metric: str, device: str = "node") -> str | None:
        """The one text; None if there is none, or several that differ."""
        return _only({row.text for row in self._matching(probe, metric, device, {})})

    def texts(self, probe: str, metric: str) -> tuple[str, ...]:
        """The different texts of a metric, in order."""
        return tuple(sorted({row.text or "" for row in self.rows(probe, metric)}))

    def devices(self, probe: str, metric: str) -> list[str]:
        """The devices that report a metric, gpu2 before gpu10."""
        return sorted({row.device for row in self.rows(probe, metric)}, key=natural)

    def _matching(self, probe: str, metric: str, device: str, labels: Mapping[str, str]) -> list[Measured]:
        return [
            row for row in self.rows(probe, metric) if row.device == device and labels.items() <= row.labels.items()
        ]


def fault_of(device: str) -> FaultClass:
    """The suspected part where a device of a member is the reason."""
    return {"gpu": FaultClass.GPU, "cpu": FaultClass.CPU}.get(kind_of(device), FaultClass.NODE)


def number_of(limit: Limit) -> float:
    """The number of a limit that has one."""
    assert limit.number is not None, limit.name
    return limit.number


class Low(NamedTuple):
    """A ``rate`` that lies ``drop`` % below ``usual``, the others' median; ``least``: what the limit requires."""

    rate: float
    usual: float
    drop: float
    least: float


def low_rates(limit: Limit, rates: Mapping[Which, float], kinds: Mapping[Which, object]) -> dict[Which, Low]:
    """The rates that lie more % than the limit below the median of at least ``OTHERS_MIN`` others of their kind."""
    found = {}
    for which, rate in rates.items():
        others = [other for at, other in rates.items() if at != which and kinds[at] == kinds[which]]
        usual = statistics.median(others) if len(others) >= OTHERS_MIN else 0.0
        drop = 100.0 * (1.0 - rate / usual) if usual > 0 else 0.0
        if drop > number_of(limit):
            found[which] = Low(rate, usual, drop, usual * (1.0 - number_of(limit) / 100.0))
    return found


def values_of(members: Mapping[str, Measurements], metric: str, **labels: str) -> dict[str, float]:
    """A training metric by member, of the members with exactly one value (``Measurements.value``)."""
    found = {name: measured.value(TRAINING, metric, **labels) for name, measured in members.items()}
    return {name: value for name, value in found.items() if value is not None}


def of_limit(
    limit: Limit, rule: str, metric: str, observed: str, expected: str, summary: str, **more: Any
) -> Finding:  # fmt: skip
    """A warning that a member, or the device in ``more``, breaks a limit; ``more``: further fields of the finding."""
    usual = {"device": "node", "severity": Severity.WARNING, "fault_class": limit.fault}
    return Finding(
        rule=rule, metric=metric, action=limit.action, observed=observed, expected=expected,
        source=f"{limit.source} ({limit.date})", summary=summary, **{**usual, **more},
    )  # fmt: skip


def _only(values: set[T | None]) -> T | None:
    return next(iter(values)) if len(values) == 1 else None
