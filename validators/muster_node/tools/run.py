"""What probes around vendors' tools share: time limits that hold, a cool-down before, which GPU a tool speaks of."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
from typing import Dict, Iterator, List, Optional, Sequence

from muster_node.hardware.host.xid_log import normal_pci
from muster_node.hardware.seam import Hardware
from muster_node.probe import Context, Param, Skip

OUTPUT_MAX = 16 * 1024 * 1024
END_WAIT_S = 10.0
TICK_S = 2.0
STILL_C = 1.0
STILL_TICKS = 15
"""A GPU that has not become 1 °C cooler for so many ticks is as cool as this room lets it become."""

COOL_PARAMS = {
    "cool_c": Param(60.0, "wait until no GPU is hotter than this, in °C: what a burn left behind is no fault"),
    "cool_limit_s": Param(300.0, "but no longer than this, in seconds"),
}


class BadOutput(Exception):
    """A tool's output cannot be read; the message is one sentence that says where it ends to make sense."""


@dataclasses.dataclass(frozen=True)
class ToolRun:
    """How a tool ended: its status (None: its time was up) and both of its streams."""

    status: Optional[int]
    out: str
    err: str

    def last_word(self) -> str:
        """The last line that says anything, errors first."""
        lines = [line.strip() for stream in (self.err, self.out) for line in stream.splitlines() if line.strip()]
        errors = [line.strip() for line in self.err.splitlines() if line.strip()]
        return (errors or lines or ["no word"])[-1][:200]


def real_only(context: Context) -> None:
    """A vendor's tool would measure the machine below a simulated one. Raises Skip there."""
    if context.hardware.simulated:
        raise Skip("vendors' tools cannot reach simulated hardware")


def run_tool(
    context: Context, command: Sequence[str], limit_s: float, environment: Optional[Dict[str, str]] = None
) -> ToolRun:
    """Run a tool in a session of its own, and end all of it after ``limit_s`` seconds."""
    with started(context, command, environment) as tool:
        return tool.wait(limit_s)


@dataclasses.dataclass
class Tool:
    """A running tool; its streams go to files, so that none can fill a pipe and hang."""

    process: "subprocess.Popen[bytes]"
    out: str
    err: str

    def wait(self, limit_s: float) -> ToolRun:
        """Wait for it, or end it when its time is up."""
        status: Optional[int] = None
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.end()
        return ToolRun(status, _text(self.out), _text(self.err))

    def end(self) -> None:
        """End it and all that it started; what does not go in ten seconds the agent finds later."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            try:
                self.process.wait(END_WAIT_S)
                return
            except subprocess.TimeoutExpired:
                continue


@contextlib.contextmanager
def started(context: Context, command: Sequence[str], environment: Optional[Dict[str, str]] = None) -> Iterator[Tool]:
    """A tool that runs for the block at most. Raises Skip where it cannot be started."""
    base = "%s-%d" % (os.path.basename(command[0]), len(list(context.scratch.iterdir())))
    out, err = str(context.scratch / (base + ".out")), str(context.scratch / (base + ".err"))
    with open(out, "wb") as out_file, open(err, "wb") as err_file:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise Skip("%s cannot be started: %s" % (command[0], error)) from error
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
    """Wait until all GPUs are cool, or as cool as they will get. Returns what there is to note, "" if nothing."""
    clock = context.hardware.clock
    give_up_at = clock.now() + context.params["cool_limit_s"]
    readings: List[float] = []
    while True:
        hottest = max(gpu_temperatures(context.hardware).values(), default=None)
        if hottest is None:
            return "no temperature is told, so it was not waited for"
        if hottest <= context.params["cool_c"]:
            return ""
        readings.append(hottest)
        still = len(readings) > STILL_TICKS and readings[-STILL_TICKS - 1] - hottest < STILL_C
        if still or clock.now() >= give_up_at:
            return "the hottest GPU was still at %.0f °C" % hottest
        clock.sleep(TICK_S)


def gpu_temperatures(hardware: Hardware) -> Dict[str, float]:
    """{"gpu3": °C} of the GPUs that tell how warm they are."""
    return {
        sample.device: sample.value
        for sample in hardware.telemetry()
        if sample.series == "temperature" and sample.device.startswith("gpu") and sample.value is not None
    }


def gpus_by_pci(hardware: Hardware) -> Dict[str, str]:
    """{PCI address: "gpu3"} of the GPUs that answer: tools number them in an order of their own."""
    facts = (fact for fact in hardware.inventory() if fact.name == "pci_address" and fact.text)
    return {normal_pci(str(fact.text)): fact.device for fact in facts}
