"""The main job itself, unattended, as a user runs it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import store
from muster_criteria.model import Verdict
from muster_demo import watchdog
from muster_demo.draw import draw_faults, node_names
from muster_demo.outcome import read_mails
from muster_demo.scoring import NAMED_BY
from muster_reports.model import RunReport
from tests.conftest import HANGS_S
from tests.muster_demo.started import Demo

SEED = 1
MAILS = 8 + 3 + 3 + 1
"""One for each qualification, for each healthy node that is judged again by its peers, for each of them as a member of
a block, and for the test that proves a repair. Each revalidation that did not give way to a user's job has one too: the
demo starts two, and on a slow machine the DAG's schedule another."""

pytestmark = [pytest.mark.slow, pytest.mark.needs_torch, pytest.mark.needs_slurm, pytest.mark.early(1)]


def test_unattended_it_finds_every_fault_and_takes_everybody_else_into_service(
    start: Callable[..., Demo], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests share its cores: it gives up shortly before its test would.
    demo, faults = start("--exit", "--seed", str(SEED), "--time-limit", str(HANGS_S - 200)), draw_faults(SEED)
    status = demo.process.wait()
    printed, directory = demo.printed(), demo.directory
    assert status == 0, printed
    assert "checks hold" in printed
    for fault in faults:
        assert fault.node in printed
        assert fault.device in printed
    serving, bad, spare = sorted(set(node_names()) - {fault.node for fault in faults})
    for node in (serving, spare):
        assert f"{node} entered production by itself" in printed
        assert f"Slurm: a user's job ran on {node}" in printed
    assert "its test is given up" in printed
    assert "Its repair: reset_gpu: succeeded; proved by the tests that can see it." in printed
    with sqlite3.connect(directory / "airflow" / "airflow.db") as airflow:
        notes = [str(note) for (note,) in airflow.execute("SELECT content FROM dag_run_note")]
        ended = "SELECT run_id FROM dag_run WHERE dag_id = 'node_revalidation' AND state IN ('success', 'failed')"
        over = {run for (run,) in airflow.execute(ended)}
    lines = [line for note in notes for line in note.splitlines()]
    for fault in faults:
        assert any(line.startswith(f"[simulated] {fault.node}: FAIL: ") for line in lines), notes
    assert watchdog.marked(str(directory)) == []
    reports = _reports(directory, monkeypatch)
    judged = [stage.judgement for report in reports if report.node == bad for stage in report.stages]
    assert set(NAMED_BY.values()) <= {finding.rule for each in judged for finding in each.findings}
    revalidations = [report for report in reports if report.dag_id == "node_revalidation"]
    assert len(revalidations) >= 2
    tested = [report for report in revalidations if report.verdict is not Verdict.SKIPPED]
    mailed = len([report for report in tested if report.run_id in over])
    # A test that was under way when the demo ended may have its mail already.
    assert MAILS + mailed <= len(read_mails(directory / "mail")) <= MAILS + len(tested)
    times = _busy_times(reports)
    host = [time for time in times if time[2]]
    assert len(host) == 4
    for begin, end, _real, what in host:
        beside = [other for *when, real, other in times if not real and when[0] < end and when[1] > begin]
        assert not beside, f"{what} was measured beside {', '.join(beside)}"


def _reports(directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunReport]:
    """The reports of every node's runs."""
    monkeypatch.setenv("MUSTER_HOME", str(directory / "muster"))
    store.engine.dispose()
    found = [store.reporting.run(run.key, node=run.node) for run in store.runs.find()]
    store.engine.dispose()
    return found


def _busy_times(reports: list[RunReport]) -> list[tuple[float, float, bool, str]]:
    """(begin, end, whether real, what) of every job that loaded a node, by the nodes' own results."""
    times = []
    for report in reports:
        for stage in report.stages:
            if stage.judgement.stage != "intake" and stage.started_at is not None:
                begin = stage.started_at.timestamp()
                what = f"{report.node} {stage.judgement.stage}"
                times.append((begin, begin + (stage.duration_s or 0.0), not report.simulated, what))
    return times
