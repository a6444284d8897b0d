"""Stages of a simulated node without agent, SSH or controller: plan, probes, result and verdict in this process.

Each probe opens the machine for itself, as its process would, and speaks to the same listener; the result goes through
its JSON. So what is left out is processes and telemetry, not a judgement.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from muster_criteria.measured import StageResult, parse_result
from muster_criteria.model import Judgement
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.programme import stage_calls
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from muster_criteria.stages import STAGES
from muster_node import contract
from muster_node.agent import child, registry
from muster_node.agent.gpu_watch import PROBE as WATCH
from muster_node.agent.gpu_watch import GpuWatch
from muster_node.agent.probe_run import Listener
from muster_node.agent.result import encode
from muster_node.agent.telemetry import HOLD_SPACINGS, Recorder, Sampler
from muster_node.agent.xid_watch import XidWatch
from muster_node.contract import Measurement, ProbeCall, ProbeOutcome, Result
from muster_node.probe import Probe
from muster_simulator import open_simulated

MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def machine_room() -> Iterator[Path]:
    """A folder for machines, in memory where there is such a place: their state is written at every step of physics."""
    with tempfile.TemporaryDirectory(prefix="muster-machines-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


class _Line(child.Reporter):
    """The probe's line to the agent, without a pipe."""

    def __init__(self, probe: type[Probe]) -> None:
        super().__init__(-1)
        self.listener = Listener(probe, lambda sentence: None)

    def send(self, kind: str, **fields: Any) -> None:
        with self._lock:
            self.listener.take(json.dumps({"kind": kind, **fields}).encode())


def qualify(machine: Path, sku: Sku, level: str, seed: int, stages: Iterable[str] = STAGES) -> list[Judgement]:
    """Every stage of a qualification, judged without peers or history. A stage that fails does not end it here."""
    return [judge(Case(sku, stage, level, run_stage(machine, sku, stage, level, seed))) for stage in stages]


def run_stage(machine: Path, sku: Sku, stage: str, level: str, seed: int) -> StageResult:
    """The result of one stage on the machine in this directory, as the controller would parse it."""
    return parse_result(encode(measure(machine, sku, stage, level, seed)))


def measure(machine: Path, sku: Sku, stage: str, level: str, seed: int) -> Result:
    """The result of one stage on the machine in this directory, as the agent makes it."""
    hardware = open_simulated(machine)
    clock = hardware.clock
    began, probes = clock.wall(), registry.discover().probes
    # The agent's own watches and sensors, as in a job.
    recorder = Recorder(machine / "telemetry.jsonl.gz", HOLD_SPACINGS)
    sampler = Sampler(hardware, recorder, 1.0)
    sampler.start()
    xids = XidWatch(hardware)
    watch = GpuWatch(hardware, lambda: recorder.throttled(clock.wall()), peaks=recorder.peaks)
    if any(call.probe == WATCH for call in stage_calls(sku, stage, level, seed)):
        watch.start()
    outcomes: list[ProbeOutcome] = []
    measurements: list[Measurement] = []
    for call in stage_calls(sku, stage, level, seed):
        at = clock.wall()
        if call.probe == WATCH:
            status, reason, seen = watch.finish()
            outcomes.append(ProbeOutcome(call.probe, status, reason, at, clock.wall() - at))
            measurements += seen
            continue
        line = _run(machine, probes[call.probe], ProbeCall(call.probe, call.timeout_s, call.seed, call.params))
        status, reason = line.end or (contract.CRASHED, "it ended without a message")
        outcomes.append(ProbeOutcome(call.probe, status, reason, at, clock.wall() - at))
        measurements += line.measurements
    measurements += xids.stop({})
    sampler.stop(0.5)
    recorder.close()
    return Result(
        job_id=f"{machine.name}-{stage}",
        node=machine.name,
        stage=stage,
        level=level,
        fence=1,
        agent_sha256="",
        simulated=True,
        started_at=began,
        ended_at=clock.wall(),
        end=contract.END_COMPLETED,
        partial=False,
        identity={},
        environment={},
        guard={"busy": False, "evidence": []},
        probes=outcomes,
        measurements=measurements,
        telemetry_file=None,
        notes=[],
    )


def _run(machine: Path, probe: type[Probe], call: ProbeCall) -> Listener:
    line = _Line(probe)
    with tempfile.TemporaryDirectory(prefix="muster-probe-") as scratch:
        status, reason = child._run(probe, call, line, Path(scratch), lambda: open_simulated(machine))
    line.send("end", status=status, reason=reason)
    return line.listener
