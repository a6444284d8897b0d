"""Runs a vendor's tool: time limits that hold, a cool-down before it, and the GPU that a PCI address belongs to."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Callable, TypeVar

from muster_node.hardware.seam import Hardware
from muster_node.probe import Context, Param, Skip
from muster_node.tools.output import BadOutput, failed_exit

Parsed = TypeVar("Parsed")

OUTPUT_MAX = 16 * 1024 * 1024
"""Bytes of a stream that are read; the rest is ignored."""

END_WAIT_S = 10.0
TICK_S = 2.0
STILL_C = 1.0
STILL_TICKS = 15
"""A GPU that has not cooled by ``STILL_C`` within so many ticks will not get cooler here."""

COOL_PARAMS = {
    "cool_c": Param(60.0, "wait until no GPU is hotter than this, in °C, since the heat of a burn slows them"),
    "cool_limit_s": Param(300.0, "longest wait for that, in seconds"),
}


@dataclasses.dataclass(frozen=True)
class ToolRun:
    """How a tool ended: its exit status (None: it exceeded its time limit) and both streams."""

    status: int | None
    out: str
    err: str

    def last_line(self) -> str:
        """The last line of stderr, or of stdout where stderr is empty; at most 200 characters."""
        lines = [line.strip() for stream in (self.out, self.err) for line in stream.splitlines() if line.strip()]
        errors = [line.strip() for line in self.err.splitlines() if line.strip()]
        return (errors or lines or ["no output"])[-1][:200]


def real_only(context: Context) -> None:
    """Raises Skip on simulated hardware: a vendor's tool would measure the machine below it."""
    if context.hardware.simulated:
        raise Skip("vendors' tools cannot reach simulated hardware")


def run_tool(
    context: Context, command: Sequence[str], limit_s: float, environment: dict[str, str] | None = None
) -> ToolRun:
    """Run a tool in its own session; all of its processes are ended after ``limit_s`` seconds."""
    with started(context, command, environment) as tool:
        return tool.wait(limit_s)


def result_of(
    context: Context,
    command: Sequence[str],
    limit_s: float,
    parse: Callable[[str], Parsed],
    explains: Callable[[Parsed], object] = lambda found: None,
    *,
    stderr: bool = False,
    environment: dict[str, str] | None = None,
) -> Parsed:
    """``parse`` of what a tool printed on stdout, with ``stderr`` on both streams.

    Raises BadOutput, with the tool's last line, for a timeout, for output that cannot be read, and for an exit with an
    error that nothing found ``explains``.
    """
    done = run_tool(context, command, limit_s, environment)
    if done.status is None:
        raise BadOutput("timeout", f"did not end within {limit_s:g} s")
    try:
        found = parse(f"{done.out}\n{done.err}" if stderr else done.out)
        if done.status and not explains(found):
            raise failed_exit(done.status)
    except BadOutput as error:
        raise BadOutput(error.code, f"{error}; its last line: {done.last_line()}") from error
    return found


@dataclasses.dataclass
class Tool:
    """A running tool; its streams go to files, so that a full pipe cannot block it."""

    process: subprocess.Popen[bytes]
    out: str
    err: str

    def wait(self, limit_s: float) -> ToolRun:
        """Wait for the tool; end it after ``limit_s`` seconds."""
        status: int | None = None
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.end()
        return ToolRun(status, _text(self.out), _text(self.err))

    def end(self) -> None:
        """End the tool's process group; the agent ends what survives SIGKILL for ten seconds."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(END_WAIT_S)
                return
            except subprocess.TimeoutExpired:
                continue


@contextlib.contextmanager
def started(context: Context, command: Sequence[str], environment: dict[str, str] | None = None) -> Iterator[Tool]:
    """A tool that runs at most as long as the block, in the C locale. Raises Skip if it cannot be started."""
    base = f"{os.path.basename(command[0])}-{len(list(context.scratch.iterdir()))}"
    out, err = str(context.scratch / (base + ".out")), str(context.scratch / (base + ".err"))
    with open(out, "wb") as out_file, open(err, "wb") as err_file:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                env={**os.environ, "LC_ALL": "C", **(environment or {})},  # else some locales print decimal commas
                start_new_session=True,
            )
        except OSError as error:
            raise Skip(f"{command[0]} cannot be started: {error}") from error
    tool = Tool(process, out, err)
    try:
        yield tool
    finally:
        if process.poll() is None:
            tool.end()


def _text(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(OUTPUT_MAX).decode("utf-8", "replace")


def cool_down(context: Context) -> str:
    """Wait until all GPUs are cool or stop cooling. Returns a note if one is still hot or unreadable, else ""."""
    clock = context.hardware.clock
    give_up_at = clock.now() + context.params["cool_limit_s"]
    readings: list[float] = []
    while True:
        hottest = max(gpu_temperatures(context.hardware).values(), default=None)
        if hottest is None:
            return "no cool-down: no GPU reports a temperature"
        if hottest <= context.params["cool_c"]:
            return ""
        readings.append(hottest)
        still = len(readings) > STILL_TICKS and readings[-STILL_TICKS - 1] - hottest < STILL_C
        if still or clock.now() >= give_up_at:
            return f"the hottest GPU was still at {hottest:.0f} °C"
        clock.sleep(TICK_S)


def gpu_temperatures(hardware: Hardware) -> dict[str, float]:
    """Core temperature in °C by device, of the GPUs that report one."""
    return {
        sample.device: sample.value
        for sample in hardware.telemetry()
        if sample.series == "temperature" and sample.device.startswith("gpu") and sample.value is not None
    }
