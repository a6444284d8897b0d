"""A fleet judged by its own records, and its verdicts re-evaluated by the cited references or by others."""

from __future__ import annotations

import dataclasses
import datetime
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from sqlalchemy import select, update
from syrupy.assertion import SnapshotAssertion

from muster import store
from muster.errors import MusterError, NodeLeased, UnknownRevision
from muster.judging import verdict
from muster.judging.case import NO_PEERS, Collected, fresh_case, stored_case
from muster.judging.proposal import propose
from muster.judging.reevaluate import differences, reevaluate
from muster.judging.references import metrics
from muster.model.runs import Run, RunKey
from muster.model.stages import STAGES
from muster.operators import provisional, statistics
from muster.reporting import sending
from muster.store.database.engine import writing
from muster.store.database.models import MeasurementRow, StageRow
from muster_criteria.chassis import Chassis
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.model import Coverage, Evidence, Judgement, Verdict
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import SHIPPED, load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge
from tests.muster import fleet
from tests.muster.cli.conftest import muster  # noqa: F401 - a fixture
from tests.muster_criteria.nodes import healthy_raw
from tests.support.wording import refused

SKU, STAGE, LEVEL = "h100-sxm-8", "performance", "demo"
SLOW = "memory_bandwidth"
NODES = 9
DAG = fleet.DAG

Muster = Callable[..., "tuple[int, str, str]"]


@pytest.fixture(scope="module")
def sku() -> Sku:
    return load_sku(SKU)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, sku: Sku) -> Path:
    """Nine healthy nodes after three visits each, and a snapshot made of them; then gpu3 of n0 has become slow, though
    not below its floor. Worked out once.
    """
    home = tmp_path_factory.mktemp("replayed")
    shutil.copy(sqlite_template, home / "muster.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_HOME", str(home))
        patch.delenv("MUSTER_DATABASE_URL", raising=False)
        for number in range(NODES):
            store.nodes.add(fleet.new_node(f"n{number}", sku=SKU))
        for visit in range(3):
            for number in range(NODES):
                visited(f"n{number}", sku, f"visit {visit}", verdict_of=passed(sku))
        statistics.recompute()
        visited("n0", sku, "slow", slow={"gpu3": 0.96})
        store.engine.dispose()
    return home / "muster.db"


@pytest.fixture
def judged(template: Path, sqlite_db: str, muster_home: Path) -> str:
    """Such a fleet; gives the run that found the slow GPU."""
    store.engine.dispose()
    shutil.copy(template, muster_home / "muster.db")
    return "n0__slow"


def passed(sku: Sku) -> Judgement:
    """The judgement of a visit that only has to be in the records."""
    return Judgement(STAGE, LEVEL, Verdict.PASS, "by decree", Coverage(1, 1, 1), (), (), False, sku.name, sku.revision)


def visited(
    node: str, sku: Sku, run: str, slow: dict[str, float] | None = None, *, verdict_of: Judgement | None = None
) -> Judgement:
    """One more visit, judged by the records (unless ``verdict_of`` is given) and recorded, as the stage's task does."""
    result, raw = measured(sku, f"{node} {run}", node, slow or {})
    lease = fleet.begin(node, f"{node}__{run}")
    begun = dataclasses.replace(store.runs.get(RunKey(DAG, lease.run_id)), level=LEVEL)
    stage = verdict_of or fresh_case(begun, store.nodes.get(node), sku, STAGE, Collected(result))
    verdict_of = verdict.record(lease.key, stage, store.stages.Sent(result, raw)).judgement
    store.runs.finish(RunKey(DAG, lease.run_id), Verdict.WARN, "so it is")
    store.leases.release(RunKey(DAG, lease.run_id), "over")
    return verdict_of


def measured(sku: Sku, seed: str, node: str, slow: dict[str, float]) -> tuple[StageResult, bytes]:
    """A healthy result with half a percent of noise for each figure, and some devices' memory slower by a factor."""
    raw: dict[str, Any] = healthy_raw(sku, STAGE, LEVEL) | {"node": node}
    for figure in raw["measurements"]:
        if figure["metric"] in metrics(sku) and figure["value"] is not None:
            chance = random.Random(f"{seed} {figure['metric']} {figure['device']} {sorted(figure['labels'].items())}")
            figure["value"] *= 1 + chance.gauss(0, 0.004)
            figure["value"] *= slow.get(figure["device"], 1.0) if figure["metric"] == SLOW else 1.0
    sent = json.dumps(raw).encode()
    return parse_result(sent), sent


def snapshot() -> str:
    latest = store.peers.latest(SKU, LEVEL, simulated=False)
    assert latest is not None
    return latest.version


def test_the_verdict_cites_the_snapshot_that_separates_the_slow_gpu_from_its_peers(judged: str) -> None:
    (stage,) = store.reporting.run(RunKey(DAG, judged)).stages
    assert stage.judgement.snapshot == snapshot()
    (kept,) = store.peers.find()
    assert (kept.sku, kept.level, kept.nodes, kept.simulated) == (SKU, LEVEL, NODES, False)
    blamed = [found for found in stage.judgement.findings if found.metric == SLOW and found.device == "gpu3"]
    assert blamed
    assert all(found.measurements and 0 < found.confidence <= 1 for found in blamed)


def test_by_the_cited_references_the_outcome_is_the_record(judged: str, sku: Sku) -> None:
    statistics.recompute()
    visited("n0", sku, "later")
    (again,) = reevaluate(store.runs.by_id(judged))
    assert again.outcome is not None
    assert again.differences == ()
    assert again.outcome.snapshot == again.recorded.snapshot
    assert again.outcome.findings == again.recorded.findings


def test_a_fresh_result_and_its_stored_copy_make_the_same_case(judged: str, sku: Sku) -> None:
    result, raw = measured(sku, "n0 again", "n0", {"gpu3": 0.96})
    lease = fleet.begin("n0", "n0__again")
    run = dataclasses.replace(store.runs.get(RunKey(DAG, lease.run_id)), level=LEVEL)
    evidence = (Evidence("lost_under_load_twice", "It was lost twice."),)
    collected = Collected(result, Chassis(trouble="the BMC does not answer"), evidence=evidence)
    fresh = fresh_case(run, store.nodes.get("n0"), sku, STAGE, collected)
    sent = store.stages.Sent(fresh.result, raw, chassis=collected.chassis.to_json().encode())
    verdict_of = verdict.record(lease.key, fresh, sent).judgement
    store.runs.finish(RunKey(DAG, lease.run_id), Verdict.WARN, "over")
    store.leases.release(RunKey(DAG, lease.run_id), "over")
    statistics.recompute()
    kept = store.raw.stage_bytes(RunKey(DAG, lease.run_id), STAGE)
    assert kept is not None
    assert kept.result is not None
    assert kept.chassis is not None
    assert kept.recorded_at is not None
    again = Collected(parse_result(kept.result), Chassis.from_json(kept.chassis), evidence=evidence)
    stored = stored_case(store.runs.by_id(lease.run_id), sku, verdict_of, again, kept.recorded_at, "")
    assert history(fresh) == history(stored)
    alike = {field.name for field in dataclasses.fields(Case)} - {"references"}
    assert {name: getattr(fresh, name) for name in alike} == {name: getattr(stored, name) for name in alike}
    (outcome,) = reevaluate(store.runs.by_id(lease.run_id))
    assert outcome.differences == ()


def history(case: Case) -> tuple[str, str]:
    """The snapshot's version, and the node's earlier visits as text."""
    assert case.references is not None
    assert case.references.history is not None
    return case.references.snapshot.version, case.references.history.series.to_csv()


def test_without_peers_it_would_not_be_known(judged: str) -> None:
    (again,) = reevaluate(store.runs.by_id(judged), as_of=NO_PEERS)
    assert any(sentence.startswith("no longer found") and "gpu3" in sentence for sentence in again.differences)
    assert again.outcome is not None
    assert again.outcome.snapshot == ""


def test_by_other_sku_files_a_floor_may_be_broken(judged: str, tmp_path: Path) -> None:
    folder = tmp_path / "skus"
    shutil.copytree(SHIPPED, folder)
    file = folder / f"{SKU}.yaml"
    file.write_text(file.read_text().replace("floor: 2610", "floor: 2800"))
    (again,) = reevaluate(store.runs.by_id(judged), skus=str(folder))
    assert any(sentence.startswith("found now (critical): gpu3") for sentence in again.differences)
    assert again.outcome is not None
    assert again.outcome.sku_version != again.recorded.sku_version


def test_wording_of_what_cannot_be_reevaluated(
    judged: str,
    muster: Muster,  # noqa: F811
    tmp_path: Path,
    snapshot: SnapshotAssertion,
) -> None:
    run = store.runs.by_id(judged)
    refusals = [
        refused(reevaluate, run, as_of="x"),
        refused(reevaluate, run, skus="9").replace(run_revision(run), "REVISION"),
        refused(reevaluate, run, skus="no/where"),
        refused(reevaluate, run, skus=str(tmp_path)).replace(str(tmp_path), "FOLDER"),
        refused(reevaluate, run, stage="thermal"),
        refused(propose),
        refused(propose, skus=str(tmp_path)).replace(str(tmp_path), "FOLDER"),
    ]
    assert "\n".join(refusals) == snapshot
    status, _, err = muster("judge", "nobody__ran")
    assert (status, err) == (1, f"muster: {refused(store.runs.by_id, 'nobody__ran').partition(': ')[2]}\n")


def run_revision(run: Run) -> str:
    return store.reporting.run(run.key).stages[0].judgement.sku_version


def test_a_result_that_is_kept_no_longer_is_not_guessed(judged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    later = store.peers.find()[0].made_at.replace(year=2100)
    store.retention.apply(later)
    (again,) = reevaluate(store.runs.by_id(judged))
    assert (again.outcome, again.differences) == (None, ())
    assert again.why_not.startswith("no result of the node is stored")


def test_the_command_line_says_what_differs(judged: str, muster: Muster) -> None:  # noqa: F811
    status, out, _ = muster("judge", judged)
    assert status == 0
    assert "performance: the same" in out
    status, out, _ = muster("judge", judged, "--as-of", "none")
    assert "performance: no longer found" in out
    rows = json.loads(muster("judge", judged, "--as-of", snapshot(), "--json")[1])
    assert rows[0]["differences"] == []
    status, out, _ = muster("snapshots", "list")
    assert snapshot() in out


def test_statistics_are_made_anew_only_after_something_happened(judged: str, sku: Sku) -> None:
    assert len(statistics.recompute()) == 1, "n0 was tested since"
    assert statistics.recompute() == []
    visited("n1", sku, "again")
    assert len(statistics.recompute()) == 1


def test_what_changes_no_figure_makes_no_snapshot(judged: str) -> None:
    statistics.recompute()
    before = store.peers.find()
    store.signs.note_refusal("n0", "somebody works on it")
    assert statistics.recompute() == []
    assert store.peers.find() == before


def test_a_model_whose_statistics_cannot_be_made_leaves_those_of_the_others(judged: str, sku: Sku) -> None:
    """A device number beyond what statistics can hold, in the records of the model that comes first."""
    other = load_sku("a100-sxm-80gb-8")
    store.nodes.add(fleet.new_node("x", sku=other.name))
    visited("x", other, "first", verdict_of=passed(other))
    with writing() as session:
        of_x = select(StageRow.id).where(StageRow.sku == other.name)
        session.execute(update(MeasurementRow).where(MeasurementRow.stage.in_(of_x)).values(device="gpu99999"))
    before = snapshot()
    with pytest.raises(MusterError, match=other.name):
        statistics.recompute()
    assert snapshot() != before


def test_a_snapshot_that_cannot_be_read_stops_no_test_and_is_made_anew(
    judged: str, sku: Sku, caplog: pytest.LogCaptureFixture
) -> None:
    statistics.recompute()
    broken = dataclasses.replace(store.peers.load(snapshot(), SKU, LEVEL, simulated=False), version="broken")
    broken = dataclasses.replace(broken, made_at=broken.made_at.replace(year=2100))
    store.peers.keep(broken, SKU, LEVEL, simulated=False)
    assert visited("n1", sku, "again").snapshot == ""
    assert "judged without peers: snapshot broken cannot be used" in caplog.text
    assert len(statistics.recompute()) == 1


def test_a_snapshot_of_a_clock_that_was_ahead_is_replaced_once(judged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = store.clock.now() + datetime.timedelta(days=2)
    with monkeypatch.context() as ahead:
        ahead.setattr(store.clock, "now", lambda: wrong)
        statistics.recompute()
    assert statistics.recompute() == [snapshot()]
    assert statistics.recompute() == []


def test_where_nothing_is_compared_the_records_are_asked_nothing(
    judged: str, sku: Sku, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.peers, "latest", lambda *_, **__: pytest.fail("asked"))
    bare = sku.model_copy(update={"programme": sku.programme.model_copy(update={"compare": (), "derive": ()})})
    result, _ = measured(sku, "x", "n0", {})
    run, node = store.runs.by_id(judged), store.nodes.get("n0")
    assert fresh_case(run, node, bare, STAGE, Collected(result)).references is None
    intake = parse_result(json.dumps(healthy_raw(sku, "intake", LEVEL)).encode())
    assert fresh_case(run, node, sku, "intake", Collected(intake)).references is None


def test_what_two_judgements_say_differently() -> None:
    one = fleet.judgement(verdict=Verdict.FAIL, findings=(fleet.finding(), fleet.finding(device="gpu4")))
    other = dataclasses.replace(
        one, verdict=Verdict.WARN, reason="less bad", coverage=Coverage(2, 1, 1),
        findings=(fleet.finding(observed="500 TFLOPS"), fleet.finding(device="gpu5")),
    )  # fmt: skip
    assert list(differences(one, one)) == []
    assert list(differences(one, other)) == [
        "verdict FAIL → WARN: less bad",
        f"found otherwise (critical → critical): {fleet.FINDING.summary}",
        f"no longer found (critical): {fleet.FINDING.summary}",
        f"found now (critical): {fleet.FINDING.summary}",
        "required: 1 → 2",
    ]


def test_a_judgement_now_goes_by_the_waivers_of_now(judged: str, sku: Sku) -> None:
    failed = visited("n0", sku, "worse", slow={"gpu3": 0.6})
    assert failed.verdict is Verdict.FAIL
    run = store.runs.by_id("n0__worse")
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    (stage,) = store.reporting.run(RunKey(DAG, run.run_id)).stages
    for finding in stage.judgement.findings:
        store.waivers.give(finding.id, until, "Ada", "it goes back next week")
    (then,), (now,), (over,) = (
        reevaluate(run),
        reevaluate(run, waived_at=datetime.datetime.now(datetime.UTC)),
        reevaluate(run, waived_at=until),
    )
    assert [each.outcome and each.outcome.verdict for each in (then, now, over)] == [
        Verdict.FAIL, Verdict.WARN, Verdict.FAIL
    ]  # fmt: skip


def newcomer(sku: Sku, name: str, slow: dict[str, float] | None = None) -> str:
    """Returns the run of a node that qualified when no peers were known."""
    store.nodes.add(fleet.new_node(name, sku=SKU))
    lease = fleet.begin(name, f"{name}__new")
    for stage in STAGES:
        if stage != STAGE:
            fleet.do_stage(lease, stage)
            continue
        result, raw = measured(sku, name, name, slow or {})
        store.runs.begin_stage(lease.key, stage)
        fleet.record(lease.key, result, judge(Case(sku, result.stage, result.level, result)), raw)
    store.runs.finish(lease.key, Verdict.PROVISIONAL, "Nobody knows.")
    store.leases.release(lease.key, "over")
    return lease.run_id


def test_peers_settle_what_could_not_be_judged(
    judged: str, sku: Sku, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "ops@example.com")
    monkeypatch.setattr(sending, "deliver_mail", lambda key: sending.Delivery(0, 1, 0))
    well, odd = newcomer(sku, "well"), newcomer(sku, "odd", {"gpu3": 0.96})
    assert store.runs.get(RunKey(DAG, well)).verdict is Verdict.PROVISIONAL
    verdict_of = provisional.reevaluate_provisional()
    assert verdict_of["well"].startswith("PASS: All 5 stages passed, ")
    assert verdict_of["odd"].startswith("WARN: ")
    assert (store.runs.get(RunKey(DAG, well)).verdict, store.runs.get(RunKey(DAG, odd)).verdict) == (
        Verdict.PASS,
        Verdict.WARN,
    )
    found = [each.finding for each in store.verdicts.open_findings("odd") if each.finding.metric == SLOW]
    assert ("gpu3", "peers") in {(finding.device, finding.rule) for finding in found}
    assert [mail.key.split("/")[1] for mail in store.outbox.pending()] == [odd, well]
    (again,) = reevaluate(store.runs.get(RunKey(DAG, well)), stage=STAGE)
    assert again.differences == (), "it can be replayed like every verdict"
    assert provisional.reevaluate_provisional() == {}


def test_without_new_peers_nothing_is_stated(judged: str, sku: Sku, monkeypatch: pytest.MonkeyPatch) -> None:
    newcomer(sku, "well")
    monkeypatch.setattr(store.peers, "latest", lambda *_, **__: None)
    assert provisional.reevaluate_provisional() == {}
    assert store.runs.get(RunKey(DAG, "well__new")).verdict is Verdict.PROVISIONAL


def test_one_node_that_cannot_be_judged_again_keeps_no_other_from_it(
    judged: str, sku: Sku, monkeypatch: pytest.MonkeyPatch
) -> None:
    newcomer(sku, "broken")
    newcomer(sku, "taken")
    newcomer(sku, "well")
    original = store.reevaluations.record

    def record_reevaluation(run: Run, *changes: Any) -> Run:
        if run.node == "taken":
            raise NodeLeased("taken is leased by run x")
        if run.node == "broken":
            raise UnknownRevision("no revision 9 is kept")
        return original(run, *changes)

    monkeypatch.setattr(store.reevaluations, "record", record_reevaluation)
    with pytest.raises(AirflowFailException, match=r"^not re-evaluated: broken: no revision 9 is kept$"):
        provisional.reevaluate_provisional()
    assert store.runs.get(RunKey(DAG, "well__new")).verdict is Verdict.PASS
    assert store.runs.get(RunKey(DAG, "taken__new")).verdict is Verdict.PROVISIONAL
