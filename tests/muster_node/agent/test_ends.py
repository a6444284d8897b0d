"""How a job ends early: SIGTERM, its deadline, newer work, a machine in use, an agent that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster_node.agent import guard
from muster_node.agent.stop import Stop
from muster_node.hardware.seam import Usage
from tests.muster_node.agent.harness import MAIN, STUCK, Node, alive, call, plan, wait_for

BUSY = {"FAKE_USAGE": json.dumps({"busy_processes": ["trainer (process 77) uses 98 % of a core"], "users": ["eve"]})}


@pytest.mark.parametrize("probe", ["hangs", "stubborn"])
def test_sigterm_ends_it_with_what_it_has(node: Node, probe: str) -> None:
    running = node.start(plan(call("good"), call(probe, 60.0), call("good", value=9.0)))
    running.wait_for_progress("ignoring SIGTERM" if probe == "stubborn" else "hanging")
    children = running.children()
    done = running.end(signal.SIGTERM)
    assert done.rc == 6
    assert (done.result.end, done.result.partial) == ("terminated", True)
    assert [outcome.status for outcome in done.result.probes] == ["completed", "skipped", "skipped"]
    assert all("preempted" in outcome.reason for outcome in done.result.probes[1:])
    assert [row.value for row in done.measured(probe)] == [42]
    assert not any(alive(pid) for pid in children)


def test_what_was_found_wrong_before_a_preemption_is_kept(node: Node) -> None:
    """Also by a process that the probe forked, and of a device that hangs afterwards; a later figure replaces it."""
    running = node.start(plan(call("corrupts", 60.0)))
    running.wait_for_progress("corrupted")
    done = running.end(signal.SIGTERM)
    assert [outcome.status for outcome in done.result.probes] == ["skipped"]
    rows = [row for row in done.measured("corrupts") if row.metric == "wrong"]
    assert {(row.device, row.labels.get("dtype", ""), row.value) for row in rows} == {
        ("gpu0", "", 2.0),
        ("gpu1", "", 1.0),
        ("gpu2", "", 5.0),
        ("gpu3", "bf16", 1.0),
        ("gpu3", "fp16", 0.0),
        ("node", "", 3.0),
    }
    assert len(rows) == 6
    assert [row.note for row in rows if row.device == "gpu1"] == ["one bit; gpu1 hangs"]


@pytest.fixture
def tool(tmp_path: Path) -> Callable[[str, float], Path]:
    """Makes a tool that writes "stopped" next to itself so long (s) after SIGTERM. dcgmi does as its source has it
    (NVIDIA's dcgmi/Diag.cpp): it has DCGM's service stop the diagnosis, which may take seconds.
    """

    def made(name: str, delay_s: float) -> Path:
        path = tmp_path / name
        path.write_text(
            f"#!{sys.executable}\nimport pathlib, signal, sys, time\n"
            "def stop(*_):\n"
            f"    time.sleep({delay_s})\n    pathlib.Path(__file__ + '.stopped').touch()\n    sys.exit(1)\n"
            "signal.signal(signal.SIGTERM, stop)\n"
            "pathlib.Path(__file__ + '.runs').touch()\n"
            "time.sleep(3600)\n"
        )
        path.chmod(0o755)
        return path

    return made


@pytest.mark.parametrize(
    ("name", "delay_s", "how"),
    [
        ("another", 0.0, "stop"),
        ("dcgmi", 1.5, "stop"),
        ("dcgmi", 1.5, "time limit"),
        ("dcgmi", 1.5, "agent killed"),
        ("dcgmi", 1.5, "agent stuck"),
    ],
)
def test_a_tool_can_end_what_it_had_started_elsewhere(
    node: Node, tool: Callable[[str, float], Path], name: str, delay_s: float, how: str
) -> None:
    path = tool(name, delay_s)
    runs, stopped = Path(f"{path}.runs"), Path(f"{path}.stopped")
    limit_s = 4.0 if how == "time limit" else 60.0
    running = node.start(plan(call("asks", limit_s, tool=str(path)), fence=5, job_id="old"))
    wait_for(runs.exists)
    if how == "stop":
        assert running.end(signal.SIGTERM, limit_s=10.0).rc == 6
    elif how == "time limit":
        assert running.end().outcome("asks").status == "timed_out"
    elif how == "agent killed":
        running.end(signal.SIGKILL)
    else:
        os.kill(running.agent, signal.SIGSTOP)
        assert node.run(plan(call("good"), fence=6)).rc == 0
    wait_for(stopped.exists)


def test_every_step_after_a_stop_shares_what_remains_of_two_seconds() -> None:
    """A driver that hangs in each of them uses up each step's patience."""
    now = 100.0
    stop = Stop(60.0, lambda: now)
    stop.watch(lambda: True)
    assert stop.patience_s(30.0, 1.2) == 30.0
    now += 1.0
    begun = now
    for usual, hurried in [(0.5, 0.9), (0.5, 0.2), (2.0, 0.1), (30.0, 1.2), (0.5, 0.2)]:
        now += stop.patience_s(usual, hurried)
    assert now - begun <= 2.0


def test_sigterm_counts_while_the_hardware_does_not_answer(node: Node) -> None:
    running = node.start(plan(call("good")), env={"FAKE_OPEN": "hangs"})
    wait_for((running.job / "progress.jsonl").exists)
    done = running.end(signal.SIGTERM)
    assert done.result.end == "terminated"


def test_the_node_itself_enforces_the_deadline(node: Node) -> None:
    done = node.run(plan(call("good"), call("hangs", 60.0), call("good"), deadline_s=1.5))
    assert done.rc == 7
    assert (done.result.end, done.result.partial) == ("deadline", True)
    assert [outcome.status for outcome in done.result.probes] == ["completed", "timed_out", "skipped"]


def test_a_job_that_ends_by_itself_at_the_last_moment_is_complete(node: Node) -> None:
    done = node.run(plan(call("good", seconds=0.2), deadline_s=30.0))
    assert (done.rc, done.result.end, done.result.partial) == (0, "completed", False)


def test_no_process_of_a_killed_agent_survives(node: Node, tmp_path: Path) -> None:
    pid_file = tmp_path / "escaped"
    running = node.start(plan(call("escapes", 60.0, hang=True, pid_file=str(pid_file))))
    running.wait_for_progress("got away")
    processes = {running.agent, *running.children(), int(pid_file.read_text())}
    assert len(processes) == 4  # the agent, its watchdog, the probe, and the process that got away from it
    running.end(signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in processes), 5)


@pytest.mark.parametrize(
    ("words", "probe", "number"), [("usage", "", 0), ("run plan.json", "good", 0), ("run plan.json", "hangs", 9)]
)
def test_a_command_ends_for_its_caller_though_a_thread_of_it_cannot(
    node: Node, words: str, probe: str, number: int
) -> None:
    (node.folder / "plan.json").write_text(plan(call(probe or "good")).to_json())
    command = [sys.executable, str(STUCK), str(node.folder), str(number), sys.executable, str(MAIN), *words.split()]
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout)
    if seen is None:
        pytest.skip("no process may be traced here")
    assert seen == {"rc": 128 + number if number else 0, "end_of_output": number == 0, "thread_left": True}


def test_an_agent_that_passes_its_deadline_is_killed_by_its_watchdog(tmp_path: Path) -> None:
    code = """
import os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from muster_node.agent import orphans
orphans.Watchdog.start("m", 0.5)
child = subprocess.Popen(["sleep", "3600"], env={**os.environ, "MUSTER_RUN": "m"}, start_new_session=True)
print(child.pid, flush=True)
time.sleep(3600)
"""
    source = str(MAIN.parents[4] / "validators")
    stuck = subprocess.Popen([sys.executable, "-c", code, source], stdout=subprocess.PIPE, text=True)
    assert stuck.stdout is not None
    child = int(stuck.stdout.readline())
    assert stuck.wait(timeout=10) == -signal.SIGKILL
    wait_for(lambda: not alive(child), 5)
    stuck.stdout.close()


def test_an_older_token_is_refused(node: Node) -> None:
    assert node.run(plan(call("good"), fence=7)).rc == 0
    done = node.run(plan(call("good"), fence=6))
    assert done.rc == 4
    assert (done.result.end, done.result.partial) == ("fenced", True)
    assert done.outcome("good").status == "skipped"
    assert not done.result.measurements
    assert node.run(plan(call("good"), fence=7)).rc == 0


def test_a_newer_token_ends_older_work(node: Node) -> None:
    older = node.start(plan(call("stubborn", 60.0), fence=5, job_id="old"))
    older.wait_for_progress("ignoring SIGTERM")
    newer = node.run(plan(call("good"), fence=6, job_id="new"))
    assert newer.rc == 0
    assert any(note.startswith("older work was ended: job old (token 5, pid ") for note in newer.result.notes)
    ended = older.end()
    assert ended.rc == 4
    assert ended.result.end == "fenced"
    assert [row.value for row in ended.measured("stubborn")] == [42]


def test_older_work_that_does_not_move_is_killed_with_its_children(node: Node) -> None:
    older = node.start(plan(call("stubborn", 60.0), fence=5, job_id="old"))
    older.wait_for_progress("ignoring SIGTERM")
    children = older.children()
    os.kill(older.agent, signal.SIGSTOP)
    assert node.run(plan(call("good"), fence=6)).rc == 0
    assert older.end().rc == 128 + signal.SIGKILL
    wait_for(lambda: not any(alive(pid) for pid in children), 5)


def test_work_that_may_not_be_signalled_sees_the_newer_token_itself(node: Node) -> None:
    older = node.start(plan(call("hangs", 60.0), fence=5))
    older.wait_for_progress("hanging")
    (node.work / "fence").write_text("9\n")
    ended = older.end(limit_s=6)
    assert (ended.rc, ended.result.end) == (4, "fenced")


def test_one_job_at_a_time(node: Node) -> None:
    first = node.start(plan(call("hangs", 60.0), job_id="first"))
    first.wait_for_progress("hanging")
    second = node.run(plan(call("good"), job_id="second"))
    assert (second.rc, second.result.end) == (3, "busy")
    assert "first" in second.result.notes[0]
    assert first.end(signal.SIGTERM).rc == 6
    assert node.run(plan(call("good"))).rc == 0


def test_the_same_job_twice_leaves_the_first_alone(node: Node) -> None:
    first = node.start(plan(call("hangs", 60.0)), job="same")
    first.wait_for_progress("hanging")
    again = node.start(plan(call("hangs", 60.0)), job="same").end()
    assert again.rc == 9
    done = first.end(signal.SIGTERM)
    assert (done.rc, done.result.end) == (6, "terminated")


def test_a_fence_that_cannot_be_read_refuses_every_job(node: Node) -> None:
    node.work.mkdir()
    (node.work / "fence").write_text("seven")
    done = node.run(plan(call("good")))
    assert done.rc == 4


def test_a_machine_in_use_is_not_loaded(node: Node) -> None:
    done = node.run(plan(call("good"), call("loader")), env=BUSY)
    assert done.rc == 3
    assert done.result.end == "busy"
    assert done.result.guard.busy
    assert done.result.notes[0].startswith(
        "this machine is in use: busy processes: trainer (process 77) uses 98 % of a core; logged in: eve; load average"
    )
    assert not done.result.measurements


def test_a_foreign_gpu_process_is_use() -> None:
    use = guard.assess(Usage(gpu_processes=("python (pid 9) on gpu3",), load_1min=0.1, cpu_count=64))
    assert use.busy
    assert "pid 9" in use.sentence()


WEKA = "wekanode (process 42) uses 99 % of a core"


@pytest.mark.parametrize(("usage", "busy"), [
    (Usage(busy_processes=(WEKA,)), False),
    (Usage(busy_processes=("ovs-vswitchd-of (process 43) uses 99 % of a core",)), False),  # the kernel cuts names
    (Usage(busy_processes=(WEKA, "python (process 9) uses 98 % of a core")), True),
    (Usage(busy_processes=(WEKA,), gpu_processes=("wekanode (pid 42) on gpu3",)), True),
    (Usage(busy_processes=("wekanodes (process 44) uses 99 % of a core",)), True),
])  # fmt: skip
def test_a_daemon_that_polls_by_design_is_no_use_and_hides_none(usage: Usage, busy: bool) -> None:
    use = guard.assess(usage, ("wekanode", "ovs-vswitchd-of-ours"))
    assert use.busy is busy
    assert any("MUSTER_BUSY_DAEMONS" in each for each in use.evidence) is ("wekanodes" not in usage.busy_processes[0])
    assert guard.assess(usage).busy


def test_the_plan_names_daemons_that_are_no_use(node: Node) -> None:
    done = node.run(plan(call("loader"), busy_daemons=("trainer",)), env=BUSY)
    assert (done.rc, done.result.guard.busy) == (0, False)


def test_a_briefly_busy_process_is_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    class Passing:
        """Busy at the first look only."""

        looks = 0

        def usage(self) -> Usage:
            self.looks += 1
            return Usage(busy_processes=("cron job",) if self.looks == 1 else ())

    monkeypatch.setattr(guard, "PAUSE_S", 0.01)
    passing: Any = Passing()
    assert not guard.look(passing, patient=True).busy
    assert passing.looks == 2


def test_force_goes_on_and_is_recorded(node: Node) -> None:
    done = node.run(plan(call("loader"), force_reason="agreed with eve"), env=BUSY)
    assert (done.rc, done.result.end) == (0, "completed")
    assert done.measured("loader")
    assert done.result.guard.busy
    assert "agreed with eve" in done.result.guard.evidence[-1]
    assert any("agreed with eve" in note for note in done.result.notes)


def test_probes_that_load_nothing_run_on_a_machine_in_use_which_is_recorded(node: Node) -> None:
    done = node.run(plan(call("good")), env=BUSY)
    assert done.rc == 0
    assert done.result.guard.busy


def test_a_login_that_does_nothing_and_a_load_average_are_not_use(node: Node) -> None:
    idle = {"FAKE_USAGE": '{"users": ["eve on pts/0"], "load_1min": 64.0, "cpu_count": 64}'}
    done = node.run(plan(call("loader")), env=idle)
    assert done.rc == 0
    assert not done.result.guard.busy
    assert any("eve on pts/0" in each for each in done.result.guard.evidence)


def test_a_machine_whose_usage_cannot_be_read_counts_as_in_use(node: Node) -> None:
    done = node.run(plan(call("loader")), env={"FAKE_USAGE": "raises"})
    assert (done.rc, done.result.end) == (3, "busy")
    assert "no utmp" in done.result.notes[0]


def test_hardware_that_does_not_open_is_an_error_with_a_result(node: Node) -> None:
    done = node.run(plan(call("good")), env={"FAKE_OPEN": "raises"})
    assert (done.rc, done.result.end) == (8, "error")
    assert "RuntimeError" in done.result.notes[0]


def test_a_bad_plan_is_one_sentence_and_exit_5(node: Node) -> None:
    path = node.folder / "plan.json"
    path.write_text(plan(call("good"), deadline_s=-1).to_json())
    done = node.command("run", str(path))
    assert done.returncode == 5
    assert len(done.stderr.splitlines()) == 1
    assert not (node.folder / "result.json").exists()


def test_a_plan_from_elsewhere_is_kept_in_the_job_directory(node: Node) -> None:
    path = node.folder / "mine.json"
    path.write_text(plan(call("good")).to_json())
    job = node.folder / "elsewhere"
    assert node.command("run", str(path), "--job-dir", str(job)).returncode == 0
    assert (job / "plan.json").read_text() == path.read_text()
    assert (job / "result.json").exists()
