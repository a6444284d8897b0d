"""NVIDIA's own diagnostics (``dcgmi diag``), where they are installed.

A test that passes and names an error is counted as a warning; so is one that fails for a setting only.
"""

from __future__ import annotations

import collections

from muster_node.hardware.events import by_pci
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.tools.dcgm import NO_ENGINE, Outcome, Report, parse_dcgm_diag
from muster_node.tools.output import BadOutput
from muster_node.tools.run import COOL_PARAMS, cool_down, real_only, result_of

_NOTE_MAX = 200


class DcgmDiag(Probe):
    """``dcgmi diag`` at one of its levels."""

    name = "dcgm_diag"
    stage = "performance"
    doc = "NVIDIA DCGM diagnostics: result of every test on every GPU"
    params = {
        "level": Param(1, "DCGM's run level: 1 (seconds), 2 (minutes), 3 (a quarter of an hour), 4 (hours)"),
        "limit_s": Param(900.0, "seconds for the whole run"),
        **COOL_PARAMS,
    }
    metrics = {
        "dcgm_failures": Metric("count", "1 where a test failed, by test"),
        "dcgm_warnings": Metric("count", "errors that fail nothing, with a pass, a warning or a setting, by test"),
        "dcgm_tests": Metric("count", "tests that ran, on all devices together"),
        "dcgm_skipped": Metric("count", "tests that DCGM skipped, on all devices together"),
    }
    needs = ("gpu", "tool:dcgmi")

    def run(self, context: Context) -> None:
        """Run it. Raises Skip on simulated hardware and without DCGM's service, RuntimeError without a report."""
        real_only(context)
        note = cool_down(context)
        level = int(context.params["level"])
        context.progress(f"dcgmi diag -r {level}")
        limit_s = context.params["limit_s"]
        command = ["dcgmi", "diag", "-r", str(level), "-j"]
        try:
            report = result_of(context, command, limit_s, parse_dcgm_diag, _has_bad, stderr=True)
        except BadOutput as error:
            if error.code == NO_ENGINE:
                raise Skip("DCGM's host engine does not run: systemctl enable --now nvidia-dcgm") from error
            raise RuntimeError(f"dcgmi diag {error}") from error
        _emit(context, report.outcomes, _names(context, report), note)


def _has_bad(report: Report) -> bool:
    return any(outcome.failed or outcome.warned for outcome in report.outcomes)


def _names(context: Context, report: Report) -> dict[int, str]:
    """Device by DCGM's number, as far as that is certain: by serial number, else by the order of PCI addresses.

    DCGM numbers the GPUs that it found when its host engine started. If it names more than answer now, one of them is
    gone since, and the order says nothing.
    """
    facts = list(context.hardware.inventory())
    serials = collections.Counter(fact.text for fact in facts if fact.name == "gpu_serial" and fact.text)
    by_serial = {f.text: f.device for f in facts if f.name == "gpu_serial" and f.text and serials[f.text] == 1}
    if report.serials and by_serial:
        return {number: by_serial[each] for number, each in report.serials.items() if each in by_serial}
    in_order = [device for _, device in sorted(by_pci(facts).items())]
    beyond = max((outcome.gpu for outcome in report.outcomes if outcome.gpu is not None), default=0) >= len(in_order)
    all_placed = len(in_order) == len(context.hardware.devices("gpu"))
    return dict(enumerate(in_order)) if all_placed and not beyond else {}


def _emit(context: Context, outcomes: list[Outcome], names: dict[int, str], note: str) -> None:
    by_place: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        device = "node" if outcome.gpu is None else names.get(outcome.gpu, "node")
        by_place.setdefault((device, outcome.test), []).append(outcome)
    for (device, test), reported in by_place.items():
        ran = [outcome for outcome in reported if not outcome.skipped]
        if not ran:
            continue
        failures = sum(outcome.failed for outcome in ran)
        warnings = sum(len(outcome.errors) or 1 for outcome in ran if outcome.warned)
        unplaced = sorted(
            {each.gpu for each in ran if each.gpu is not None and not (each.passed or names.get(each.gpu))}
        )
        of = [f"of DCGM's GPU {number}, which is in no known slot" for number in unplaced]
        texts = "; ".join((*of, *(error.text for outcome in ran for error in outcome.errors)))
        labels, notes = {"test": _label(test)}, "; ".join(filter(None, (texts[:_NOTE_MAX], note)))
        context.emit("dcgm_failures", device, value=failures, labels=labels, note=notes)
        context.emit("dcgm_warnings", device, value=warnings, labels=labels, note=notes)
    context.emit("dcgm_tests", "node", value=sum(not outcome.skipped for outcome in outcomes))
    context.emit("dcgm_skipped", "node", value=sum(outcome.skipped for outcome in outcomes))


def _label(test: str) -> str:
    """A test's name, with "_" for characters that a label may not have."""
    return "".join(letter if letter.isalnum() or letter in "_.:@+/% -" else "_" for letter in test)[:64]
