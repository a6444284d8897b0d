"""A noisy test in whole runs of the DAG: it is repeated alone, and both runs are weighed, reported and replayed.

The node side is a stand-in that claims what the test lets it claim; stages before are passed by decree.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from muster import store
from muster.judging.reevaluate import reevaluate
from muster.model.runs import RunKey
from muster.operators.testing import remote_job
from muster.remote.job import jobs, outcome
from muster.remote.job.zipapp import AgentFile
from muster_criteria.model import Coverage, Judgement, Verdict
from muster_criteria.stage import judge as judging
from muster_criteria.stage.case import Case
from muster_node.contract import Plan
from tests.dags.conftest import NODE, dag_of
from tests.support import airflow_home, standin
from tests.support.servers import sshd

pytestmark = pytest.mark.needs_sshd

DAG_ID = "node_qualification"
SHIPPED = airflow_home.ROOT / "validators" / "skus"
GOOD, BAD = 600.0, 400.0
"""MB/s, around a floor of 500."""
FIRST = f"{remote_job.RETRIES}.0"
"""The first attempt at a stage."""
LIMIT = """
figures:
  - metric: disk_write_rate
    device: disk
    unit: MB/s
    best: 900
    source: "any CPU: for a test"
    date: 2026-11-21
    stack: not stated
limits:
  - metric: disk_write_rate
    device: disk
    unit: MB/s
    floor: 500
    fault: disk
    action: inspect
    meaning: writes too slowly
    source: "derived: for a test"
    date: 2026-11-21
    stack: not stated
"""


@pytest.fixture
def node(airflow_db: None, server: sshd.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sshd.Sshd:
    """A node of a model of which two tests may be repeated, and that of the disk has a floor."""
    folder = tmp_path / "skus"
    (folder / "programmes").mkdir(parents=True)
    programme = (SHIPPED / "programmes" / "cpu-node.yaml").read_text()
    assert programme.count("      disk:\n") == 1
    for probe, may in (("disk", "sequential: true"), ("memory_bandwidth", "retest: [demo]")):
        programme = programme.replace(f"      {probe}:\n", f"      {probe}:\n        {may}\n")
    (folder / "programmes" / "cpu-node.yaml").write_text(programme)
    text = (SHIPPED / "cpu-generic.yaml").read_text()
    assert text.count("\nlimits:\n") == 1
    (folder / "cpu-generic.yaml").write_text(text.replace("\nlimits:\n", LIMIT))
    monkeypatch.setenv("MUSTER_SKU_PATH", str(folder))
    monkeypatch.setenv("MUSTER_RETRY_SECONDS", "0.1")
    path, sha256 = standin.write(tmp_path / "cache")
    monkeypatch.setattr(remote_job, "build_agent", lambda _: AgentFile(path, sha256))
    real = judging.judge

    def judge(case: Case) -> Judgement:
        if case.stage == "performance":
            return real(case)
        sku = case.sku
        return Judgement(
            case.stage, case.level, Verdict.PASS, "by decree", Coverage(1, 1, 1), (), (), False, sku.name, sku.revision
        )

    monkeypatch.setattr(judging, "judge", judge)
    return server


RATE: dict[str, Any] = {
    "probe": "disk", "metric": "disk_write_rate", "device": "disk:scratch", "unit": "MB/s", "text": None, "labels": {},
    "samples": 1, "spread": None, "note": "",
}  # fmt: skip


def rate(value: float) -> list[dict[str, Any]]:
    return [{**RATE, "value": value}]


def qualify(server: sshd.Sshd, *runs: float | None) -> str:
    """One run of the DAG, in which the disk test gives these figures, one after the other; None: it tells none."""
    standin.behave(server.home, performance={"measured": [[] if value is None else rate(value) for value in runs]})
    return dag_of(DAG_ID).test(run_conf={"node": NODE, "level": "demo", "reason": "a test"}).run_id


def test_a_failure_is_asked_for_again_and_the_second_one_fails(
    node: sshd.Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[Plan] = []
    start = jobs.start

    def noted(client: Any, seen: Any, key: str, plan: str, *more: Any) -> None:
        plans.append(Plan.from_json(plan))
        start(client, seen, key, plan, *more)

    monkeypatch.setattr(jobs, "start", noted)
    run_id = qualify(node, BAD, BAD)

    sent = [[call.probe for call in plan.probes] for plan in plans if plan.stage == "performance"]
    assert len(sent[0]) > 1
    assert sent[1:] == [["inventory", "disk", "device_events"]], "what was asked for alone, and what watches its load"
    assert [plan.repeat for plan in plans if plan.stage == "performance"] == [False, True]
    first = store.runs.get_job(RunKey(DAG_ID, run_id), "performance", FIRST)
    again = store.runs.get_job(RunKey(DAG_ID, run_id), "performance")
    assert first is not None
    assert again is not None
    assert (first.state, again.attempt_key, again.state) == (outcome.REPEAT, f"{FIRST}r1", outcome.FINAL)
    assert (first.repeat_probes, again.repeat_probes) == (("disk",), ())
    judged = performance(run_id)
    assert judged.verdict is Verdict.FAIL
    (finding,) = [each for each in judged.findings if each.metric == "disk_write_rate"]
    assert "2 of 2 runs failed: 400 MB/s (failed), 400 MB/s (failed)" in finding.summary
    (row,) = reevaluate(store.runs.get(RunKey(DAG_ID, run_id)), stage="performance")
    assert row.differences == ()


@pytest.mark.slow
def test_a_test_that_passes_again_goes_on_until_it_is_decided(node: sshd.Sshd) -> None:
    run_id = qualify(node, BAD, GOOD, BAD)
    (finding,) = [each for each in performance(run_id).findings if each.metric == "disk_write_rate"]
    assert "2 of 3 runs failed: 400 MB/s (failed), 600 MB/s, 400 MB/s (failed)" in finding.summary
    assert standin.started(node.home).count("performance") == 3


@pytest.mark.slow
def test_a_repeat_that_tells_nothing_decides_nothing_and_does_not_go_on_for_ever(node: sshd.Sshd) -> None:
    run_id = qualify(node, BAD, None)
    assert performance(run_id).verdict is Verdict.INCONCLUSIVE
    assert standin.started(node.home).count("performance") == 4, "one repeat, then as often as Airflow tries a stage"


def test_what_the_fleet_doubts_is_run_once_more_and_judged_with_both(
    node: sshd.Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged_by: list[tuple[tuple[str, ...], ...]] = []
    judge = judging.judge

    def doubting(case: Case) -> Judgement:
        judgement = judge(case)
        if case.stage != "performance":
            return judgement
        judged_by.append(tuple(tuple(end.probe for end in other.probes) for other in case.others))
        again = () if case.others else ("memory_bandwidth",)
        return dataclasses.replace(judgement, verdict=Verdict.WARN, repeat=again)

    monkeypatch.setattr(judging, "judge", doubting)
    monkeypatch.setitem(RATE, "probe", "memory_bandwidth")
    run_id = qualify(node, GOOD, GOOD)
    assert judged_by == [(), (("inventory", "memory_bandwidth", "device_events"),)]
    job = store.runs.get_job(RunKey(DAG_ID, run_id), "performance", FIRST)
    assert job is not None
    assert (job.state, job.repeat_probes) == (outcome.REPEAT, ("memory_bandwidth",))
    assert standin.started(node.home).count("performance") == 2


def performance(run_id: str) -> Judgement:
    report = store.reporting.run(RunKey(DAG_ID, run_id))
    return next(each.judgement for each in report.stages if each.judgement.stage == "performance")
