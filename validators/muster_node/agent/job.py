"""One job from plan to result: takes the node, checks whether it is in use, runs the probes, writes the result.

Every job ends with a result.json whose ``end`` gives the way it ended.
"""

from __future__ import annotations

import collections
import errno
import pathlib
import sys
import time
import traceback
import uuid
from collections.abc import Sequence
from typing import Any, Callable

from muster_node import contract, processes
from muster_node.agent import facts, guard, jobdir, orphans, registry
from muster_node.agent.fence import Fence, Fenced, Occupied
from muster_node.agent.gpu_settings import HURRIED_S, LIMIT_S, SavedSettings
from muster_node.agent.gpu_watch import GpuWatch
from muster_node.agent.jobdir import JobDir, Progress
from muster_node.agent.probe_run import RunContext, run_probe
from muster_node.agent.result import encode
from muster_node.agent.stop import Stop
from muster_node.agent.telemetry import HOLD_SPACINGS, Recorder, Sampler
from muster_node.agent.xid_watch import LEAVE_S, XidWatch
from muster_node.bounded import Hung, bounded
from muster_node.contract import Measurement, Plan, ProbeOutcome, Result, TelemetryFile
from muster_node.hardware.events import by_pci
from muster_node.hardware.seam import Fact, Hardware

OPEN_LIMIT_S = 120.0
"""Opening the hardware: NVML takes tens of seconds on an 8-GPU node whose driver was not loaded."""

INVENTORY_LIMIT_S = 60.0
PROBES_MAX = 200
WATCHDOG_MARGIN_S = 60.0
"""An agent that has not ended so long after its own deadline hangs, and its watchdog ends it."""

OpenHardware = Callable[[], Hardware]


class Refused(Exception):
    """The job ends before its probes: ``end`` is one of the contract's END_ values, the message one sentence."""

    def __init__(self, end: str, sentence: str) -> None:
        super().__init__(sentence)
        self.end = end


class Job:
    """The state of one job while it runs; ``result`` turns it into what is written."""

    def __init__(self, plan: Plan, job: JobDir, stop: Stop, progress: Progress, spare: set[int]) -> None:
        self.plan = plan
        self.job = job
        self.stop = stop
        self.progress = progress
        self.spare = spare
        self.started_at = time.time()
        self.simulated = False
        self.identity: dict[str, Any] = {}
        self.environment: dict[str, str] = {}
        self.guard: dict[str, Any] = {"busy": False, "evidence": []}
        self.outcomes: list[ProbeOutcome] = []
        self.measurements: list[Measurement] = []
        self.telemetry_file: TelemetryFile | None = None
        self.notes: list[str] = []

    def result(self, end: str, sentence: str) -> Result:
        """The result so far: probes that were not reached are skipped, with ``sentence`` as the reason."""
        not_reached = [
            ProbeOutcome(call.probe, contract.SKIPPED, ("not reached: " + sentence)[:500], time.time(), 0.0)
            for call in self.plan.probes[len(self.outcomes) :]
        ]
        why = [sentence] if end != contract.END_COMPLETED else []
        return Result(
            job_id=self.plan.job_id,
            node=self.plan.node,
            stage=self.plan.stage,
            level=self.plan.level,
            fence=self.plan.fence,
            agent_sha256=facts.agent_sha256(),
            simulated=self.simulated,
            started_at=self.started_at,
            ended_at=time.time(),
            end=end,
            partial=end != contract.END_COMPLETED,
            identity=self.identity,
            environment=self.environment,
            guard=self.guard,
            probes=self.outcomes + not_reached,
            measurements=self.measurements,
            telemetry_file=self.telemetry_file,
            notes=why + self.notes + self.progress.notes + self.job.notes,
            repeat=self.plan.repeat,
        )


def run(
    plan_path: pathlib.Path,
    job_path: pathlib.Path | None,
    *,
    relaunch: Sequence[str],
    open_hardware: OpenHardware,
    packages: Sequence[str] = registry.PROBE_PACKAGES,
) -> int:
    """Runs the plan. Returns the exit status (contract.EXIT_OF_END); result.json is written by then."""
    try:
        text = plan_path.read_text(encoding="utf-8")
        plan = Plan.from_json(text)
        check_plan(plan)
    except (OSError, ValueError) as error:
        print(f"muster: {plan_path}: {error}", file=sys.stderr)
        return contract.EXIT_BAD_PLAN
    job = JobDir(job_path or plan_path.parent)
    marker = f"{jobdir.safe_name(plan.job_id)}-{uuid.uuid4().hex}"
    # The watchdog is forked before any thread or lock exists, so that it inherits neither.
    watchdog = orphans.Watchdog.start(marker, plan.deadline_s + WATCHDOG_MARGIN_S)
    try:
        stop = Stop(plan.deadline_s)
        stop.catch_signals()
        processes.become_subreaper()
        try:
            mine = job.open()
        except OSError as error:
            print(f"muster: the job directory {job.path} cannot be used: {error}", file=sys.stderr)
            return contract.EXIT_NO_RESULT
        if not mine:
            print(f"muster: this job already runs in {job.path}; wait for it or end it", file=sys.stderr)
            return contract.EXIT_NO_RESULT
        plan_file = _keep_plan(job, plan_path, text)
        return _run_in(job, plan, plan_file, stop, marker, watchdog.pid, relaunch, open_hardware, packages)
    finally:
        job.close()
        watchdog.dismiss()


def check_plan(plan: Plan) -> None:
    """Raises ValueError, in one sentence, for values that no job can be run with."""
    for name, value in [("deadline_s", plan.deadline_s), ("telemetry_interval_s", plan.telemetry_interval_s)]:
        _check_positive(name, value)
    if isinstance(plan.fence, bool) or not isinstance(plan.fence, int) or plan.fence < 0:
        raise ValueError(f"the plan cannot be used: fence must be a whole number, not {plan.fence!r}")
    for name, text in [("job_id", plan.job_id), ("node", plan.node), ("stage", plan.stage), ("level", plan.level)]:
        if not isinstance(text, str) or not text:
            raise ValueError(f"the plan cannot be used: {name} must be a text, not {text!r}")
    if len(plan.probes) > PROBES_MAX:
        raise ValueError(f"the plan cannot be used: {len(plan.probes)} probe calls, more than {PROBES_MAX}")
    for call in plan.probes:
        _check_positive(f"timeout_s of probe {call.probe}", call.timeout_s)
        if not isinstance(call.probe, str) or not isinstance(call.params, dict) or not isinstance(call.seed, int):
            raise ValueError(f"the plan cannot be used: probe call {call.probe!r} is malformed")


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
        raise ValueError(f"the plan cannot be used: {name} must be a positive number of seconds, not {value!r}")


def _keep_plan(job: JobDir, plan_path: pathlib.Path, text: str) -> pathlib.Path:
    plan_path = plan_path.absolute()
    if plan_path == job.plan:
        return plan_path
    try:
        jobdir.atomic_write(job.plan, text.encode())
        return job.plan
    except OSError as error:
        job.notes.append(f"the plan could not be copied into the job directory: {error}")
        return plan_path


def _run_in(
    job: JobDir,
    plan: Plan,
    plan_file: pathlib.Path,
    stop: Stop,
    marker: str,
    watchdog: int,
    relaunch: Sequence[str],
    open_hardware: OpenHardware,
    packages: Sequence[str],
) -> int:
    console = jobdir.Console(sys.stdout)
    progress = Progress(job.progress, console)
    fence = Fence(jobdir.fence_dir(plan.node))
    state = Job(plan, job, stop, progress, {watchdog})
    context = RunContext(plan, plan_file, job, relaunch, marker, progress, stop, state.spare)
    try:
        end, sentence = _work(state, fence, context, open_hardware, packages)
    except Refused as refusal:
        end, sentence = refusal.end, str(refusal)
    except Exception as error:
        # An internal error must not lose earlier measurements.
        end, sentence = stop.end, stop.sentence
        if not end:
            traceback.print_exc()
            end, sentence = contract.END_ERROR, f"the agent failed: {type(error).__name__}: {error}"
    orphans.end_descendants(state.spare, stop.patience_s(0.5, 0.2))
    try:
        size = _write(state, end, sentence)
        progress.write("job", _summary(state, end, sentence, size))
        status = contract.EXIT_OF_END[end]
    except OSError as error:
        print(f"muster: result.json could not be written: {error}", file=sys.stderr)
        status = contract.EXIT_NO_RESULT
    progress.close()
    console.close()
    fence.leave()
    return status


def _work(
    state: Job, fence: Fence, context: RunContext, open_hardware: OpenHardware, packages: Sequence[str]
) -> tuple[str, str]:
    plan, stop = state.plan, state.stop
    _enter(state, fence)
    known = registry.discover(packages, {call.probe for call in plan.probes})
    state.notes.extend("probe file {} cannot be used: {}".format(*item) for item in sorted(known.broken.items()))
    hardware = _open(state, open_hardware)
    inventory = _describe(state, hardware)
    _ask_leave(state, hardware, known)
    saved = SavedSettings(jobdir.fence_dir(plan.node), hardware)
    if _loads(plan, known):
        state.notes.extend(saved.begin(inventory, stop))
    recorder = Recorder(state.job.telemetry, HOLD_SPACINGS * plan.telemetry_interval_s, plan.deadline_s)
    sampler = Sampler(hardware, recorder, plan.telemetry_interval_s)
    sampler.start()
    xids = XidWatch(hardware)
    watch = GpuWatch(hardware, lambda: recorder.throttled(hardware.clock.wall()), recorder.inlet, recorder.peaks)
    if _watches(plan, known):
        watch.start()
    try:
        for index in range(len(plan.probes)):
            if stop():
                break
            _one_probe(state, context, index, known, watch)
    finally:
        state.notes.extend(sampler.stop(stop.patience_s(0.5, 0.2)))
        state.measurements.extend(xids.stop(by_pci(inventory), stop.patience_s(LEAVE_S, 0.1)))
        state.telemetry_file = recorder.close()
        state.notes.extend(recorder.notes)
        state.notes.extend(saved.end(stop.patience_s(LIMIT_S, HURRIED_S)))
    if len(state.outcomes) == len(plan.probes) and not _cut_short(state):
        return contract.END_COMPLETED, ""
    return stop.end, stop.sentence


def _cut_short(state: Job) -> bool:
    # A stop after the end of the last probe leaves the result complete.
    return bool(state.stop.end) and bool(state.outcomes) and state.stop.sentence in state.outcomes[-1].reason


def _enter(state: Job, fence: Fence) -> None:
    try:
        note = fence.enter(state.plan.fence, state.plan.job_id, state.job.path, state.stop)
    except Fenced as error:
        raise Refused(contract.END_FENCED, str(error)) from error
    except Occupied as error:
        raise Refused(state.stop.end or contract.END_BUSY, str(error)) from error
    except OSError as error:
        sentence = f"the fence in {jobdir.fence_dir(state.plan.node)} cannot be used: {error}"
        raise Refused(contract.END_ERROR, sentence) from error
    if note:
        state.notes.append(note)
        state.progress.write("job", note)
    state.stop.watch(lambda: fence.superseded(state.plan.fence))


def _open(state: Job, open_hardware: OpenHardware) -> Hardware:
    try:
        hardware = bounded("opening the hardware", open_hardware, OPEN_LIMIT_S, state.stop)
    except Exception as error:
        what = str(error) if isinstance(error, Hung) else f"{type(error).__name__}: {error}"
        raise Refused(state.stop.end or contract.END_ERROR, f"the hardware could not be opened: {what}") from error
    state.simulated = hardware.simulated
    return hardware


def _describe(state: Job, hardware: Hardware) -> list[Fact]:
    inventory: list[Fact] = []
    try:
        inventory = bounded("the inventory", lambda: list(hardware.inventory()), INVENTORY_LIMIT_S, state.stop)
    except Exception as error:
        state.notes.append(f"identity is incomplete: {type(error).__name__}: {error}")
    state.identity = bounded("the identity", lambda: facts.identity(hardware, inventory), INVENTORY_LIMIT_S, state.stop)
    state.environment = facts.environment(inventory)
    return inventory


def _loads(plan: Plan, known: registry.Registry) -> bool:
    return any(known.probes[call.probe].loads for call in plan.probes if call.probe in known.probes)


def _watches(plan: Plan, known: registry.Registry) -> bool:
    return any(known.probes[call.probe].by_agent for call in plan.probes if call.probe in known.probes)


def _ask_leave(state: Job, hardware: Hardware, known: registry.Registry) -> None:
    plan = state.plan
    loads = _loads(plan, known)
    patient = loads and not plan.force_reason
    use = guard.look(hardware, patient=patient, stop=state.stop, daemons=plan.busy_daemons)
    evidence = list(use.evidence)
    if use.busy and loads and plan.force_reason:
        evidence.append(f"continued by force: {plan.force_reason[:300]}")
        state.notes.append(f"{use.sentence()}; continued by force: {plan.force_reason[:300]}")
    state.guard = {"busy": use.busy, "evidence": evidence}
    if use.busy and loads and not plan.force_reason:
        why = state.stop()
        raise Refused(state.stop.end or contract.END_BUSY, why or use.sentence())


def _one_probe(state: Job, context: RunContext, index: int, known: registry.Registry, watch: GpuWatch) -> None:
    name = state.plan.probes[index].probe
    probe = known.probes.get(name)
    if probe is None:
        reason = "this agent has no probe {!r} (it has: {})".format(name, ", ".join(sorted(known.probes)))
        state.outcomes.append(ProbeOutcome(name, contract.SKIPPED, reason[:500], time.time(), 0.0))
        return
    state.progress.write(name, f"started ({index + 1} of {len(state.plan.probes)})")
    if probe.by_agent:
        outcome, measurements, notes = _watched(name, watch, state.stop)
    else:
        outcome, measurements, notes = run_probe(context, index, probe, state.stop.left_s() + 1.0)
    state.outcomes.append(outcome)
    state.measurements.extend(measurements)
    state.notes.extend(notes)
    note = ": " + outcome.reason if outcome.reason else f", {len(measurements)} measurements"
    state.progress.write(name, "{} after {:.1f} s{}".format(outcome.status.replace("_", " "), outcome.duration_s, note))


def _watched(name: str, watch: GpuWatch, stop: Stop) -> tuple[ProbeOutcome, list[Measurement], list[str]]:
    started_at, started = time.time(), time.monotonic()
    status, reason, measurements = watch.finish(stop)
    return ProbeOutcome(name, status, reason, started_at, round(time.monotonic() - started, 3)), measurements, []


def _write(state: Job, end: str, sentence: str) -> int:
    data = encode(state.result(end, sentence))
    try:
        state.job.write_result(data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        state.job.drop_evidence()
        state.telemetry_file = None
        state.notes.append("the disk was full: telemetry file and logs were given up for this result")
        data = encode(state.result(end, sentence))
        state.job.write_result(data)
    return len(data)


def _summary(state: Job, end: str, sentence: str, size: int) -> str:
    counts = collections.Counter(outcome.status for outcome in state.outcomes)
    tally = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sorted(counts.items()))
    note = f" ({sentence})" if sentence else ""
    return "{}{}; probes: {}; result.json {:.0f} kB".format(end, note, tally or "none", size / 1000)
