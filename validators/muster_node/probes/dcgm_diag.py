"""NVIDIA's own diagnostics, where they are installed. DCGM's word is measured here, and judged by our criteria.

A test that says PASS and names an error beside it is counted as such: that is not a pass. DCGM 4 tells beside the
results of the devices what came of a test as a whole, and errors that belong to no device: these are the node's.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, Iterator, List, Tuple

from muster_node.probe import Context, Metric, Param, Probe
from muster_node.tools.run import COOL_PARAMS, BadOutput, cool_down, gpus_by_pci, real_only, run_tool

PASS, SKIP = ("pass",), ("skip", "skipped", "not run", "notrun")
ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
NO_STATUS = "no status"
SUMMARY = "test_summary"
WORDS_MAX = 200


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one test said of one device: ``gpu`` is DCGM's number, None for the node as a whole."""

    test: str
    gpu: "int | None"
    status: str
    errors: Tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the test itself says so."""
        return self.status.lower() in PASS

    @property
    def skipped(self) -> bool:
        """Whether it did not run."""
        return self.status.lower() in SKIP


def parse_dcgm_diag(text: str) -> List[Outcome]:
    """Read ``dcgmi diag -j`` of DCGM 2 to 4. Raises BadOutput where it is no report, or tells that nothing ran."""
    try:
        raw = json.loads(text[text.index("{") : text.rindex("}") + 1])
    except (ValueError, RecursionError):
        raise BadOutput("it is not JSON") from None
    report = next((raw[root] for root in ROOTS if isinstance(raw, dict) and isinstance(raw.get(root), dict)), None)
    if report is None:
        raise BadOutput("it is no report of DCGM's diagnostics")
    trouble = report.get("runtime_error") or report.get("error")
    if trouble:
        raise BadOutput("DCGM could not run them: %s" % str(trouble)[:WORDS_MAX])
    outcomes = list(_outcomes(report))
    if not outcomes:
        raise BadOutput("it has no test in it")
    return outcomes


def _outcomes(report: Dict[str, Any]) -> Iterator[Outcome]:
    for category in _dicts(report.get("test_categories")):
        for test in _dicts(category.get("tests")):
            name = str(test.get("name", "unnamed"))
            told = [
                Outcome(name, gpu, _status(result), _errors(result))
                for result in _dicts(test.get("results"))
                for gpu in _gpus(result)
            ]
            yield from told
            if SUMMARY in test:
                yield from _beyond(told, name, test[SUMMARY])


def _beyond(told: List[Outcome], name: str, summary: Any) -> Iterator[Outcome]:
    """What DCGM 4 says of a test as a whole, for the node, where that is more than its results have told.

    From some version on it lists the errors of the devices a second time. A summary that is no table has no status,
    which is not a pass.
    """
    result = summary if isinstance(summary, dict) else {}
    known = {error for outcome in told for error in outcome.errors}
    errors = tuple(error for error in _errors(result) if error not in known)
    whole = Outcome(name, None, _status(result), errors)
    if errors or (whole.passed, whole.skipped) not in [(outcome.passed, outcome.skipped) for outcome in told]:
        yield whole


def _status(result: Dict[str, Any]) -> str:
    return str(result.get("status", NO_STATUS))


def _dicts(value: Any) -> List[Dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _gpus(result: Dict[str, Any]) -> List["int | None"]:
    """DCGM 4 names one entity, DCGM 3 a list of numbers as text; neither means the node."""
    if result.get("entity_group") == "GPU" and isinstance(result.get("entity_id"), int):
        return [result["entity_id"]]
    words = str(result.get("gpu_ids", result.get("gpu_id", ""))).split(",")
    numbers: List["int | None"] = [int(word) for word in words if word.strip().isdigit()]
    return numbers or [None]


def _errors(result: Dict[str, Any]) -> Tuple[str, ...]:
    """What DCGM calls warnings: texts, or (from 3.1 on) texts with an error's number."""
    warnings = result.get("warnings") or ()
    listed = warnings if isinstance(warnings, (list, tuple)) else [warnings]
    texts = [str(each.get("warning", each)) if isinstance(each, dict) else str(each) for each in listed]
    return tuple(" ".join(text.split())[:WORDS_MAX] for text in texts if text.strip())


class DcgmDiag(Probe):
    """``dcgmi diag`` at one of its levels."""

    name = "dcgm_diag"
    stage = "performance"
    doc = "NVIDIA DCGM diagnostics, every test's word on every GPU"
    params = {
        "level": Param(1, "DCGM's run level: 1 (seconds), 2 (minutes), 3 (a quarter of an hour), 4 (hours)"),
        "limit_s": Param(900.0, "seconds for the whole run"),
        **COOL_PARAMS,
    }
    metrics = {
        "dcgm_failures": Metric("count", "1 where a test failed, by test"),
        "dcgm_errors": Metric("count", "errors named beside a test that says it passed, by test"),
        "dcgm_tests": Metric("count", "tests that ran, on all devices together"),
        "dcgm_skipped": Metric("count", "tests that DCGM skipped, on all devices together"),
    }
    needs = ("gpu", "tool:dcgmi")

    def run(self, context: Context) -> None:
        """Run it. Raises Skip on simulated hardware, RuntimeError where DCGM gives no report."""
        real_only(context)
        note = cool_down(context)
        level = int(context.params["level"])
        context.progress("dcgmi diag -r %d" % level)
        done = run_tool(context, ["dcgmi", "diag", "-r", str(level), "-j"], context.params["limit_s"])
        if done.status is None:
            raise RuntimeError("dcgmi diag did not end within %g s" % context.params["limit_s"])
        try:
            outcomes = parse_dcgm_diag(done.out)
        except BadOutput as error:
            raise RuntimeError("dcgmi diag: %s; it said: %s" % (error, done.last_word())) from error
        _emit(context, outcomes, _names(context), note)


def _names(context: Context) -> Dict[int, str]:
    """DCGM numbers GPUs as NVML does, by PCI address; a GPU that is missing shifts the rest, so slots are looked up."""
    return dict(enumerate(device for _, device in sorted(gpus_by_pci(context.hardware).items())))


def _emit(context: Context, outcomes: List[Outcome], names: Dict[int, str], note: str) -> None:
    by_place: Dict[Tuple[str, str], List[Outcome]] = {}
    for outcome in outcomes:
        device = "node" if outcome.gpu is None else names.get(outcome.gpu, "gpu%d" % outcome.gpu)
        by_place.setdefault((device, outcome.test), []).append(outcome)
    for (device, test), said in by_place.items():
        ran = [outcome for outcome in said if not outcome.skipped]
        if not ran:
            continue
        failed = [outcome for outcome in ran if not outcome.passed]
        inside = [error for outcome in ran if outcome.passed for error in outcome.errors]
        words = "; ".join(error for outcome in ran for error in outcome.errors)
        labels = {"test": _label(test)}
        told = "; ".join(filter(None, (words[:WORDS_MAX], note)))
        context.emit("dcgm_failures", device, value=len(failed), labels=labels, note=told)
        context.emit("dcgm_errors", device, value=len(inside), labels=labels, note=told)
    context.emit("dcgm_tests", "node", value=sum(not outcome.skipped for outcome in outcomes))
    context.emit("dcgm_skipped", "node", value=sum(outcome.skipped for outcome in outcomes))


def _label(test: str) -> str:
    """A test's name as a label may be."""
    return "".join(letter if letter.isalnum() or letter in "_.:@+/% -" else "_" for letter in test)[:64]
