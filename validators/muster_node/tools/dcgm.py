"""Output of ``dcgmi diag -j``, DCGM 2 to 4.

A test's own "Fail" stands, whatever severity or category its error has: DCGM calls a refused CUDA context and lost PCIe
lanes things to monitor. Only errors named here by number (``dcgm_errors.h``, DCGM 3.1 and later) or text blame no
hardware.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

from muster_node.tools.output import BadOutput

_PASS, _WARN, _FAIL = ("pass",), ("warn", "warning"), ("fail", "failed")
_SKIP = ("skip", "skipped", "not run", "notrun")
_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_NO_STATUS = "no status"
NO_ENGINE = "no host engine"
"""The code of BadOutput where DCGM's service does not run."""
_NOT_RUN = "Not run"
_SUMMARY = "test_summary"
_SOFTWARE = "Deployment"
"""The category of DCGM's tests of drivers, libraries and settings."""
_TEXT_MAX = 200
_NO_FAULT = {
    18: "no access to a file",
    21: "a bad parameter",
    22: "a library that cannot be opened",
    23: "a driver on the deny list",
    25: "graphics processes on the GPU",
    26: "no connection to the host engine",
    28: "variables of CUDA in the environment",
    29: "persistence mode",
    47: "a test that was aborted",
    48: "a test that is disabled",
    60: "ECC that is not supported",
    89: "the permissions of the field diagnostics",
    90: "field diagnostics that need root",
    91: "field diagnostics that cannot be started",
    96: "a file that cannot be created",
    101: "an XID, of which device_events says by code and text whether it blames hardware",
}
"""Errors about settings and software, by number: DCGM_FR_NO_ACCESS_TO_FILE, …"""

_NO_ENGINE = re.compile(r"unable to (establish a connection|connect to host engine)", re.IGNORECASE)
"""dcgmi before it has begun (dcgmi/Command.cpp), as text or as the report's runtime_error: the service does not run."""
_THERMAL = (40, 41)
_NO_TIME = re.compile(r"violations totaling 0(\.0+)? seconds", re.IGNORECASE)
"""DCGM_FR_THERMAL_VIOLATIONS(_TS) of no time at all is none."""

_SETTING = re.compile(r"persistence mode|memory copy utilization", re.IGNORECASE)
"""Errors about settings in versions that print no number, and a GPU that DCGM 4.5 finds busy with its own test before
(github.com/NVIDIA/DCGM/issues/272), whose number no header has yet."""
_GPU = re.compile(r"\bGPU (\d+)\b")


@dataclasses.dataclass(frozen=True)
class Error:
    """One error that a test names; ``fault``: whether it blames hardware."""

    text: str
    fault: bool = True


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one test reports for one device: ``gpu`` is DCGM's number, None for the node as a whole.

    ``hardware``: whether it tests the GPU, not what is installed for it.
    """

    test: str
    gpu: int | None
    status: str
    errors: tuple[Error, ...] = ()
    hardware: bool = True

    @property
    def passed(self) -> bool:
        """Whether the status is a pass."""
        return self.status.lower() in _PASS

    @property
    def skipped(self) -> bool:
        """Whether the test did not run."""
        return self.status.lower() in _SKIP

    @property
    def failed(self) -> bool:
        """Whether it is a fault: no pass, no warning, and not only errors that blame no hardware.

        A status that is unknown or missing fails.
        """
        if self.passed or self.skipped or self.status.lower() in _WARN:
            return False
        return not self.errors or any(error.fault for error in self.errors)

    @property
    def warned(self) -> bool:
        """Whether it ran and is neither a plain pass nor a fault."""
        return not self.skipped and not self.failed and (bool(self.errors) or not self.passed)


@dataclasses.dataclass(frozen=True)
class Report:
    """Outcomes of all tests, and the serial numbers of DCGM's GPUs by its own numbers, as far as it prints them."""

    outcomes: list[Outcome]
    serials: dict[int, str]


def parse_dcgm_diag(text: str) -> Report:
    """Raises BadOutput for text that is no report, or a report in which no test ran; ``NO_ENGINE`` if none could."""
    try:
        raw, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
    except (ValueError, RecursionError):
        raise _bad(text, "not JSON", "printed no JSON") from None
    report = next((raw[root] for root in _ROOTS if isinstance(raw, dict) and isinstance(raw.get(root), dict)), None)
    if report is None:
        raise BadOutput("no report", "printed no report of DCGM's diagnostics")
    trouble = next((at[key] for at in (report, raw) for key in ("runtime_error", "error") if at.get(key)), None)
    if trouble:
        raise _bad(str(trouble), "failed", f"could not run the tests: {str(trouble)[:_TEXT_MAX]}")
    outcomes = list(_outcomes(report))
    if all(outcome.skipped for outcome in outcomes):
        raise BadOutput("no results", "printed a report without a test that ran")
    return Report(outcomes, {**_serials(raw), **_serials(report)})


def _bad(said: str, code: str, sentence: str) -> BadOutput:
    """The error for what was said in place of results."""
    return BadOutput(NO_ENGINE, "found no host engine") if _NO_ENGINE.search(said) else BadOutput(code, sentence)


def _serials(holder: dict[str, Any]) -> dict[int, str]:
    """DCGM 4 lists entities next to its report, DCGM 3 has a table of serial numbers in it."""
    table = holder.get("GPU Device Serials")
    found = dict(table) if isinstance(table, dict) else {}
    for group in _dicts(holder.get("entity_groups")):
        if group.get("entity_group") == "GPU":
            found.update({each.get("entity_id"): each.get("serial_num") for each in _dicts(group.get("entities"))})
    return {int(number): str(serial) for number, serial in found.items() if str(number).isdecimal() and serial}


def _outcomes(report: dict[str, Any]) -> Iterator[Outcome]:
    for category in _dicts(report.get("test_categories")):
        hardware = category.get("category") != _SOFTWARE
        for test in _dicts(category.get("tests")):
            yield from (dataclasses.replace(outcome, hardware=hardware) for outcome in _of_test(test))


def _of_test(test: dict[str, Any]) -> Iterator[Outcome]:
    name = str(test.get("name", "unnamed"))
    devices = [outcome for result in _dicts(test.get("results")) for outcome in _by_gpu(name, result, _gpus(result))]
    yield from devices
    if _SUMMARY in test:
        yield from _beyond(devices, name, test[_SUMMARY])
    elif not devices:  # DCGM 4 leaves out each result of a test that did not run, and its summary
        yield Outcome(name, None, _NOT_RUN)


def _by_gpu(name: str, result: dict[str, Any], gpus: list[int | None]) -> Iterator[Outcome]:
    """One outcome for each GPU of a result. A failure of several GPUs whose errors name some fails only those.

    Errors that name none of them are the node's then: they may be of any.
    """
    status, errors = _status(result), _errors(result)
    named = {number for error in errors for number in _named(error)}
    shared = len(gpus) > 1 and bool(named & set(gpus)) and status.lower() in _FAIL
    for gpu in gpus:
        own = tuple(error for error in errors if not shared or gpu in _named(error))
        yield Outcome(name, gpu, "Pass" if shared and not own else status, own)
    nobodys = tuple(error for error in errors if shared and not _named(error) & set(gpus))
    if nobodys:
        yield Outcome(name, None, status, nobodys)


def _named(error: Error) -> set[int | None]:
    return {int(number) for number in _GPU.findall(error.text)}


def _beyond(devices: list[Outcome], name: str, summary: Any) -> Iterator[Outcome]:
    """The node's outcome of a test, from DCGM 4's summary, if it adds anything to the devices' outcomes.

    Some versions repeat the devices' errors there. A summary that is no table has no status, which is no pass.
    """
    result = summary if isinstance(summary, dict) else {}
    known = {error.text for outcome in devices for error in outcome.errors}
    errors = tuple(error for error in _errors(result) if error.text not in known)
    whole = Outcome(name, None, _status(result), errors)
    if errors or whole.status.lower() not in {outcome.status.lower() for outcome in devices}:
        yield whole


def _status(result: dict[str, Any]) -> str:
    return str(result.get("status", _NO_STATUS))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _gpus(result: dict[str, Any]) -> list[int | None]:
    """DCGM 4 names one entity, DCGM 3 a list of numbers as text; without either the result is the node's."""
    if result.get("entity_group") == "GPU" and isinstance(result.get("entity_id"), int):
        return [result["entity_id"]]
    words = str(result.get("gpu_ids", result.get("gpu_id", ""))).split(",")
    numbers: list[int | None] = [int(word) for word in words if word.strip().isdigit()]
    return numbers or [None]


def _errors(result: dict[str, Any]) -> tuple[Error, ...]:
    """What DCGM calls warnings: texts, or (since 3.1) tables with the error's number, severity and category."""
    warnings = result.get("warnings") or ()
    listed = warnings if isinstance(warnings, (list, tuple)) else [warnings]
    errors = []
    for each in listed:
        entry = each if isinstance(each, dict) else {"warning": each}
        text = " ".join(str(entry.get("warning", entry)).split())[:_TEXT_MAX]
        if text:
            errors.append(Error(text, not _blames_no_hardware(entry.get("error_id"), text)))
    return tuple(errors)


def _blames_no_hardware(number: Any, text: str) -> bool:
    if number in _THERMAL:
        return _NO_TIME.search(text) is not None
    return number in tuple(_NO_FAULT) or _SETTING.search(text) is not None
