"""Probes that misbehave."""
# ruff: noqa: RUF012

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from muster_node.probe import Metric, Param, Probe
from muster_node.tools.run import run_tool


class Bad(Probe):
    """Measures one thing, then misbehaves."""

    stage = "burn_in"
    doc = "Misbehaves"
    metrics = {"figure": Metric("GB/s", "a figure"), "fact": Metric("text", "a fact")}
    loads = False

    def run(self, context):
        context.emit("figure", "node", value=42)
        self.misbehave(context)

    def line_to_agent(self, context):
        return context.emit.__self__._fd


class Corrupts(Bad):
    """Sees wrong figures, one on the device that hangs, and ends only at SIGTERM."""

    name = "corrupts"
    metrics = {"wrong": Metric("count", "a count"), **Bad.metrics}

    def misbehave(self, context):
        for value in (1, 2):
            context.emit("wrong", "gpu0", value=value, so_far=True)
        context.emit("wrong", "gpu1", value=1, note="one bit", so_far=True)
        context.emit("wrong", "gpu1", note="gpu1 hangs")
        context.emit("wrong", "gpu2", value=1, so_far=True)
        context.emit("wrong", "gpu2", value=5)
        context.emit("wrong", "gpu3", value=1, labels={"dtype": "bf16"}, so_far=True)
        context.emit("wrong", "gpu3", value=0, labels={"dtype": "fp16"})
        if os.fork() == 0:
            context.emit("wrong", "node", value=3, so_far=True)
            os._exit(0)
        os.wait()
        context.progress("corrupted")
        time.sleep(60)


class Segfault(Bad):
    name = "segfault"

    def misbehave(self, context):
        ctypes.string_at(0)


class Raises(Bad):
    name = "raises"

    def misbehave(self, context):
        raise ValueError("the sum is off\nby one")


class Exits(Bad):
    name = "exits"

    def misbehave(self, context):
        sys.exit(3)


class HardExit(Bad):
    name = "hard_exit"

    def misbehave(self, context):
        print("cannot find the thing", flush=True)
        os._exit(4)


class SilentExit(Bad):
    name = "silent_exit"

    def misbehave(self, context):
        os._exit(0)


class Killed(Bad):
    name = "killed"

    def misbehave(self, context):
        os.kill(os.getpid(), signal.SIGKILL)


class OutOfMemory(Bad):
    name = "out_of_memory"

    def misbehave(self, context):
        limit = 1 << 30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        bytearray(2 * limit)


class Garbage(Bad):
    name = "garbage"

    def misbehave(self, context):
        os.write(self.line_to_agent(context), b"\x00\xffnot json\n")
        time.sleep(60)


class Forged(Bad):
    name = "forged"

    def misbehave(self, context):
        os.write(self.line_to_agent(context), b'{"kind":"measurement","metric":"verdict","device":"node","value":1}\n')
        time.sleep(60)


class Infinite(Bad):
    name = "infinite"

    def misbehave(self, context):
        os.write(
            self.line_to_agent(context), b'{"kind":"measurement","metric":"figure","device":"node","value":1e999}\n'
        )
        time.sleep(60)


class Undeclared(Bad):
    name = "undeclared"

    def misbehave(self, context):
        context.emit("verdict", "node", value=1)


class BadDevice(Bad):
    name = "bad_device"

    def misbehave(self, context):
        line = {
            "kind": "measurement",
            "metric": "figure",
            "device": "../etc",
            "labels": {},
            "value": 1,
            "unit": "count",
        }
        os.write(self.line_to_agent(context), json.dumps(line).encode() + b"\n")
        time.sleep(60)


class LongLine(Bad):
    name = "long_line"

    def misbehave(self, context):
        os.write(self.line_to_agent(context), b"x" * 200_000)
        time.sleep(60)


class Flood(Bad):
    name = "flood"

    def misbehave(self, context):
        for _ in range(200_000):
            context.emit("fact", "node", text="x" * 400)
        time.sleep(60)


class LoudOutput(Bad):
    name = "loud_output"

    def misbehave(self, context):
        for _ in range(200):
            sys.stdout.write("y" * 100_000)
        print("\nthe very last line", flush=True)
        os._exit(9)


class Hangs(Bad):
    name = "hangs"

    def misbehave(self, context):
        context.progress("hanging")
        time.sleep(3600)


class Stubborn(Bad):
    name = "stubborn"

    def misbehave(self, context):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        context.progress("ignoring SIGTERM")
        time.sleep(3600)


class Escapes(Bad):
    """Starts a process in a session of its own that outlives it, by way of one that dies at once."""

    name = "escapes"
    params = {"hang": Param(False, "whether to hang afterwards"), "pid_file": Param("", "where to say who got away")}

    def misbehave(self, context):
        code = (
            "import os, sys, time; os.fork() and os._exit(0); os.setsid(); "
            "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(3600)"
        )
        subprocess.run([sys.executable, "-c", code, context.params["pid_file"]], check=True)
        while not Path(context.params["pid_file"]).exists() or not Path(context.params["pid_file"]).read_text():
            time.sleep(0.01)
        context.progress("got away")
        if context.params["hang"]:
            time.sleep(3600)


class Asks(Bad):
    """Waits for a tool that runs in a session of its own, as vendors' tools do."""

    name = "asks"
    params = {"tool": Param("", "the tool")}

    def misbehave(self, context):
        run_tool(context, [context.params["tool"]], 60.0)


class SlowLeaver(Bad):
    name = "slow_leaver"

    def misbehave(self, context):
        import atexit
        import threading

        atexit.register(time.sleep, 3600)
        threading.Thread(target=time.sleep, args=(3600,)).start()


class Meddles(Bad):
    """Changes a limit as a vendor's diagnostic does, and is killed before it restores it."""

    name = "meddles"
    loads = True
    params = {"hang": Param(False, "go on until the process is ended")}

    def misbehave(self, context):
        Path(os.environ["FAKE_LIMIT"]).write_text("500")
        context.progress("has set a limit")
        if context.params["hang"]:
            time.sleep(3600)
