"""A machine whose users and sensor behaviour come from environment variables."""

import json
import os
import subprocess
import threading
import time
from pathlib import Path

from muster_node.hardware.events import DeviceEvent
from muster_node.hardware.seam import Clock, Device, Fact, Hardware, Sample, Usage


class RealClock(Clock):
    def now(self):
        return time.monotonic()

    def wall(self):
        return time.time() - float(os.environ.get("FAKE_SET_BACK_S", "0"))

    def sleep(self, seconds):
        time.sleep(seconds)


class FakeXids:
    """A source that has one XID 79 of a GPU, once."""

    name = "an event set"

    def __init__(self):
        self.refused, self.trouble = {}, ""
        self._events = [DeviceEvent("xid", 79, "0000:1b:00", "", "lost", 12.5)]

    def read(self):
        return [self._events.pop()] if self._events else []

    def close(self):
        pass


class FakeHardware(Hardware):
    simulated = False

    def __init__(self):
        self.clock = RealClock()
        self._readings = 0

    def devices(self, kind):
        if kind == "gpu":
            return [Device(f"gpu{slot}", "gpu", slot) for slot in range(int(os.environ.get("FAKE_GPUS", "0")))]
        return [Device("cpu0", "cpu", 0)] if kind == "cpu" else []

    def states(self):
        return [
            Fact("ecc_uncorrected", gpu.id, "count", 0.0, labels={"scope": "volatile"}) for gpu in self.devices("gpu")
        ]

    def boot_id(self):
        return "boot-1"

    def inventory(self):
        limit = os.environ.get("FAKE_LIMIT")
        return [
            *([Fact("power_limit", "gpu0", "W", value=float(Path(limit).read_text()))] if limit else []),
            Fact("serial_system", "node", "text", text="SYS123"),
            Fact("gpu_serial", "gpu0", "text", text="GPU456"),
            Fact("driver_version", "node", "text", text="580.1"),
        ]

    def event_source(self):
        return FakeXids() if os.environ.get("FAKE_XIDS") else None

    def restore_setting(self, device, setting, facts):
        if os.environ.get("FAKE_PUT_BACK") == "refused":
            return "NVML: no permission"
        Path(os.environ["FAKE_LIMIT"]).write_text(str(int(facts[0].value)))
        return ""

    def counters(self):
        return []

    def telemetry(self):
        self._readings += 1
        mode = os.environ.get("FAKE_TELEMETRY", "")
        if mode == "raises":
            raise OSError("sensor bus is dead")
        if mode == "hangs" and self._readings > 2:
            time.sleep(3600)
        if mode == "tool":
            subprocess.run(["sleep", "0.2"], check=True)
        return [
            Sample("temperature", "cpu0", "°C", 40.0 + self._readings),
            Sample("throttle", "cpu0", "state", state="none"),
        ]

    def usage(self):
        if os.environ.get("FAKE_USAGE") == "raises":
            raise OSError("no utmp")
        fields = json.loads(os.environ.get("FAKE_USAGE", "{}"))
        return Usage(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})

    def kernel_log(self):
        return None

    def compute(self, device):
        raise NotImplementedError


def open_fake():
    mode = os.environ.get("FAKE_OPEN", "")
    if mode == "raises":
        raise RuntimeError("driver is not loaded")
    if mode == "hangs":
        time.sleep(3600)
    if mode == "stuck":
        start_thread(Path(os.environ["FAKE_THREAD"]))
    return FakeHardware()


def start_thread(file):
    """A thread of the first process that comes here; returns once another process holds it."""
    if not file.exists():
        threading.Thread(target=hang, args=(file,), daemon=True).start()
    while not file.with_suffix(".held").exists():
        time.sleep(0.01)


def hang(file):
    file.write_text(str(threading.get_native_id()))
    time.sleep(3600)
