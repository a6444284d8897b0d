"""The probe's side of its own process: opens the hardware, runs one probe, streams what it measures to the agent.

Every measurement leaves at once, one JSON line each, so that what was measured before a crash is kept. Lines:
{"kind": "measurement" or "so_far", …}, {"kind": "progress", "text"}, and last {"kind": "end", "status", "reason"}.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import pathlib
import resource
import threading
import traceback
from collections.abc import Mapping
from typing import Any, Callable, NoReturn

from muster_node import contract, processes
from muster_node.agent import registry
from muster_node.hardware.seam import Hardware
from muster_node.probe import Context, Probe, Skip, resolve_params

OOM_SCORE = 500
"""Added to the probe's own OOM score (of ±1000), so that the kernel takes the probe before the agent."""


class Reporter:
    """Writes lines to the agent. Safe to use from several threads, and from the processes that a probe forks: the
    kernel does not mix short writes to a pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def emit(
        self,
        metric: str,
        device: str,
        *,
        value: float | None = None,
        text: str | None = None,
        labels: Mapping[str, Any] | None = None,
        samples: int = 1,
        spread: float | None = None,
        note: str = "",
        so_far: bool = False,
    ) -> None:
        """Context.emit. The agent ends a probe that reports what it may not (``probe_run.Listener``).

        Names that the kernel or a tool gives may have any character ("cciss!c0d0"): "_" replaces what a result may not
        have.
        """
        number = None if value is None else float(value)
        if number is not None and not math.isfinite(number):
            number, note = None, (f"not a finite number ({number}); {note}").rstrip("; ")
        if spread is not None and not math.isfinite(spread):
            spread = None
        self.send(
            "so_far" if so_far else "measurement",
            metric=metric,
            device=contract.as_device(device),
            value=number,
            text=None if text is None else str(text),
            labels={str(key): contract.as_label(str(label)) for key, label in (labels or {}).items()},
            samples=int(samples),
            spread=None if spread is None else float(spread),
            note=note,
        )

    def progress(self, text: str) -> None:
        """Context.progress."""
        self.send("progress", text=str(text))

    def send(self, kind: str, **fields: Any) -> None:
        """One line to the agent."""
        data = memoryview((json.dumps({"kind": kind, **fields}) + "\n").encode())
        with self._lock:
            while data:
                data = data[os.write(self._fd, data) :]


def main(job: dict[str, Any], open_hardware: Callable[[], Hardware]) -> NoReturn:
    """Runs one probe and ends the process; ``job`` is {"plan", "index", "module", "scratch", "fd", "parent"}."""
    processes.die_with_parent(job["parent"])
    # What the probe starts must not hold the line to the agent open, nor write on it.
    os.set_inheritable(job["fd"], False)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crashed probe's core file could be as large as its memory
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (most, most)
    )  # a worker on each CPU takes three, a login often has 1,024
    with contextlib.suppress(OSError):
        pathlib.Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    plan = contract.Plan.from_json(pathlib.Path(job["plan"]).read_text(encoding="utf-8"))
    call = plan.probes[job["index"]]
    probe = registry.probes_in(job["module"])[call.probe]
    reporter = Reporter(job["fd"])
    status, reason = _run(probe, call, reporter, pathlib.Path(job["scratch"]), open_hardware)
    reporter.send("end", status=status, reason=reason)
    # All messages are sent: libraries that hang or crash while the interpreter shuts down must not spoil it.
    processes.leave(0)


def _run(
    probe: type[Probe],
    call: contract.ProbeCall,
    reporter: Reporter,
    scratch: pathlib.Path,
    open_hardware: Callable[[], Hardware],
) -> tuple[str, str]:
    try:
        params = resolve_params(probe, call.params)
    except ValueError as error:
        return contract.SKIPPED, f"the plan cannot be used: {error}"
    try:
        hardware = open_hardware()
        if lacking := registry.lacking(probe, hardware):
            return contract.SKIPPED, lacking
        probe().run(Context(hardware, params, call.seed, scratch, reporter.emit, reporter.progress))
    except Skip as skip:
        return contract.SKIPPED, str(skip) or "the probe gave no reason"
    except BaseException as error:
        traceback.print_exc()
        return contract.CRASHED, _sentence(error)
    return contract.COMPLETED, ""


def _sentence(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        what = f"the probe called sys.exit({error.code})"
    else:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return " ".join(what.split())[:300] + where
