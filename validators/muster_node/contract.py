"""What passes between controller and node: the plan that goes out and the result that comes back.

Plain frozen dataclasses with JSON on either end. The controller does not trust these classes with what a node
sends: it validates the JSON with its own pydantic models (``muster_criteria.measured``).
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

PLAN_SCHEMA = "muster.plan/1"
RESULT_SCHEMA = "muster.result/1"

RESULT_BYTES_MAX = 5 * 1024 * 1024
"""A result never grows past this, however long the run; what does not fit is dropped, which ``notes`` states."""

TELEMETRY_BYTES_MAX = 64 * 1024 * 1024
"""The largest side file that the controller accepts."""

# What the controller takes: it refuses the whole result for one name, device, unit, label or number that is not so.
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,79}")
DEVICE = re.compile(r"[a-z]{1,15}[0-9]{0,4}(:[A-Za-z0-9_.:@+/-]{1,64})?")
UNIT = re.compile(r"[A-Za-z0-9%°/·²³ .-]{1,16}")
LABEL = re.compile(r"[A-Za-z0-9_.:@+/% -]{0,64}")
LABELS_MAX = 8
NUMBER_MAX = 1e18
_NOT_IN_DEVICE, _NOT_IN_LABEL = re.compile(r"[^A-Za-z0-9_.:@+/-]"), re.compile(r"[^A-Za-z0-9_.:@+/% -]")

# How one probe ended.
COMPLETED = "completed"
SKIPPED = "skipped"
CRASHED = "crashed"
TIMED_OUT = "timed_out"

# How the whole job ended.
END_COMPLETED = "completed"  # every probe has an outcome
END_BUSY = "busy"  # the in-use guard refused, or another job holds the node; nothing was loaded
END_FENCED = "fenced"  # a newer fencing token has been seen on this node
END_TERMINATED = "terminated"  # SIGTERM; the result is partial
PREEMPTED = "preempted"  # begins the reason of such an end, in each probe that it cut short or that was not reached
END_DEADLINE = "deadline"  # the job's own deadline; the result is partial
END_ERROR = "error"  # the agent itself could not work (hardware would not open, a fault of its own)

# Exit statuses of ``muster.pyz run``; in all of them but the last two a result.json has been written.
EXIT_OF_END = {END_COMPLETED: 0, END_BUSY: 3, END_FENCED: 4, END_TERMINATED: 6, END_DEADLINE: 7, END_ERROR: 8}
EXIT_BAD_PLAN = 5
EXIT_NO_RESULT = 9  # no result.json could be written, or the job already runs in this directory

OF_EACH_DEVICE = ("vbios", "inforom", "nvswitch", "nic")
"""Versions of an environment that may differ between the devices of one node: the distinct ones that could be read,
sorted, with ``BETWEEN_VERSIONS`` between them."""
BETWEEN_VERSIONS = "+"


def as_device(name: str) -> str:
    """A device name that a result may have: after the colon, "_" replaces each other character, or stands for an empty
    name; a kind that is not allowed becomes "device"."""
    if DEVICE.fullmatch(name):
        return name
    kind, colon, own = name.partition(":")
    if not (colon and DEVICE.fullmatch(kind)):
        kind, own = "device", name
    return f"{kind}:{as_name(own)[:64] or '_'}"


def as_name(text: str) -> str:
    """A device of the sweep, such as a PCI address, with "_" for each character that no device may have."""
    return _NOT_IN_DEVICE.sub("_", text)


def as_label(text: str) -> str:
    """A label, with "_" for each character that a result may not have."""
    return _NOT_IN_LABEL.sub("_", text)[:64]


@dataclasses.dataclass(frozen=True)
class ProbeCall:
    """One probe to run. ``params`` overrides the probe's declared defaults; ``seed`` makes its data reproducible."""

    probe: str
    timeout_s: float
    seed: int
    params: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one job does on one node.

    ``fence`` is the lease's fencing token: the agent refuses a plan whose token is lower than the highest it has seen,
    and a higher one ends older work. ``deadline_s`` counts from the agent's start and is enforced by the node itself.
    ``force_reason`` overrules the in-use guard and is recorded. ``repeat``: only some of the stage's probes, once more.
    ``busy_daemons``: names of processes whose CPU time does not count as use of the machine.
    """

    job_id: str
    node: str
    stage: str
    level: str
    fence: int
    deadline_s: float
    probes: tuple[ProbeCall, ...]
    telemetry_interval_s: float = 1.0
    force_reason: str | None = None
    repeat: bool = False
    busy_daemons: tuple[str, ...] = ()
    schema: str = PLAN_SCHEMA

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Parse a plan. Raises ValueError, in one sentence, on anything malformed or of another schema."""
        try:
            raw = json.loads(text)
            if raw.get("schema") != PLAN_SCHEMA:
                raise ValueError("schema is {!r}, this agent reads {!r}".format(raw.get("schema"), PLAN_SCHEMA))
            known = {field.name for field in dataclasses.fields(Plan)}
            unknown = sorted(set(raw) - known)
            if unknown:
                raise ValueError("unknown keys {}".format(", ".join(unknown)))
            raw["probes"] = tuple(ProbeCall(**call) for call in raw["probes"])
            raw["busy_daemons"] = tuple(raw.get("busy_daemons", ()))
            return Plan(**raw)
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ValueError(f"the plan cannot be used: {error}") from error


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One measured figure, or one fact.

    Exactly one of ``value`` (a number, in ``unit``) and ``text`` is set; both None means that it could not be measured,
    and ``note`` gives the reason ("not supported"): never a zero in its place. ``device`` is "node", "cpu3", "gpu0",
    "disk:sda", "nic:eth0". GPUs are numbered by their physical slot (NVML module id − 1) where the board reports it, so
    that a GPU that is missing leaves a gap. ``labels`` distinguish variants of a metric ({"dtype": "bf16"}).
    ``samples`` is the number of repeats behind the value; ``spread`` their (p95 − p5) / median, if there were several.
    """

    probe: str
    metric: str
    device: str
    unit: str
    value: float | None = None
    text: str | None = None
    labels: dict[str, str] = dataclasses.field(default_factory=dict)
    samples: int = 1
    spread: float | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class ProbeOutcome:
    """How one probe ended: status is one of completed, skipped, crashed, timed_out; ``reason`` is one sentence."""

    probe: str
    status: str
    reason: str
    started_at: float
    duration_s: float


@dataclasses.dataclass(frozen=True)
class TelemetryFile:
    """The streamed series: gzip of JSON lines {"t": s, "series", "device", "value" or "state"}, in the job dir."""

    file: str
    sha256: str
    rows: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Result:
    """What one job found. ``simulated`` comes from the hardware seam and follows every figure to the last report.

    ``identity``: boot_id, hostname, machine_id, serials {part: serial}. ``environment``: kernel, os, python, torch,
    driver, and so on, text to text. ``guard``: {"busy": bool, "evidence": [sentence]}. Times are epoch seconds.
    ``repeat``: as in the plan.
    Where ``end`` is not "completed", ``notes[0]`` is the sentence that gives the reason.
    """

    job_id: str
    node: str
    stage: str
    level: str
    fence: int
    agent_sha256: str
    simulated: bool
    started_at: float
    ended_at: float
    end: str
    partial: bool
    identity: dict[str, Any]
    environment: dict[str, str]
    guard: dict[str, Any]
    probes: list[ProbeOutcome]
    measurements: list[Measurement]
    telemetry_file: TelemetryFile | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    repeat: bool = False
    schema: str = RESULT_SCHEMA

    def to_json(self) -> str:
        """The result as JSON text, with "?" for what UTF-8 cannot hold: the controller refuses a result with half a
        surrogate pair. NaN and infinities are refused (ValueError), since no reader could trust them.
        """
        text = json.dumps(dataclasses.asdict(self), allow_nan=False, sort_keys=True, ensure_ascii=False)
        return text.encode("utf-8", "replace").decode("utf-8")
