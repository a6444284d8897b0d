"""Telemetry beside the probes: what is streamed and kept, and that no sensor can stop or falsify a run."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import math
import os
import random
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from muster.remote.job import jobs
from muster_node.agent import telemetry
from muster_node.agent.telemetry import Recorder, Sampler
from muster_node.hardware.seam import Clock, Sample
from tests.muster_node.agent.harness import Node, call, plan

TWO_DAYS = Path(__file__).parent / "fakes" / "two_days.py"


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def test_the_side_file_matches_the_result(node: Node) -> None:
    done = node.run(plan(call("good", seconds=1.0)))
    described, path = done.result.telemetry_file, done.job / "telemetry.jsonl.gz"
    assert described is not None
    assert described.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert described.bytes == path.stat().st_size
    rows = rows_of(path)
    assert described.rows == len(rows) >= 10  # two series, ten times a second
    assert rows[0].keys() == {"t", "series", "device", "value"}
    assert rows[1].keys() == {"t", "series", "device", "state"}


def test_a_sensor_that_raises_is_a_note(node: Node) -> None:
    done = node.run(plan(call("good", seconds=0.3)), env={"FAKE_TELEMETRY": "raises"})
    assert done.result.end == "completed"
    assert done.result.telemetry_file is not None
    assert done.result.telemetry_file.rows == 0
    assert any("OSError" in note for note in done.result.notes)


def test_a_sensor_that_hangs_costs_its_series_and_nothing_else(node: Node) -> None:
    done = node.run(plan(call("good", seconds=0.5), call("good")), env={"FAKE_TELEMETRY": "hangs"})
    assert done.result.end == "completed"
    assert [outcome.status for outcome in done.result.probes] == ["completed", "completed"]
    assert any("hung" in note for note in done.result.notes)
    assert done.result.telemetry_file is not None
    assert done.result.telemetry_file.rows == 4, "two readings of two series"


def test_a_tool_that_telemetry_reads_is_not_taken_for_an_orphan(node: Node) -> None:
    done = node.run(plan(*[call("good")] * 6), env={"FAKE_TELEMETRY": "tool"})
    assert done.result.end == "completed"
    assert done.result.notes == []


def test_unusable_readings_are_counted_not_recorded(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t.gz", 3.0)
    bad = [
        Sample("power", "gpu0", "W", math.nan),
        Sample("power", "gpu0", "W", math.inf),
        Sample("../etc", "gpu0", "W", 1.0),
        Sample("power", "GPU 0", "W", 1.0),
        Sample("throttle", "gpu0", "state", state="<script>"),
        Sample("power", "gpu0", "W", None),
    ]
    recorder.add(1.0, bad)
    recorder.add(2.0, [Sample("inlet_temperature", "node", "°C", 22.0)])
    assert recorder.inlet() == (22.0, 1)
    file = recorder.close()
    assert file is not None
    assert file.rows == 1
    (note,) = recorder.notes
    assert "5 readings" in note


def test_the_number_of_series_is_bounded_and_noted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "t.gz", 3.0)
    recorder.add(1.0, [Sample("power", f"gpu{n}", "W", 1.0) for n in range(telemetry.SERIES_MAX + 10)])
    file = recorder.close()
    assert file is not None
    assert file.rows == telemetry.SERIES_MAX
    assert recorder.notes == [f"telemetry: 10 readings beyond {telemetry.SERIES_MAX} series were dropped"]


def test_a_full_disk_ends_the_file_with_a_true_hash_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.gz"
    recorder = Recorder(path, 3.0)
    recorder.add(0.0, [Sample("inlet_temperature", "node", "°C", 21.0)])

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        recorder.add(100.0, [Sample("inlet_temperature", "node", "°C", 22.0)])
    recorder.add(101.0, [Sample("inlet_temperature", "node", "°C", 23.0)])
    assert recorder.inlet() == (22.0, 3)
    file = recorder.close()
    assert file is not None
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "cut short" in recorder.notes[0]


def test_the_side_file_stops_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "FILE_BYTES_MAX", 2000)
    monkeypatch.setattr(telemetry, "FLUSH_S", 1.0)
    recorder = Recorder(tmp_path / "t.gz", 3.0)
    for t in range(1000):
        recorder.add(float(t), [Sample("inlet_temperature", "node", "°C", math.sin(t) * 1e3)])
    file = recorder.close()
    assert file is not None
    assert 2000 < file.bytes < 3000
    assert len(rows_of(tmp_path / "t.gz")) == file.rows < 1000
    assert recorder.inlet()[1] == 1000
    assert len(recorder.notes) == 1


def test_the_side_file_of_two_days_is_whole_and_one_that_the_controller_takes(tmp_path: Path) -> None:
    """As 256 CPUs and 8 GPUs fill it in ten minutes of 48 hours."""
    devices = [*(f"cpu{n}" for n in range(256)), *(f"gpu{n}" for n in range(8))]
    dice, minutes, two_days = random.Random(1), 10, 48 * 3600.0
    recorder = Recorder(tmp_path / "t.gz", 3.0, two_days)
    for t in range(minutes * 60):
        readings = [Sample("clock", each, "MHz", round(dice.gauss(3000, 60), 3)) for each in devices]
        readings += [Sample("inlet_temperature", "node", "°C", 22.0)]
        readings += [Sample("utilisation", each, "%", 100.0 * dice.randint(97, 101) / 101) for each in devices]
        recorder.add(
            1.8e9 + 1.01 * t, [*readings, *(Sample("throttle", each, "state", state="none") for each in devices)]
        )
    file = recorder.close()
    assert file is not None
    assert 0.3 < file.bytes * two_days / (minutes * 60) / telemetry.FILE_BYTES_MAX < 1.0
    assert recorder.inlet()[1] == minutes * 60  # every reading
    assert telemetry.FILE_BYTES_MAX + 1024**2 < jobs.TELEMETRY_BYTES_MAX


def test_48_hours_in_bounded_memory(tmp_path: Path) -> None:
    """Two days at 1 Hz of five sensors, under an injected clock, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(TWO_DAYS), str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    report = json.loads(done.stdout)
    print(report)
    hours, series = 48, 5
    assert report["rows"] == hours * 3600 * series
    assert report["rss_end_kb"] - report["rss_after_2h_kb"] < 4096
    assert report["file_bytes"] / report["rows"] < 8
    median, samples = report["inlet"]
    assert samples == hours * 3600
    assert median == pytest.approx(22.0, abs=0.05)
    assert report["time_in_state"]["hw_thermal"] == pytest.approx(48 * 60, rel=0.01)


class FastClock(Clock):
    """A simulated clock: a thousand seconds pass in one."""

    def now(self) -> float:
        return time.monotonic() * 1000

    def wall(self) -> float:
        return 1.8e9 + self.now()

    def sleep(self, seconds: float) -> None:
        raise AssertionError("sampling must not move a simulated clock on")


def test_time_in_state_is_whole_on_a_clock_that_runs_fast(tmp_path: Path) -> None:
    hardware: Any = types.SimpleNamespace(
        simulated=True,
        clock=FastClock(),
        telemetry=lambda: [Sample("throttle", "gpu0", "state", state="hw_thermal")],
    )
    recorder = Recorder(tmp_path / "t.gz", 3.0)
    sampler = Sampler(hardware, recorder, 1.0)
    begun = hardware.clock.now()
    sampler.start()
    time.sleep(1.0)
    assert sampler.stop() == []
    took = hardware.clock.now() - begun
    held = recorder.throttled(hardware.clock.wall())["gpu0"]
    file = recorder.close()
    assert file is not None
    assert 5 <= file.rows <= 1 + took / 50  # never more often than every 0.05 s of real time
    assert held["hw_thermal"] == pytest.approx(took, rel=0.15)
