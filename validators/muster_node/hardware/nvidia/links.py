"""NVLink of one GPU, link by link, and its state in the NVSwitch fabric; Facts only."""

from __future__ import annotations

import collections
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

from muster_node.hardware.nvidia.answers import number, usable
from muster_node.hardware.nvidia.nvml import Answer, Nvml, whole
from muster_node.hardware.seam import NOT_SUPPORTED, Fact

_MB_IN_GB = 1000.0

# Error counters of a link. The first three are of NVLink up to 4, the others of NVLink 5.
_ERRORS = (
    ("replay", "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY"),
    ("recovery", "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY"),
    ("crc", "NVML_FI_DEV_NVLINK_ERROR_DL_CRC"),
    ("effective", "NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS"),
    ("recovered", "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS"),
    ("recovery_failed", "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"),
)
_C2C_MOST = 64
"""Links to the CPU that a GPU may have; a count beyond is garbage. Chosen here, far above what one of today has."""
_C2C_ERRORS = (
    ("interrupt", "NVML_FI_DEV_C2C_LINK_ERROR_INTR"),
    ("replay", "NVML_FI_DEV_C2C_LINK_ERROR_REPLAY"),
    ("replay_b2b", "NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B"),
)
_FABRIC_STATES = {0: None, 1: "not started", 2: "in progress", 3: "completed"}
_FABRIC_HEALTH = {0: None, 1: 1.0, 2: 0.0, 3: 0.0}
"""Healthy is 1, unhealthy 2, of limited capacity 3; 0 is not supported."""

_FABRIC_VERSIONS = (
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
    ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)
_OLDER_DRIVER = (13, 25)
"""Refusals of a version that the driver does not know: function not found, version mismatch."""
_INVALID_ARGUMENT = 2
"""What some drivers say to a version that they do not know, and all say to what they do not like: an older structure
is tried, and what that lacks is then refused rather than not supported."""
_NO_PERMISSION = 4

_ILL_IF_TRUE = (0, 2, 4, 6)
"""Shifts in nvml.h's health mask, of two bits each: degraded bandwidth, route in recovery, route unhealthy, recovery
after an access that timed out. 0: not supported; 1: so; 2: not so."""
_CONFIGURATION, _CONFIGURATION_RIGHT = 8, 1


class Links:
    """The links of one GPU, queried once. ``active`` is the number of links that are up, or why it is unknown."""

    def __init__(self, nvml: Nvml, handle: Any, device: str) -> None:
        self._nvml, self._handle, self._device = nvml, handle, device
        self._states: list[tuple[int, bool]] = []
        self.active = self._ask_states()

    def _ask_states(self) -> Answer:
        """The number of links is unknown in advance: the first unsupported link number ends the list.

        A refused link between two that answer is not past the last one but unknown, and so is the number of links up.
        """
        nvml = self._nvml
        refused: tuple[int, Answer] | None = None
        past = nvml.constant("NVML_ERROR_NOT_SUPPORTED"), nvml.constant("NVML_ERROR_INVALID_ARGUMENT")
        for link in range(nvml.constant("NVML_NVLINK_MAX_LINKS")):
            state = nvml.query("nvmlDeviceGetNvLinkState", self._handle, link)
            if state.value is not None:
                self._states.append((link, state.value == nvml.constant("NVML_FEATURE_ENABLED")))
            elif link == 0 or state.code not in past:
                return state
            elif refused is not None:
                break
            else:
                refused = link, state
        if refused is not None and self._states[-1][0] > refused[0]:
            return Answer(note=f"NVML: link {refused[0]} gives no state ({refused[1].note})", code=refused[1].code)
        return Answer(sum(up for _, up in self._states))

    def facts(self) -> Iterator[Fact]:
        """State and speed of each link; error counters are ``errors``."""
        for link, up in self._states:
            labels = {"link": str(link)}
            yield Fact("nvlink_state", self._device, "bool", float(up), labels=labels)
            if up:
                speed = self._nvml.field(self._handle, "NVML_FI_DEV_NVLINK_GET_SPEED", link)
                yield number("nvlink_speed", self._device, "GB/s", speed.map(lambda mb: mb / _MB_IN_GB), labels)

    def errors(self) -> Iterator[Fact]:
        """Error counters of each link that is up; a kind that the first link does not have is reported once.

        Each kind is also reported once if no link is up: no measurement is missing if the GPU has no links, but one is
        if it lost them.
        """
        up = [link for link, is_up in self._states if is_up]
        for kind, field in _ERRORS:
            if not up:
                why = Answer(note=self.active.note or "no link is up")
                yield number("nvlink_errors", self._device, "count", why, {"kind": kind})
            for place, link in enumerate(up):
                count = self._nvml.field(self._handle, field, link)
                if place == 0 and count.note == NOT_SUPPORTED:
                    yield number("nvlink_errors", self._device, "count", count, {"kind": kind})
                    break
                yield number("nvlink_errors", self._device, "count", count, {"kind": kind, "link": str(link)})


def c2c_facts(nvml: Nvml, handle: Any, device: str) -> Iterator[Fact]:
    """Each NVLink-C2C of the GPU to its CPU: whether it is active, and its errors; one entry where there is none."""
    count = nvml.field(handle, "NVML_FI_DEV_C2C_LINK_COUNT")
    links = int(count.value) if usable(count) and 0 < count.value <= _C2C_MOST else 0
    if not links:
        yield number("c2c_state", device, "bool", count if count.note else _ABSENT)
    for link in range(links):
        labels = {"link": str(link)}
        yield number("c2c_state", device, "bool", nvml.field(handle, "NVML_FI_DEV_C2C_LINK_GET_STATUS", link), labels)
        for kind, field in _C2C_ERRORS:
            yield number("c2c_errors", device, "count", nvml.field(handle, field, link), {"kind": kind, **labels})


def fabric_facts(nvml: Nvml, handle: Any, device: str) -> Iterator[Fact]:
    """State of the GPU's registration in its NVSwitch fabric, and whether the fabric manager reports it healthy."""
    answer, refused = fabric_info(nvml, handle)
    state = answer.map(lambda info: _FABRIC_STATES.get(info.state, f"state {info.state}"))
    status = answer.value.status if answer.value is not None and answer.value.state == COMPLETED else 0
    text = f"completed with NVML error {status}" if status else state.value
    note = answer.note or NOT_SUPPORTED
    if status == _NO_PERMISSION:  # whose fault that is says nothing about the GPU
        text, note = None, "NVML: this user has no permission to see how the registration ended (error 4)"
    yield Fact("fabric_state", device, "text", text=text, note="" if text is not None else note)
    health = answer.map(_fabric_health)
    if health.value is None and not health.note and refused:
        health = Answer(note=refused)
    yield number("fabric_healthy", device, "bool", health if health.value is not None or health.note else _ABSENT)


COMPLETED = 3
_NAMED = 4
_ABSENT = Answer(note=NOT_SUPPORTED)


def cliques(nvml: Nvml, gpus: Sequence[tuple[str, Any]]) -> Iterator[Fact]:
    """Number of NVLink cliques of the node's GPUs that have joined a fabric.

    No value for a single clique if another GPU may still join a different one.
    """
    members: dict[tuple[bytes, int], list[str]] = collections.defaultdict(list)
    unknown = []
    for device, handle in gpus:
        answer, _ = fabric_info(nvml, handle)
        place = answer.map(
            lambda info: (bytes(info.clusterUuid), int(info.cliqueId)) if info.state == COMPLETED else None
        )
        if place.value is not None:
            members[place.value].append(device)
        elif answer.value is None or answer.value.state in (1, 2):
            unknown.append(f"{device}: {answer.note or 'it has not joined the fabric'}")
    if len(members) > 1:
        note = "; ".join(", ".join(devices) for _, devices in sorted(members.items()))
        yield Fact("fabric_cliques", "node", "count", float(len(members)), note=note)
    elif unknown or not members:
        note = "; ".join(unknown[:_NAMED]) if members else NOT_SUPPORTED
        yield Fact("fabric_cliques", "node", "count", note=note)
    else:
        yield Fact("fabric_cliques", "node", "count", 1.0)


def fabric_info(nvml: Nvml, handle: Any) -> tuple[Answer, str]:
    """The newest structure that the driver accepts, and why it is not the newest if that is not the driver's age.

    Before 580 none accepts version 3, old ones version 1 alone.
    """
    answer, refused = Answer(note=NOT_SUPPORTED), ""
    for function, name in _FABRIC_VERSIONS:
        info = nvml.constant(name)()
        answer = nvml.query(function, handle, ctypes.byref(info)).map(lambda _, info=info: info)  # type: ignore[misc]
        if answer.code == _INVALID_ARGUMENT:
            refused = answer.note
        elif answer.code not in _OLDER_DRIVER:
            break
    return answer, refused


def _fabric_health(info: Any) -> float | None:
    """1 for healthy, 0 for unhealthy or of limited capacity, None if not supported; from the summary or its parts.

    Raises ValueError for what nvml.h does not define: a state that a later driver adds is not the absence of one.
    """
    summary = getattr(info, "healthSummary", None)
    if summary is not None:
        if summary not in _FABRIC_HEALTH:
            raise ValueError(f"health {summary} is not defined")
        return _FABRIC_HEALTH[summary]
    mask = whole(getattr(info, "healthMask", 0))
    flags = [(mask >> shift) & 0x3 for shift in _ILL_IF_TRUE]
    configuration = (mask >> _CONFIGURATION) & 0xF
    if 3 in flags:
        raise ValueError(f"health mask {mask:#x} is not defined")
    if not (any(flags) or configuration):
        return None
    return float(1 not in flags and configuration <= _CONFIGURATION_RIGHT)
