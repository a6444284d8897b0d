"""A job leaves clocks, limits and modes of GPUs as it found them: when it ends, is ended, or is killed."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from muster_node.agent.gpu_settings import FILE, LEFT_BEHIND_MAX_S
from tests.muster_node.agent.harness import Node, call, plan

WHAT = "gpu0 power_limit: 700 W before, 500 W after; "


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The power limit of the machine's GPU."""
    file = tmp_path / "limit"
    file.write_text("700")
    monkeypatch.setenv("FAKE_LIMIT", str(file))
    return file


def test_what_a_probe_has_set_is_put_back_and_told(node: Node, limit: Path) -> None:
    done = node.run(plan(call("meddles")))
    assert limit.read_text() == "700"
    assert WHAT + "restored" in done.result.notes
    assert not (node.work / FILE).exists()


def test_nothing_is_said_where_nothing_was_set(node: Node, limit: Path) -> None:
    done = node.run(plan(call("good")))
    assert limit.read_text() == "700"
    assert not any("power_limit" in note for note in done.result.notes)


def test_it_is_put_back_when_the_job_is_ended(node: Node, limit: Path) -> None:
    running = node.start(plan(call("meddles", 60.0, hang=True)))
    running.wait_for_progress("has set a limit")
    started = time.monotonic()
    done = running.end(signal.SIGTERM)
    assert time.monotonic() - started < 5
    assert (done.result.end, limit.read_text()) == ("terminated", "700")
    assert WHAT + "restored" in done.result.notes


def test_the_next_job_puts_it_back_when_the_agent_was_killed(node: Node, limit: Path) -> None:
    running = node.start(plan(call("meddles", 60.0, hang=True)))
    running.wait_for_progress("has set a limit")
    running.end(signal.SIGKILL)
    assert limit.read_text() == "500"

    done = node.run(plan(call("meddles"), job_id="job-2"))
    assert f"left by a killed job: {WHAT}restored" in done.result.notes
    assert limit.read_text() == "700"
    assert not (node.work / FILE).exists()


@pytest.mark.parametrize("change", ["another boot", "long ago", "from the future", "nonsense"])
def test_what_was_left_long_ago_or_before_a_boot_is_let_be(node: Node, limit: Path, change: str) -> None:
    running = node.start(plan(call("meddles", 60.0, hang=True)))
    running.wait_for_progress("has set a limit")
    running.end(signal.SIGKILL)
    file = node.work / FILE
    kept = json.loads(file.read_text())
    if change == "another boot":
        kept["boot_id"] = "boot-0"
    elif change != "nonsense":
        kept["at"] += 3600 if change == "from the future" else -LEFT_BEHIND_MAX_S - 3600
    file.write_text(json.dumps(kept)[: 20 if change == "nonsense" else None])

    done = node.run(plan(call("meddles"), job_id="job-2"))
    assert not any("killed" in note for note in done.result.notes)
    assert limit.read_text() == "500", "as this job found it"


def test_what_cannot_be_put_back_is_told(node: Node, limit: Path) -> None:
    done = node.run(plan(call("meddles")), env={"FAKE_PUT_BACK": "refused"})
    assert WHAT + "not restored: NVML: no permission" in done.result.notes
    assert (done.result.end, limit.read_text()) == ("completed", "500")
