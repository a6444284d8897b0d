"""A node's answer to the sweep: validated, then read as states, events and counters. Nothing in it is trusted.

What a node shows is compared with what it showed before: a port that never had a link is not down, and a service that
never ran has not failed.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import pydantic

from muster_criteria.device_events.policy import (
    KERNEL,
    DeviceEvent,
    EventPolicy,
    EventSeverity,
    policy_of,
    response_to,
)
from muster_criteria.health import presence
from muster_criteria.health.counters import Count, believable, gone_on, leaps, rises
from muster_criteria.health.presence import UNREAD, UP
from muster_criteria.measured import NOT_SUPPORTED, THROTTLED
from muster_criteria.text import one_line
from muster_criteria.written import problem_of

ANSWER_MAX = 1024 * 1024
"""Bytes of an answer that are read: that of eight GPUs with two hundred kernel messages has 150,000."""
DISK_FREE_SHARE, DISK_FREE_GIB = 0.02, 1.0
CLOCK_SKEW_S = 60.0
THROTTLED_SHARE = 0.2
"""A GPU counts as throttled if it was held down for this share of the time between two sweeps."""
EXPOSED_S = 60.0
"""A shorter time under a job counts as this: a single error within a second is no rate."""
BOOT_S = 300.0
"""Time (s) after a boot in which ``during`` entries do not count: firmware makes sound machines log errors."""
UNCLASSED = str(EventSeverity.ISOLATE)
"""The severity of a driver's error that no policy of the SKU judges."""
LOG_READ = f"{UP}kernel_log"
"""In the remembered counters: the kernel's log could be read."""
REMEMBERED_MAX = 10_000
"""Values that are remembered of a node, the oldest names first: one of eight GPUs has a thousand."""

_Line = pydantic.AfterValidator(one_line)
Text = Annotated[str, pydantic.StringConstraints(max_length=1000), _Line]
Short = Annotated[str, pydantic.StringConstraints(max_length=40), _Line]
Number = Annotated[float, pydantic.Field(allow_inf_nan=False)]
Name = Annotated[str, pydantic.StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9:._@+/ -]{0,79}$")]


class _Read(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="ignore")


class Fact(_Read):
    """One reading: a number or a text, or neither with a note."""

    name: Name
    device: Name
    value: Number | None = None
    text: Text = ""
    note: Text = ""
    labels: Annotated[dict[str, Text], pydantic.Field(max_length=8)] = {}


class Message(_Read):
    """A device event, or ``count`` equal ones. ``code``: the driver's, None for a message with only a text; ``part``:
    the device that the message itself names; ``last``: seconds since boot of the last of them.
    """

    kind: Annotated[str, pydantic.StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,15}$")] = KERNEL
    code: Annotated[int, pydantic.Field(ge=0, le=99_999)] | None = None
    text: Text = ""
    count: Annotated[int, pydantic.Field(ge=1)] = 1
    priority: Annotated[int, pydantic.Field(ge=0, le=7)] | None = None
    last: Number | None = None
    pci: Short = ""
    part: Short = ""
    device: Short = ""


class Kernel(_Read):
    """The kernel log since the cursor. ``loaded``: when a GPU driver last logged that it was loaded; ``left_out``: how
    many messages did not fit into ``events``.
    """

    first: Number | None = None
    last: Number | None = None
    loaded: Number | None = None
    left_out: Annotated[int, pydantic.Field(ge=0)] = 0
    events: Annotated[tuple[Message, ...], pydantic.Field(max_length=1500)] = ()


class Swept(_Read):
    """The answer. ``kernel``: None where the log cannot be read; ``hung``: readings that did not end in time.

    ``log_s``: the uptime by the clock of the kernel log, None where it is that of ``uptime_s``.
    """

    schema_: Annotated[int, pydantic.Field(alias="schema")]
    boot_id: Annotated[str, pydantic.StringConstraints(max_length=64), _Line] = ""
    uptime_s: Annotated[Number, pydantic.Field(ge=0)] | None = None
    log_s: Annotated[Number, pydantic.Field(ge=0)] | None = None
    wall: Number | None = None
    simulated: bool = False
    facts: Annotated[tuple[Fact, ...], pydantic.Field(max_length=5000)] = ()
    kernel: Kernel | None = None
    hung: Annotated[tuple[Name, ...], pydantic.Field(max_length=50)] = ()
    failed: Annotated[dict[Name, Text], pydantic.Field(max_length=50)] = {}

    @property
    def logs_at(self) -> float | None:
        """How the kernel log would stamp a line now, seconds since boot; None where unknown."""
        return self.uptime_s if self.log_s is None else self.log_s


class BadAnswer(Exception):
    """An answer that cannot be read; the message is one clause."""


def parse(answer: bytes) -> Swept:
    """Reads an answer. Raises BadAnswer."""
    try:
        return Swept.model_validate_json(answer)
    except pydantic.ValidationError as error:
        keys, message, _ = problem_of(error)
        raise BadAnswer(one_line(f"{'.'.join(keys) or 'the answer'}: {message}")[:200]) from None
    except RecursionError:
        raise BadAnswer("the answer is nested too deeply") from None


@dataclasses.dataclass(frozen=True)
class Reading:
    """One thing that was seen of a node. ``device``: "gpu3" or "node"; ``part``: its serial, "" to have it looked up.

    ``bad``: of a state, whether it is bad now; None for an event, such as a message of the kernel log, which does not
    end. ``severity``: of a policy's entry for it, "" without one; ``rate``: events an hour, None where none is known.
    ``at``: when its source says that an event was, None where it does not.
    """

    check: str
    device: str = "node"
    value: str = ""
    count: int = 1
    severity: str = ""
    rate: float | None = None
    bad: bool | None = None
    part: str = ""
    at: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True)
class Before:
    """What the last sweep left. ``counters``: also what was ever up; ``seconds``: since then, None for the first.

    ``untested_for``: seconds since the last test before the node entered service read, and judged, the kernel's log;
    without such a test, since it entered service; None if unknown.
    ``under_job``: for how many of ``seconds`` a user's job is known to have run on it, 0 where nothing is known.
    """

    boot_id: str = ""
    kernel_s: float = 0.0
    counters: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: float | None = None
    untested_for: float | None = None
    under_job: float = 0.0


def read(
    swept: Swept, before: Before, now: float, *, policies: Sequence[EventPolicy], gpus: int = 0
) -> tuple[list[Reading], dict[str, float]]:
    """Returns what the answer shows, and the counters to remember. ``now``: the controller's time, epoch seconds.

    ``gpus``: how many GPUs the SKU has, 0 where it does not say.
    """
    counters: dict[str, float] = {}
    known = before.counters
    found = [*_facts(swept, before, counters), *_refused(swept.facts)]
    unread = {*swept.failed, *swept.hung}
    found += [Reading(*each[:3], bad=each.bad) for each in presence.states(swept.facts, unread, known, counters)]
    count = next((fact.value for fact in swept.facts if fact.name == "gpus"), None)
    if gpus and count is not None:
        found.append(
            Reading("gpu_missing", value=f"{count:.0f} of {gpus} answer" if count < gpus else "", bad=count < gpus)
        )
    if swept.wall is not None:
        skew = swept.wall - now
        found.append(Reading("clock_skew", value=f"{skew:+.0f} s", bad=abs(skew) > CLOCK_SKEW_S))
    if before.boot_id and swept.boot_id and swept.boot_id != before.boot_id:
        found.append(Reading("rebooted", value=f"{swept.uptime_s or 0:.0f} s ago"))
    found += [Reading(f"hung/{each}") for each in swept.hung]
    counters.update((f"{UNREAD}{name}", 1.0) for name in swept.failed)
    for name in sorted({*swept.failed, *(key[len(UNREAD) :] for key in known if key.startswith(UNREAD))}):
        why = swept.failed.get(name)
        if name not in swept.hung:
            found.append(Reading(f"unread/{name}", value=(why or "")[:200], bad=why is not None))
    if "kernel" not in unread:
        found += _log_states(swept, known, counters, gpus=bool(gpus or count))
    if swept.kernel is not None:
        found += _kernel(swept, swept.kernel, before, policies)
    remembered = {**{key: value for key, value in known.items() if key.startswith(UP)}, **counters}
    return found, dict(itertools.islice(remembered.items(), REMEMBERED_MAX))


def _facts(swept: Swept, before: Before, counters: dict[str, float]) -> Iterator[Reading]:
    counts = []
    for fact in swept.facts:
        value, device = fact.value, fact.device
        if fact.name in _SMART:
            odd = value is None and not fact.note.startswith(NOT_SUPPORTED)
            yield Reading(f"unread/{fact.name}", device, fact.note[:200] if odd else "", bad=odd)
        if fact.name in _FLAGS and value is not None:
            yield Reading(fact.name, device, bad=bool(value))
        elif fact.name == "recovery_action" and fact.text:
            yield from _recovery(fact.text, device)
        elif fact.name == "fabric_healthy" and value is not None:
            yield Reading("fabric_unhealthy", device, bad=not value)
        elif fact.name == "clock_synchronised" and value is not None:
            yield Reading("clock_unsynchronised", bad=not value)
        elif fact.name in COUNTED and value is not None:
            counts.append(Count(fact.name, device, fact.labels, value))
        else:
            yield from _disk(fact)
    before = dataclasses.replace(before, counters=gone_on(counts, before.counters))
    believed = believable(counts, before.counters)
    counters.update({each.key: each.value for each in believed} | leaps(counts, believed))
    if before.seconds:
        yield from _rises(swept, before, before.seconds, believed)


def _recovery(needed: str, device: str) -> Iterator[Reading]:
    check = "" if needed == "none" else _RECOVERIES.get(needed, "recovery_action")
    for each in ("recovery_action", *dict.fromkeys(_RECOVERIES.values())):
        yield Reading(each, device, needed if each == check else "", bad=each == check)


def _refused(facts: Sequence[Fact]) -> Iterator[Reading]:
    """Yields for each GPU whether reading any of its states failed: an unknown state is not good. States that it does
    not support do not count, as in a test's coverage.
    """
    refused: dict[str, str] = {}
    for fact in facts:
        if fact.name in _FLAGS or fact.name in _STATED:
            silent = fact.value is None and not fact.text and not fact.note.startswith(NOT_SUPPORTED)
            why = f"{fact.name}: {fact.note[:200] or 'no reason given'}" if silent else ""
            refused[fact.device] = refused.get(fact.device) or why
    for device, why in refused.items():
        yield Reading("unread/states", device, why, bad=bool(why))


def _rises(swept: Swept, before: Before, seconds: float, counts: Sequence[Count]) -> Iterator[Reading]:
    same = swept.boot_id == before.boot_id
    loaded_at, up = swept.kernel.loaded if swept.kernel else None, swept.uptime_s
    loaded = loaded_at is not None and swept.logs_at is not None and loaded_at > swept.logs_at - seconds
    if not same and up is not None:
        seconds = max(min(seconds, up), 1.0)
    for each, risen in rises(counts, before.counters if before.boot_id else {}, same_boot=same, loaded=loaded):
        yield from _risen(each, risen, seconds, before.under_job)


def _disk(fact: Fact) -> Iterator[Reading]:
    """What a fact of a local disk or a file system says."""
    value, device = fact.value, fact.device
    if fact.name in _DISK_STATES and fact.text:
        yield Reading(fact.name, device, fact.text, bad=fact.text != _DISK_STATES[fact.name])
    elif value is None:
        return
    elif fact.name == "disk_free":
        share = _number(fact.labels.get("share"))
        full = value < DISK_FREE_GIB or (share is not None and share < DISK_FREE_SHARE)
        yield Reading("disk_full", device, f"{value:.1f} GiB free", bad=full)
    elif fact.name == "raid_missing":
        yield Reading("raid_degraded", device, f"{value:.0f} disks are missing" if value else "", bad=value > 0)
    elif fact.name == "nvme_warning":
        found = [text for bit, text in _NVME_BITS.items() if int(value) & bit]
        yield Reading("nvme_warning", device, ", ".join(found), bad=bool(found))
        yield Reading("nvme_hot", device, bad=bool(int(value) & _NVME_HOT))
    elif fact.name == "nvme_used":
        yield Reading("nvme_worn", device, f"{value:.0f} % of its life is used", bad=value >= 100)


_FLAGS = frozenset({
    "gpu_lost", "row_remap_pending", "row_remap_failed", "channel_repair_pending", "tpc_repair_pending",
    "unrepairable_memory", "retired_pages_pending", "sram_threshold_exceeded",
})  # fmt: skip
_STATED = frozenset({"recovery_action", "fabric_healthy"})
"""The other states of a GPU that say by themselves whether they are bad."""
_RECOVERIES = {
    "recovery of the IMEX domain": "imex_recovery",
    "drain of peer traffic": "peer_drain",
    "reboot of the node": "reboot_needed",
    "reboot of the system": "reboot_needed",
}
"""{recovery that a driver asks for, and that a reset of the GPU does not bring, or not yet: its own check}"""
_DISK_STATES = {"nvme_state": "live", "disk_state": "running"}
_SMART = frozenset({"nvme_warning", "nvme_media_errors", "nvme_used", "nvme_spare"})
_NVME_BITS = {1: "spare blocks below its threshold", 4: "reliability degraded", 8: "read-only",
              16: "backup of its volatile memory failed", 32: "persistent memory read-only"}  # fmt: skip
_NVME_HOT = 2
COUNTED = frozenset({
    "ecc_uncorrected", "ecc_corrected", "row_remap_corrected", "row_remap_uncorrected", "edac_corrected",
    "edac_uncorrected", "machine_checks", "machine_checks_corrected", "throttle_time", "ib_errors", "pcie_replay",
    "nvlink_errors", "nvme_media_errors", "service_restarts",
})  # fmt: skip
"""Counters whose rise is an observation. The health policy has an entry for each, if only to note it."""


def _risen(count: Count, risen: float, seconds: float, under_job: float) -> Iterator[Reading]:
    """Yields what a counter's rise shows. Errors that occur only under load are rare at rest, so the rate is by the
    time under a job, if one ran.
    """
    if count.name == "throttle_time":
        reason = count.labels.get("reason", "")
        if reason in THROTTLED:
            share = risen / seconds
            bad = share >= THROTTLED_SHARE
            yield Reading(f"throttled/{reason}", count.device, f"{share:.0%} of {seconds:.0f} s", bad=bad)
    elif risen > 0 and count.labels.get("scope", "volatile") == "volatile":
        counter = count.labels.get("counter", "")
        check = f"{count.name}/{counter}" if counter else count.name
        loaded = 0.0 < under_job < seconds
        exposed = min(max(under_job, EXPOSED_S), seconds) if loaded else seconds
        value = f"{risen:.0f} in {seconds:.0f} s" + (f", {under_job:.0f} s of them under a job" if loaded else "")
        yield Reading(check, count.device, value, count=max(int(risen), 1), rate=risen * 3600.0 / exposed)


_DRIVER_ERROR = re.compile(r"(?!alert/|event/)([a-z][a-z0-9-]{0,15})/(\d{1,5})")


def driver_error(check: str) -> tuple[str, int] | None:
    """(kind, code) of a check that is a driver's error, such as "xid/79"; None for any other.

    What follows "alert/" and "event/" is the name that a reporting program gave, even where it is a number.
    """
    found = _DRIVER_ERROR.fullmatch(check)
    return (found[1], int(found[2])) if found else None


def _log_states(
    swept: Swept, known: Mapping[str, float], counters: dict[str, float], *, gpus: bool
) -> Iterator[Reading]:
    """Whether the kernel's log can be read. If it never could on a node without GPUs, as in a container,
    nothing was lost.
    """
    if swept.kernel is not None:
        counters[LOG_READ] = 1.0
    blind = swept.kernel is None and (gpus or LOG_READ in known)
    yield Reading("unread/kernel_log", bad=blind)
    yield Reading("no_kernel_log", bad=swept.kernel is None and not blind)


def _kernel(swept: Swept, log: Kernel, before: Before, policies: Sequence[EventPolicy]) -> Iterator[Reading]:
    same = swept.boot_id == before.boot_id
    judged = 0.0 if same else float("inf")  # the time of the boot is unknown
    if swept.logs_at is not None:
        judged = swept.logs_at - before.untested_for if before.untested_for is not None else 0.0
    since = max(before.kernel_s, judged)
    if same and log.first is not None and log.first > since > 0:
        yield Reading("kernel_log_gap", value=f"{log.first - since:.0f} s of the log were overwritten")
    if log.left_out:
        yield Reading("kernel_log_gap", value=f"{log.left_out} messages of too many different forms were left out")
    for each in log.events:
        if not _within(each.last, judged) and (found := _event(each, policies)) is not None:
            yield found


def _event(each: Message, policies: Sequence[EventPolicy]) -> Reading | None:
    """A message as its policy classes it; None for one without a code that no policy finds worth a note."""
    device = each.device or each.part or (f"pci:{each.pci}" if each.pci else "node")
    policy = policy_of(policies, each.kind)
    if policy is None:
        check = f"{each.kind}/{each.code}"
        return None if each.code is None else Reading(check, device, each.text, each.count, UNCLASSED)
    event = DeviceEvent(each.kind, device, each.pci, each.text, each.code, each.priority, count=each.count)
    response = response_to(event, policy, during=not _within(each.last, BOOT_S))
    if each.code is None and response.severity is EventSeverity.IGNORE:
        return None
    return Reading(f"{each.kind}/{response.name}", device, each.text, each.count, str(response.severity))


def _within(last: float | None, seconds: float) -> bool:
    """Whether something was logged last within the first ``seconds`` after the boot."""
    return last is not None and last <= seconds


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None
