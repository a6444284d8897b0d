"""The values that leave the judge: verdicts, findings, coverage, and the judged observations behind them."""

from __future__ import annotations

import dataclasses
import enum
from typing import Literal

from muster_criteria.devices import kind_of
from muster_criteria.labels import Labels, labelled


class Verdict(enum.StrEnum):
    """The verdict on a stage or a node. Only PASS may enter production without a person."""

    PASS = "PASS"
    WARN = "WARN"
    PROVISIONAL = "PROVISIONAL"
    INCONCLUSIVE = "INCONCLUSIVE"
    FAIL = "FAIL"
    SKIPPED = "SKIPPED"


class Severity(enum.StrEnum):
    """Gravity of a finding: critical fails the stage, warning warns, info changes nothing."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the gravest."""
        return list(Severity).index(self)


class FaultClass(enum.StrEnum):
    """Which part is suspected."""

    GPU = "gpu"
    HBM = "hbm"
    NVLINK = "nvlink"
    PCIE = "pcie"
    NIC = "nic"
    CABLE = "cable"
    CPU = "cpu"
    DIMM = "dimm"
    DISK = "disk"
    PSU = "psu"
    COOLING = "cooling"
    SOFTWARE = "software"
    FACILITY = "facility"
    NODE = "node"


class Action(enum.StrEnum):
    """The next step on a finding."""

    NONE = "none"
    RETEST = "retest"
    RESEAT = "reseat"
    RESET = "reset"
    REBOOT = "reboot"
    RMA = "rma"
    ASK_FACILITY = "ask facility"
    FIX_SOFTWARE = "fix software"
    INSPECT = "inspect"


class Variant(enum.StrEnum):
    """Which of its possible forms a rule's finding has: what repeats and siblings show, or which way it is broken."""

    PLAIN = ""
    MISSING = "missing"
    """A counted device does not answer."""
    EXTRA = "extra"
    """A device answers that the SKU does not count."""
    RETEST = "retest"
    """One reading is suspicious: to be measured again."""
    PERSISTENT = "persistent"
    """Suspicious in every reading, but within the threshold for failing."""
    RARE = "rare"
    """Unusual part-to-part variation within the threshold for failing; measuring again shows the same."""
    CLEARED = "cleared"
    """Later readings do not show it."""
    CONFIRMED = "confirmed"
    """The device failed again in its reruns, and its siblings did not."""
    UNCONFIRMED = "unconfirmed"
    """Reruns or siblings do not confirm it."""
    ALONE = "alone"
    """One device differs from other nodes before there is a golden."""
    DISAGREEMENT = "disagreement"
    """Several devices differ from other nodes before there is a golden."""


COMMON_CAUSE = "common_cause"
"""The rule of a finding that names what devices which fail alike have in common; reports list it first."""

UNJUDGED = "no limit, no peers and no history to judge it by"
"""Why a required measurement is not judged: nothing outside its own node to compare it with."""

SHARED_CAUSE = 0.3
"""Highest confidence of a finding that has a common cause with others."""

DEVICE_EVENT = "device_event"
"""The rule of a finding about a message of a driver or the kernel; its labels give kind and code."""

EVIDENCE = "evidence"
"""The metric of what the controller itself established, which is not in any result; the rule says what that is."""


@dataclasses.dataclass(frozen=True)
class Extent:
    """How far a finding goes, to tell whether a later one goes further.

    ``value``: a number in ``unit``, which is the worse the lower or the higher it is (``worse``); or a text, such as
    a version or the job that an incident ended, where another text is another finding.
    """

    value: float | str
    unit: str = ""
    worse: Literal["lower", "higher", ""] = ""


@dataclasses.dataclass(frozen=True)
class Finding:
    """Which measurement broke which rule.

    ``rule`` is the rule's id in the SKU file ("floor", "ceiling", "siblings", "expected_devices", "exact", …).
    ``expected`` is a short human text with unit ("≥ 620 TFLOPS"), ``source`` names the origin of the threshold.
    ``summary`` is one sentence an operator can act on, naming device, metric, observed and expected. ``id`` is given by
    the records and stays the same whenever the same thing is found on the same node; ``waived`` names the person who
    waived it, until when and why; empty if not waived. ``measurements``: the figures behind it, as
    ``measurement_reference`` names them. ``extent``: None where it stays the same finding however far it goes.
    """

    rule: str
    metric: str
    device: str
    severity: Severity
    fault_class: FaultClass
    action: Action
    observed: str
    expected: str
    source: str
    summary: str
    labels: tuple[tuple[str, str], ...] = ()
    confidence: float = 1.0
    id: str = ""
    waived: str = ""
    measurements: tuple[str, ...] = ()
    variant: Variant = Variant.PLAIN
    extent: Extent | None = None

    @property
    def code(self) -> str:
        """Stable identity of the kind of finding, such as "floor" or "peers.retest"; the wording may change."""
        return f"{self.rule}.{self.variant}" if self.variant else self.rule


def subject(finding: Finding) -> str:
    """Returns what devices of a node may fail in together: the metric, or a device event's kind and code ("xid 79")."""
    labels = dict(finding.labels)
    coded = finding.rule == DEVICE_EVENT and {"kind", "code"} <= labels.keys()
    return f"{labels['kind']} {labels['code']}" if coded else finding.metric


def symptom_name(finding: Finding) -> str:
    """Returns what nodes may fail in together: the kind of device, and what it failed in with the labels that name a
    cause ("gpu gemm_rate[dtype=bf16]"). A number, such as of bytes, names none.

    A throttle reason counts as the fault that it shows: an overheated rack shows several. A driver's error has its kind
    and code alone ("xid 79"), since a GPU that is lost may no longer be named.
    """
    labels = dict(finding.labels)
    what = finding.rule if finding.metric == EVIDENCE else finding.metric
    if {"kind", "code"} <= labels.keys():
        return subject(finding) if finding.rule == DEVICE_EVENT else f"{what} {labels['kind']} {labels['code']}"
    if "reason" in labels:
        labels["reason"] = str(finding.fault_class)
    named = tuple((key, value) for key, value in sorted(labels.items()) if any(map(str.isalpha, value)))
    return f"{kind_of(finding.device)} {labelled(what, named)}"


def measurement_reference(probe: str, metric: str, device: str, labels: Labels = ()) -> str:
    """Returns a finding's reference to a measurement of its stage: "gemm_rate:gemm_rate[dtype=bf16]@gpu3"."""
    return f"{probe}:{labelled(metric, labels)}@{device}"


class Lack(enum.StrEnum):
    """Why something required is not measured or not judged."""

    NO_RESULT = "no_result"
    ENDED_EARLY = "ended_early"
    """The job ended before its last probe."""
    NOTHING_REQUIRED = "nothing_required"
    PROBE_ENDED = "probe_ended"
    """The probe was skipped, crashed or timed out."""
    DID_NOT_RUN = "did_not_run"
    NOT_REPORTED = "not_reported"
    NO_ANSWER = "no_answer"
    """The device does not answer."""
    NO_SENSOR = "no_sensor"
    SENSOR_STOPPED = "sensor_stopped"
    UNREADABLE = "unreadable"
    """The node gave no value, and why."""
    REFUSED = "refused"
    """What the node sent contradicts itself or the SKU file."""
    UNCOUNTED = "uncounted"
    """Nothing says how many such devices there are."""
    INVALID = "invalid"
    """Something else was measured: its own value or that of a condition shows it."""
    UNDECIDED = "undecided"
    """To be measured again: the runs so far allow no decision."""
    UNJUDGED = "unjudged"
    """Measured, without limit, peers or history; a member of a block: not judged with the others yet."""
    NOT_COMPARED = "not_compared"
    """Measured, with too few others in the block to compare it with, and without a limit."""
    NO_RDMA = "no_rdma"
    """Measured over sockets, where the SKU has a floor for RDMA."""
    JUDGE_FAILED = "judge_failed"
    LOST = "lost"
    """The member of a block did not join, or was lost to the others."""
    LOST_EACH_OTHER = "lost_each_other"
    UNFINISHED = "unfinished"
    """The block was not intact when the probe ended."""
    LOSS_NOT_FINITE = "loss_not_finite"
    MOST_ERRATIC = "most_erratic"
    """Most devices of the block differ from their own second run."""
    NOT_CONFIRMED = "not_confirmed"
    """No other device gave the same digests."""
    ALL_DIFFER = "all_differ"
    NO_MAJORITY = "no_majority"
    ALL_CORRUPT = "all_corrupt"
    """All devices of the member corrupt data."""
    BAD_PATH = "bad_path"
    """Wrong elements between two members."""
    WRONG_SUM = "wrong_sum"
    REPLANNED = "replanned"
    """It was measured with other parameters than the SKU file has by now."""
    RACK = "rack"
    """The rack whose NVLink domain the node is part of needs a person."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """Something required that was not measured or not judged: ``what`` on ``device``, and ``why`` in words."""

    code: Lack
    why: str
    what: str = ""
    device: str = ""

    def __str__(self) -> str:
        where = f"{self.what} on {self.device}" if self.device else self.what
        return ": ".join(filter(None, (where, self.why)))


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Counted against what (SKU, stage, level) requires, not against the plan.

    ``missing``: what was not measured; ``unjudged``: what had no floor, peers or history to be judged by.
    """

    required: int
    measured: int
    judged: int
    missing: tuple[Gap, ...] = ()
    unjudged: tuple[Gap, ...] = ()

    @property
    def full(self) -> bool:
        """Whether everything required was measured and judged, and anything was required at all."""
        return self.required > 0 and self.measured == self.required and self.judged == self.required


@dataclasses.dataclass(frozen=True)
class PartJudgement:
    """What one part of the judge gives of a stage: findings, a gap for each thing that is not known, and notes."""

    findings: tuple[Finding, ...] = ()
    missing: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """One judged row: a measurement with its limits, for reports. ``share`` is value / floor (or ceiling / value)."""

    probe: str
    metric: str
    device: str
    unit: str
    value: float | None
    text: str | None
    labels: tuple[tuple[str, str], ...]
    samples: int
    spread: float | None
    floor: float | None
    ceiling: float | None
    source: str
    ok: bool
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Judgement:
    """The outcome of judging one stage of one run. ``reason``: one sentence for the Grid, the table and the mail.

    ``snapshot`` is the version of the peer snapshot that it was judged by; empty where there was none. ``repeat``: the
    probes to run once more before the verdict is final.
    """

    stage: str
    level: str
    verdict: Verdict
    reason: str
    coverage: Coverage
    findings: tuple[Finding, ...]
    observations: tuple[Observation, ...]
    simulated: bool
    sku: str
    sku_version: str
    notes: tuple[str, ...] = ()
    snapshot: str = ""
    repeat: tuple[str, ...] = ()

    @property
    def replanned(self) -> str:
        """Why other parameters than the SKU file's measured it; "" if they did not."""
        return next((gap.why for gap in self.coverage.missing if gap.code is Lack.REPLANNED), "")


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Something that the controller itself established about a node.

    ``kind`` is its id ("uncommanded_reboot", "lost_under_load_twice", "agent_killed"); ``sentence`` states the
    observation. A finding of the node: the commonest failure of burn-in is a node that dies under load. ``labels``:
    what tells it from others of its kind. ``incident``: what tells it from the next one of its kind and labels, such as
    the name of the job that it ended; "" of what lasts.
    """

    kind: str
    sentence: str
    device: str = "node"
    fault_class: FaultClass = FaultClass.NODE
    action: Action = Action.INSPECT
    severity: Severity = Severity.CRITICAL
    expected: str = "a node that stays up and answers under load"
    labels: tuple[tuple[str, str], ...] = ()
    incident: str = ""
