"""A job leaves clocks, limits and modes of GPUs as it found them: when it ends, is ended, or is killed."""

from __future__ import annotations

import json
import signal
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


def test_settings_that_a_probe_changed_are_restored_and_noted(node: Node, limit: Path) -> None:
    done = node.run(plan(call("meddles")))
    assert limit.read_text() == "700"
    assert WHAT + "restored" in done.result.notes
    assert not (node.work / FILE).exists()


def test_without_changes_there_are_no_notes(node: Node, limit: Path) -> None:
    done = node.run(plan(call("good")))
    assert limit.read_text() == "700"
    assert not any("power_limit" in note for note in done.result.notes)


def test_settings_are_restored_when_the_job_is_ended(node: Node, limit: Path) -> None:
    running = node.start(plan(call("meddles", 60.0, hang=True)))
    running.wait_for_progress("has set a limit")
    done = running.end(signal.SIGTERM)
    assert (done.result.end, limit.read_text()) == ("terminated", "700")
    assert WHAT + "restored" in done.result.notes


def test_the_next_job_restores_settings_when_the_agent_was_killed(node: Node, limit: Path) -> None:
    running = node.start(plan(call("meddles", 60.0, hang=True)))
    running.wait_for_progress("has set a limit")
    running.end(signal.SIGKILL)
    assert limit.read_text() == "500"

    done = node.run(plan(call("meddles"), job_id="job-2"))
    assert any(note.endswith(f"{WHAT}restored") for note in done.result.notes)
    assert limit.read_text() == "700"
    assert not (node.work / FILE).exists()


def test_a_clock_that_was_set_back_meanwhile_keeps_no_setting(node: Node, limit: Path) -> None:
    running = node.start(plan(call("meddles", 60.0, hang=True)))
    running.wait_for_progress("has set a limit")
    running.end(signal.SIGKILL)
    node.run(plan(call("meddles"), job_id="job-2"), env={"FAKE_SET_BACK_S": "3600"})
    assert limit.read_text() == "700"


@pytest.mark.parametrize("change", ["another boot", "long ago", "from the future", "nonsense"])
def test_settings_files_from_long_ago_or_an_earlier_boot_are_ignored(node: Node, limit: Path, change: str) -> None:
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


def test_a_setting_that_cannot_be_restored_is_noted(node: Node, limit: Path) -> None:
    done = node.run(plan(call("meddles")), env={"FAKE_PUT_BACK": "refused"})
    assert any(f"{WHAT}not restored" in note for note in done.result.notes)
    assert (done.result.end, limit.read_text()) == ("completed", "500")
