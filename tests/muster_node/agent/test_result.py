"""A result always fits its limit, notes what it left out, and is written even when the disk is full."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster_criteria.measured import parse_result
from muster_node.agent import job as agent
from muster_node.agent import jobdir
from muster_node.agent.jobdir import Console, JobDir, Progress
from muster_node.agent.result import encode
from muster_node.contract import Measurement, Plan, Result
from tests.muster_node.agent.harness import MAIN, call, plan


def result(**fields: Any) -> Result:
    given: dict[str, Any] = {
        "job_id": "j",
        "node": "n",
        "stage": "intake",
        "level": "demo",
        "fence": 1,
        "agent_sha256": "0" * 64,
        "simulated": False,
        "started_at": 1.0,
        "ended_at": 2.0,
        "end": "completed",
        "partial": False,
        "identity": {},
        "environment": {},
        "guard": {},
        "probes": [],
        "measurements": [],
    }
    return Result(**{**given, **fields})


def measurements(probe: str, count: int, note: str = "") -> list[Measurement]:
    return [Measurement(probe, "figure", f"cpu{n}", "GB/s", value=float(n), note=note) for n in range(count)]


def test_a_result_that_fits_is_unchanged() -> None:
    whole = result(measurements=measurements("a", 10))
    assert encode(whole) == whole.to_json().encode()


def test_a_text_that_is_no_text_costs_its_letter_and_not_the_result() -> None:
    odd = result(measurements=[Measurement("a", "fact", "node", "text", text="disk \udc80 at 5 °C")], notes=["\ud800"])
    taken = parse_result(encode(odd))
    assert taken.measurements[0].text == "disk ? at 5 °C"


def test_the_flooder_pays_and_the_quiet_probe_keeps_everything() -> None:
    data = encode(result(measurements=measurements("flood", 5000) + measurements("quiet", 20)), limit=200_000)
    assert len(data) <= 200_000
    got = json.loads(data)
    kept = [row["probe"] for row in got["measurements"]]
    assert kept.count("quiet") == 20
    assert 500 < kept.count("flood") < 5000
    left_out = 5000 - kept.count("flood")
    (note,) = got["notes"]
    assert f"{left_out} of 5000" in note


@settings(max_examples=12)
@given(
    st.lists(st.integers(0, 1500), min_size=1, max_size=5),
    st.integers(60_000, 150_000),
    st.text(max_size=200),
)
def test_no_result_passes_its_limit(counts: list[int], limit: int, note: str) -> None:
    everything = [row for n, count in enumerate(counts) for row in measurements(f"p{n}", count, note)]
    assert len(encode(result(measurements=everything), limit)) <= limit


def test_the_number_of_notes_is_bounded() -> None:
    got = json.loads(encode(result(notes=["x" * 1000] * 5000)))
    assert len(got["notes"]) == 201
    assert "4800" in got["notes"][-1]


def test_without_enough_reserve_logs_and_telemetry_are_removed_for_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobDir(tmp_path)
    assert job.open()
    job.telemetry.write_bytes(b"x")
    progress = Progress(job.progress, Console(sys.stdout))
    state = agent.Job(plan(call("good")), job, agent.Stop(60), progress, set())
    written = jobdir.atomic_write

    def full_while_telemetry_is_there(path: Path, data: bytes) -> None:
        if job.telemetry.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        written(path, data)

    monkeypatch.setattr(jobdir, "atomic_write", full_while_telemetry_is_there)
    agent._write(state, "completed", "")
    got = json.loads(job.result.read_bytes())
    assert got["telemetry_file"] is None
    assert len(got["notes"]) == 1
    job.close()


def _in_own_mounts(script: str) -> subprocess.CompletedProcess[str]:
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_probe_that_fills_the_disk_does_not_cost_the_result(tmp_path: Path) -> None:
    """On a real file system of 16 MB, filled to its last byte while the job runs."""
    if not shutil.which("unshare") or _in_own_mounts("mount -t tmpfs none /mnt").returncode:
        pytest.skip("this system does not allow mounting a small file system for a test (unshare --user --mount)")
    filled = tmp_path / "small" / "filled"
    filled.parent.mkdir()
    job = Plan.to_json(plan(call("filler", path=str(filled)), call("good")))
    (tmp_path / "plan.json").write_text(job)
    script = f"""
    mount -t tmpfs -o size=16m none {filled.parent}
    mkdir {filled.parent}/job && cp {tmp_path}/plan.json {filled.parent}/job/
    MUSTER_WORK={tmp_path}/work {sys.executable} {MAIN} run {filled.parent}/job/plan.json || echo status $?
    df --output=avail {filled.parent} >&2
    cp {filled.parent}/job/result.json {tmp_path}/
    """
    done = _in_own_mounts(script)
    assert done.returncode == 0, done.stderr
    got = json.loads((tmp_path / "result.json").read_bytes())
    assert [row["value"] for row in got["measurements"] if row["probe"] == "filler"] == [2]
    assert got["end"] == "completed"
    assert filled.parent.exists()
