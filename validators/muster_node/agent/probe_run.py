"""One probe, from the agent's side: starts its process, validates what it sends, and reports how it ended."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any, Callable

import muster_node
from muster_node import contract
from muster_node.agent import facts, orphans, process
from muster_node.agent.jobdir import JobDir, Progress, safe_name
from muster_node.agent.process import BadLine, CappedLog, ChildEnd
from muster_node.contract import Measurement, Plan, ProbeOutcome
from muster_node.probe import Probe

MEASUREMENTS_MAX = 50_000

SENT_BYTES_MAX = 16 * 1024 * 1024
"""What one probe may send in all; a result holds 5 MB."""

NOT_INHERITED = (
    "NVIDIA_TF32_OVERRIDE", "CUDA_VISIBLE_DEVICES", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY",
)  # fmt: skip
"""The first decides for cuBLAS, in the probe's place, whether fp32 products use TF32. The second hides GPUs from CUDA
alone, or changes their order, by which PyTorch before 2.5 tells them apart. By the others OpenMP binds the thread that
imports PyTorch to one CPU, and with it all threads that later drive GPUs."""

TEXT_MAX = 500
REASON_MAX = 500
TMPDIR_MAX = 70

QUIET_S = 60.0
"""After so long without a message a progress line reports that the probe still runs."""


@dataclasses.dataclass(frozen=True)
class RunContext:
    """What running a probe takes: the job, how this program starts itself again, its progress, when to stop."""

    plan: Plan
    plan_file: pathlib.Path
    job: JobDir
    relaunch: Sequence[str]
    marker: str
    progress: Progress
    stop: Callable[[], str | None]
    spare: set[int]


_Key = tuple[str, str, "tuple[tuple[str, str], ...]"]


def _key(measurement: Measurement) -> _Key:
    return measurement.metric, measurement.device, tuple(sorted(measurement.labels.items()))


class Listener:
    """Validates every line that a probe sends. Raises BadLine, which ends the probe."""

    def __init__(self, probe: type[Probe], report: Callable[[str], None]) -> None:
        self._probe = probe
        self._report = report
        self._sent = 0
        self._measured: list[Measurement] = []
        self._so_far: dict[_Key, Measurement] = {}
        self.end: tuple[str, str] | None = None
        self.message_at = time.monotonic()

    def take(self, line: bytes) -> None:
        """One line."""
        self.message_at = time.monotonic()
        self._sent += len(line)
        if self._sent > SENT_BYTES_MAX:
            raise BadLine(f"it sent more than {SENT_BYTES_MAX} bytes")
        try:
            raw = json.loads(line.decode("utf-8"))
        except (ValueError, RecursionError):
            raise BadLine(f"it sent a line that is not JSON: {line[:40]!r}") from None
        kind = raw.get("kind") if isinstance(raw, dict) else None
        if kind in ("measurement", "so_far"):
            if len(self._measured) + len(self._so_far) >= MEASUREMENTS_MAX:
                raise BadLine(f"it sent more than {MEASUREMENTS_MAX} measurements")
            measurement = self._measurement(raw)
            if kind == "so_far":
                self._so_far[_key(measurement)] = measurement
            else:
                self._measured.append(measurement)
        elif kind == "progress":
            self._report(str(raw.get("text", "")))
        elif kind == "end" and raw.get("status") in (contract.COMPLETED, contract.SKIPPED, contract.CRASHED):
            self.end = (raw["status"], str(raw.get("reason", ""))[:REASON_MAX])
        else:
            raise BadLine(f"it sent a line of unknown kind: {line[:40]!r}")

    @property
    def measurements(self) -> list[Measurement]:
        """What the probe reported; what it had found so far stands where no value or text replaced it."""
        left, found = dict(self._so_far), []
        for each in self._measured:
            before = left.pop(_key(each), None)
            if before is not None and each.value is None and each.text is None:
                note = "; ".join(filter(None, (before.note, each.note)))[:REASON_MAX]
                each = dataclasses.replace(before, note=note)
            found.append(each)
        return found + list(left.values())

    def _measurement(self, raw: dict[str, Any]) -> Measurement:
        name = raw.get("metric")
        declared = self._probe.metrics.get(name) if isinstance(name, str) else None
        if declared is None:
            raise BadLine(f"it reported the undeclared metric {name!r}")
        device = raw.get("device")
        if not isinstance(device, str) or not contract.DEVICE.fullmatch(device):
            raise BadLine(f"metric {name} came with an unusable device: {device!r}")
        value, text = _number(name, raw.get("value")), raw.get("text")
        if value is not None and text is not None:
            raise BadLine(f"metric {name} came with both a value and a text")
        samples = raw.get("samples", 1)
        if isinstance(samples, bool) or not isinstance(samples, int) or not 0 <= samples <= 2**53:
            raise BadLine(f"metric {name} came with {samples!r} samples")
        spread = _number(name, raw.get("spread"))
        return Measurement(
            probe=self._probe.name,
            metric=str(name),
            device=device,
            unit=declared.unit_on(device),
            value=value,
            text=None if text is None else str(text)[:TEXT_MAX],
            labels=_labels(name, raw.get("labels") or {}),
            samples=samples,
            spread=None if spread is None else abs(spread),
            note=str(raw.get("note", ""))[:REASON_MAX],
        )


def _number(name: Any, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= contract.NUMBER_MAX:
        raise BadLine(f"metric {name} came with {value!r} for a number")
    return float(value)


def _labels(name: Any, labels: Any) -> dict[str, str]:
    if not isinstance(labels, dict) or len(labels) > contract.LABELS_MAX:
        raise BadLine(f"metric {name} came with unusable labels")
    for key, label in labels.items():
        if not contract.NAME.fullmatch(key) or not isinstance(label, str) or not contract.LABEL.fullmatch(label):
            raise BadLine(f"metric {name} came with an unusable label: { {key: label}!r}")
    return labels


def run_probe(
    context: RunContext, index: int, probe: type[Probe], budget_s: float
) -> tuple[ProbeOutcome, list[Measurement], list[str]]:
    """Runs call ``index`` of the plan for ``budget_s`` at most. Returns its outcome, measurements and notes.

    Never raises because of the probe.
    """
    started_at, started = time.time(), time.monotonic()
    listener = Listener(probe, lambda text: context.progress.write(probe.name, text))
    timeout_s = context.plan.probes[index].timeout_s
    log = CappedLog(context.job.logs / f"{index:02d}_{safe_name(probe.name)}.log")
    notes: list[str] = []
    try:
        scratch = context.job.scratch_for(index, probe.name)
    except OSError as error:
        reason = f"no scratch directory could be made: {error}"
        return _outcome(probe, contract.SKIPPED, reason, started_at, started), [], []
    ooms = facts.oom_kills()
    try:
        end = process.run_child(
            lambda fd: _command(context, index, probe, scratch, fd),
            env=_environment(context, scratch),
            cwd=scratch,
            timeout_s=min(timeout_s, max(budget_s, 0.0)),
            stop=context.stop,
            take=listener.take,
            log=log,
            tick=lambda: _tell_if_quiet(listener, context, probe, started, timeout_s),
        )
        status, reason = _judge(end, listener, log, timeout_s, facts.oom_kills() > ooms)
        if end.returncode is None:
            context.spare.add(end.pid)
    except OSError as error:
        status, reason = contract.CRASHED, f"its process could not be started: {error}"
    left = orphans.end_descendants(context.spare, 0.2 if context.stop() else 0.5)
    asking = orphans.asking(context.spare)
    context.spare.update(asking)
    ended = [name for name in left if not (asking and name in orphans.ASKING)]
    if ended:
        notes.append("probe {} left processes behind, which were ended: {}".format(probe.name, ", ".join(ended[:10])))
    if asking:
        notes.append(f"probe {probe.name} left a program behind that has a service of the node stop its work")
    context.job.drop_scratch(scratch)
    return _outcome(probe, status, reason, started_at, started), listener.measurements, notes


def _outcome(probe: type[Probe], status: str, reason: str, started_at: float, started: float) -> ProbeOutcome:
    return ProbeOutcome(probe.name, status, reason[:REASON_MAX], started_at, round(time.monotonic() - started, 3))


def _command(context: RunContext, index: int, probe: type[Probe], scratch: pathlib.Path, fd: int) -> list[str]:
    job = {
        "plan": str(context.plan_file),
        "index": index,
        "module": probe.__module__,
        "scratch": str(scratch),
        "fd": fd,
        "parent": os.getpid(),
    }
    return [*context.relaunch, "_probe", json.dumps(job)]


def _environment(context: RunContext, scratch: pathlib.Path) -> dict[str, str]:
    root = str(pathlib.Path(muster_node.__file__).parent.parent)
    path = os.environ.get("PYTHONPATH")
    environment = {
        **{name: value for name, value in os.environ.items() if name not in NOT_INHERITED},
        orphans.MARKER: context.marker,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONPATH": root + os.pathsep + path if path else root,
        # No control daemon of MPS answers there, so CUDA goes without one (nvidia-cuda-mps-control(1)): the server that
        # the daemon would start for the load is no process of this job.
        "CUDA_MPS_PIPE_DIRECTORY": str(scratch),
    }
    # Libraries put sockets into TMPDIR, whose whole path must fit 108 bytes; a deep job directory leaves no room.
    if len(str(scratch)) <= TMPDIR_MAX:
        environment["TMPDIR"] = str(scratch)
    return environment


def _tell_if_quiet(
    listener: Listener, context: RunContext, probe: type[Probe], started: float, timeout_s: float
) -> None:
    now = time.monotonic()
    if now - listener.message_at >= QUIET_S:
        listener.message_at = now
        context.progress.write(probe.name, f"still running, {now - started:.0f} s of at most {timeout_s:.0f} s")


def _judge(end: ChildEnd, listener: Listener, log: CappedLog, timeout_s: float, oom: bool) -> tuple[str, str]:
    """Status and one-sentence reason of a probe whose process has ended."""
    if end.returncode is None:
        return contract.TIMED_OUT, process.describe(
            [
                f"unkillable: process {end.pid} is still there (state {process.state_of(end.pid) or 'unknown'}) "
                "after SIGKILL and was left behind",
                _why_cut(end, timeout_s),
            ]
        )
    if end.cut == process.REFUSED:
        return contract.CRASHED, end.detail
    if end.cut.startswith(contract.PREEMPTED):
        return contract.SKIPPED, _why_cut(end, timeout_s)
    if end.cut:
        return contract.TIMED_OUT, _why_cut(end, timeout_s)
    if listener.end is not None:
        status, reason = listener.end
        if status != contract.CRASHED:
            return status, reason
        killed = "the kernel killed a process for want of memory meanwhile" if oom else ""
        return status, _with_log(process.describe([reason, killed]), log)
    if end.returncode < 0:
        return contract.CRASHED, _with_log(_killed(-end.returncode, oom), log)
    last = log.last_line()
    output = f", its last output was: {last}" if last else ""
    if end.returncode == 0:
        return contract.CRASHED, f"it ended without a result{output}"
    return contract.CRASHED, _with_log(f"it exited with status {end.returncode}{output}", log)


def _why_cut(end: ChildEnd, timeout_s: float) -> str:
    if end.cut == process.TIMEOUT:
        return f"it did not end within {timeout_s:g} s"
    if end.cut == process.REFUSED:
        return end.detail
    return f"it was cut short: {end.cut}" if end.cut else ""


def _killed(number: int, oom: bool) -> str:
    name = process.signal_name(number)
    if name == "SIGKILL" and oom:
        return "it was killed by the kernel for want of memory (SIGKILL, and the kernel's oom_kill count rose)"
    if name == "SIGKILL":
        return "it was killed by SIGKILL from outside; the kernel counted no out-of-memory kill"
    return f"it was killed by {name}"


def _with_log(reason: str, log: CappedLog) -> str:
    return f"{reason}; its output is in logs/{log.path.name}" if log.size else reason
