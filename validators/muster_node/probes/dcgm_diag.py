"""NVIDIA's own diagnostics (``dcgmi diag``), where they are installed.

A test that passes and names an error is counted as a warning; so is one that fails for a setting only.
"""

from __future__ import annotations

from muster_node.hardware.events import by_pci
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.tools.dcgm import NO_ENGINE, Outcome, Report, parse_dcgm_diag
from muster_node.tools.output import BadOutput
from muster_node.tools.run import COOL_PARAMS, cool_down, real_only, result_of

_NOTE_MAX = 200
SOFTWARE_ONLY = 1
"""The level at which DCGM tests what is installed, and no hardware."""


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
    }
    needs = ("gpu", "tool:dcgmi")

    def run(self, context: Context) -> None:
        """Run it. Raises Skip on simulated hardware, without DCGM's service, and where DCGM tested nothing but software
        although it should; RuntimeError without a report, or where it tested nothing of a GPU that answers.
        """
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
        names = _names(context, report)
        _emit(context, report.outcomes, names, note)
        ran = [each for each in report.outcomes if not each.skipped and (each.hardware or level == SOFTWARE_ONLY)]
        if not ran:
            raise Skip("DCGM skipped all of its tests of the hardware")
        if untested := _untested(context, ran, names):
            raise RuntimeError(f"dcgmi diag tested nothing of {untested}")


def _has_bad(report: Report) -> bool:
    return any(outcome.failed or outcome.warned for outcome in report.outcomes)


def _names(context: Context, report: Report) -> dict[int, str]:
    """Device by DCGM's number, as far as that is certain: by serial number, else by the order of PCI addresses.

    GPUs of one board share its serial number. DCGM numbers the GPUs that it found when its host engine started: if it
    names more or fewer than answer now, the order says nothing.
    """
    facts = list(context.hardware.inventory())
    by_serial = {fact.text: fact.device for fact in facts if fact.name == "gpu_serial" and fact.text}
    if by_serial and report.serials and len(set(report.serials.values())) == len(report.serials):
        return {number: by_serial[each] for number, each in report.serials.items() if each in by_serial}
    in_order = [device for _, device in sorted(by_pci(facts).items())]
    numbers = {*report.serials, *(outcome.gpu for outcome in report.outcomes if outcome.gpu is not None)}
    all_placed = len(in_order) == len(context.hardware.devices("gpu"))
    return dict(enumerate(in_order)) if all_placed and numbers == set(range(len(in_order))) else {}


def _untested(context: Context, ran: list[Outcome], names: dict[int, str]) -> str:
    """The GPUs that answer and of which no test ran, or how many; "" for none, and where DCGM names no GPU.

    A GPU without a usable serial number may have no name among ``names``: it counts as tested where as many of DCGM's
    numbers were that no name is known for.
    """
    gpus = [device.id for device in context.hardware.devices("gpu")]
    tested = {outcome.gpu for outcome in ran if outcome.gpu is not None}
    if not (names and tested):
        return f"{len(gpus) - len(tested)} of {len(gpus)} GPUs" if 0 < len(tested) < len(gpus) else ""
    placed = {names.get(number) for number in tested}
    missing = [gpu for gpu in gpus if gpu not in placed]
    numbered = {fact.device for fact in context.hardware.inventory() if fact.name == "gpu_serial" and fact.text}
    unnumbered = {gpu for gpu in missing if gpu not in numbered}
    excused = unnumbered if len(unnumbered) <= len(tested - names.keys()) else set[str]()
    return ", ".join(gpu for gpu in missing if gpu not in excused)


def _emit(context: Context, outcomes: list[Outcome], names: dict[int, str], note: str) -> None:
    by_place: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        device = "node" if outcome.gpu is None else names.get(outcome.gpu, "node")
        by_place.setdefault((device, outcome.test), []).append(outcome)
    for (device, test), reported in by_place.items():
        ran = [outcome for outcome in reported if not outcome.skipped]
        if not ran:
            context.emit("dcgm_failures", device, labels={"test": test}, samples=0, note="DCGM skipped it")
            continue
        failures = sum(outcome.failed for outcome in ran)
        warnings = sum(len(outcome.errors) or 1 for outcome in ran if outcome.warned)
        unplaced = sorted(
            {each.gpu for each in ran if each.gpu is not None and not (each.passed or names.get(each.gpu))}
        )
        of = [f"of DCGM's GPU {number}, which is in no known slot" for number in unplaced]
        texts = "; ".join((*of, *(error.text for outcome in ran for error in outcome.errors)))
        labels, notes = {"test": test}, "; ".join(filter(None, (texts[:_NOTE_MAX], note)))
        context.emit("dcgm_failures", device, value=failures, labels=labels, note=notes)
        context.emit("dcgm_warnings", device, value=warnings, labels=labels, note=notes)
