"""A node's result as the controller accepts it: pydantic models of what the node's own classes write.

Nothing from a node is trusted. The size is limited before parsing; counts, lengths and device numbers are limited while
parsing. Names are restricted, numbers are finite, and free text loses control, bidirectional and invisible characters.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from pydantic_core import from_json

from muster_criteria.text import clean_text
from muster_criteria.written import problem_of

NOT_SUPPORTED = "not supported"
"""The note of what a device or its driver does not have; as ``muster_node.hardware.seam`` writes it."""
THROTTLED = frozenset({"hw_slowdown", "hw_thermal", "sw_thermal", "hw_power_brake", "board_limit", "thermal"})
"""Reasons of throttling that are the machine's; a software power cap and a limit for reliability are the load's."""
RESULT_BYTES_MAX = 5 * 1024 * 1024
PARTS_MAX = 500
"""Serials of one machine: four times what the largest of today has."""


class BadResult(Exception):
    """The node's result cannot be used; the message is one sentence."""


Text = Annotated[str, BeforeValidator(clean_text)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,79}$")]
DEVICE_NAME = re.compile(r"[a-z]{1,15}[0-9]{0,4}(:[A-Za-z0-9_.:@+/-]{1,64})?")
"""A device as a node names it: "gpu3", "nic:ib0/2"."""
DeviceName = Annotated[str, Field(pattern=f"^{DEVICE_NAME.pattern}$")]
Unit = Annotated[str, Field(pattern=r"^[A-Za-z0-9%°/·²³ .-]{1,16}$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:@+/% -]{0,64}$")]
Labels = Annotated[dict[Name, Label], Field(max_length=8)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Figure = Annotated[FiniteFloat, Field(ge=-1e18, le=1e18)]
"""A finite number small enough that sums and ratios of it do not overflow."""
Seconds = Annotated[FiniteFloat, Field(ge=0, le=1e11)]
Fact = Text | bool | Count | Figure | None


class _Sent(BaseModel):
    """Base of all: frozen and strict, and unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Measured(_Sent):
    """One measurement: ``value`` in ``unit``, or ``text``, or neither with the reason in ``note``."""

    probe: Name
    metric: Name
    device: DeviceName
    unit: Unit
    value: Figure | None = None
    text: Text | None = None
    labels: Labels = Field(default_factory=dict)
    samples: Count = 1
    spread: Annotated[Figure, Field(ge=0)] | None = None
    note: Text = ""

    @model_validator(mode="after")
    def _number_or_text(self) -> Measured:
        if self.value is not None and self.text is not None:
            raise ValueError("both a value and a text")
        return self


class ProbeEnd(_Sent):
    """The end of one probe, with the reason if it did not complete."""

    probe: Name
    status: Literal["completed", "skipped", "crashed", "timed_out"]
    reason: Text
    started_at: Seconds
    duration_s: Seconds


class SideFile(_Sent):
    """The telemetry side file, by name (no path), hash and size."""

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    rows: Count
    bytes: Count


class Guard(_Sent):
    """The in-use guard's evidence."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    busy: bool = False
    evidence: Annotated[list[Text], Field(max_length=100)] = Field(default_factory=list)


class StageResult(_Sent):
    """One job's result as the controller may use it; the fields are those of ``muster_node.contract.Result``."""

    schema_: Annotated[Literal["muster.result/1"], Field(alias="schema")]
    job_id: Text
    node: Text
    stage: Name
    level: Name
    fence: Count
    agent_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{0,64}$")]
    simulated: bool
    started_at: Seconds
    ended_at: Seconds
    end: Literal["completed", "busy", "fenced", "terminated", "deadline", "error"]
    partial: bool
    identity: Annotated[
        dict[Name, Fact | Annotated[dict[Text, Text | None], Field(max_length=PARTS_MAX)]], Field(max_length=20)
    ]
    environment: Annotated[dict[Name, Text | None], Field(max_length=200)]
    guard: Guard
    probes: Annotated[list[ProbeEnd], Field(max_length=200)]
    measurements: Annotated[list[Measured], Field(max_length=60_000)]
    telemetry_file: SideFile | None = None
    notes: Annotated[list[Text], Field(max_length=1000)] = Field(default_factory=list)
    repeat: bool = False


def parse_result(raw: bytes) -> StageResult:
    """Check and parse the bytes of a ``result.json``. Raises BadResult, with one sentence, on anything else."""
    if len(raw) > RESULT_BYTES_MAX:
        raise BadResult(
            f"the result is {len(raw)} bytes, more than the {RESULT_BYTES_MAX} that are accepted: none of it was read."
        )
    try:
        # In two steps: refusing five hostile megabytes takes model_validate_json seconds, this tenths of one.
        return StageResult.model_validate(from_json(raw))
    except ValidationError as error:
        raise BadResult(f"the result cannot be used: {_sentence(error)}") from None
    except ValueError as error:
        raise BadResult(f"the result is not JSON: {clean_text(str(error))}.") from None


def _sentence(error: ValidationError) -> str:
    keys, message, more = problem_of(error)
    return str(clean_text(f"{'.'.join(keys[:6]) or 'the JSON'}: {message}{more}."))
