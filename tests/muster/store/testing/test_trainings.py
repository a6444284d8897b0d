"""The training of a block from the records, and what it is compared with: earlier blocks, the fleet's failures."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from muster import store
from muster.errors import UnknownRun
from muster.model.runs import RunKey
from muster.model.states import State
from muster.rules.service import spares
from muster_criteria.cluster.model import SLOWED, Earlier
from muster_criteria.model import Verdict
from tests.muster import copied, fleet
from tests.muster_reports.trainings import member

NAMES = ["n1", "n2"]


def train(
    run_id: str, *, slow: str = "", scaling: float = 0.97, verdict: Verdict = Verdict.PASS, gpus: int = 2,
    rule: str = "straggler",
) -> RunKey:  # fmt: skip
    """A block of two nodes that trained, judged and recorded."""
    key = RunKey("cluster_qualification", run_id)
    for name in NAMES:
        store.leases.acquire(name, key)
        store.runs.begin(key, name, "short", "x", required_stages=["cluster_validation"])
    store.attempts.keep_block(key, {"members": NAMES, "differences": ["its members differ in nccl: 2.27; 2.28"]})
    for name in NAMES:
        of = member(name, slow=slow if name == "n2" else "", scaling=scaling, gpus=gpus)
        findings = tuple(dataclasses.replace(each, rule=rule) for each in of.findings)
        judged = fleet.judgement("cluster_validation", verdict, findings=findings)
        judged = dataclasses.replace(judged, observations=of.observations)
        fleet.record(key, None, judged, node=name)
        store.runs.finish(key, verdict, f"{name}: {verdict}", node=name)
    store.leases.release(key, "over")
    return key


@pytest.fixture(autouse=True)
def nodes(sqlite_db: None) -> None:
    copied.qualified(*NAMES)


def test_a_blocks_training_is_read_from_its_members_figures() -> None:
    found = store.trainings.training(train("b1", slow="gpu1"))
    assert found is not None
    assert [(each.node, each.device) for each in found.ranks if each.straggler] == [("n2", "gpu1")]
    assert len(found.ranks) == 4
    assert found.differences == ("its members differ in nccl: 2.27; 2.28",)
    assert not found.inputs.rate.measured, "what it was compared with was not kept"


def test_earlier_sound_blocks_with_this_recipe_stand_beside_it() -> None:
    before = [(0.98, Verdict.PASS), (0.96, Verdict.PASS), (0.5, Verdict.INCONCLUSIVE)]
    for number, (scaling, verdict) in enumerate(before):
        train(f"before{number}", scaling=scaling, verdict=verdict)
    key = train("now", scaling=0.9)
    kept = store.trainings.comparisons(key)
    assert kept["earlier"]["scaling"] == [pytest.approx(0.97), 2]
    assert kept["earlier"]["tokens_per_s"] == [pytest.approx(37_000.0 / 4), 2]
    store.attempts.keep_block(key, {**store.attempts.block_of(key), "training": kept})
    found = store.trainings.training(key)
    assert found is not None
    (scales,) = [each for each in found.lines if each.what.startswith("scaling")]
    assert "0.97" in scales.comparison
    assert found.inputs.rate.value == pytest.approx(spares.RECORD.rate, rel=0.01), "nothing has failed: the record's"
    assert not found.inputs.rate.measured


def test_a_block_is_compared_with_earlier_ones_of_its_recipe() -> None:
    for number, verdict in enumerate([Verdict.PASS, Verdict.WARN, Verdict.INCONCLUSIVE]):
        train(f"before{number}", verdict=verdict)
    run = store.runs.get(train("now"), node="n1")
    recipe = next(row.text for row in member("n1").observations if row.metric == "training_recipe")
    assert recipe
    assert store.trainings.earlier(run, recipe, 4.0) == Earlier(
        pytest.approx(37_000.0 / 4), 2, pytest.approx(11.2 * 1.08), 2
    )
    assert store.trainings.earlier(run, "another recipe", 4.0) is None
    assert store.trainings.earlier(run, "", 4.0) is None


@pytest.mark.parametrize(
    ("rule", "counts"), [*((rule, False) for rule in sorted(SLOWED)), ("scaling", True), ("step_p95_to_p50", True)]
)
def test_a_block_in_which_a_member_was_found_slow_is_no_yardstick(rule: str, counts: bool) -> None:
    train("sound", scaling=0.98)
    train("slow", slow="gpu1", scaling=0.5, verdict=Verdict.WARN, rule=rule)
    key = train("now")
    earlier = store.trainings.comparisons(key)["earlier"]
    assert earlier.pop("fault_restart")[1] == 2, "jobs are forecast from all"
    assert {blocks for _, blocks in earlier.values()} == {2 if counts else 1}
    assert earlier["scaling"][0] == pytest.approx(0.74 if counts else 0.98)
    run, now = store.runs.get(key, node="n1"), datetime.datetime.now(datetime.UTC)
    assert "3 earlier" in store.trainings.inputs(run.sku, spares.RECORD, now, simulated=run.simulated).restart.source


def test_a_slowdown_that_a_person_has_waived_is_what_later_blocks_are_compared_with() -> None:
    train("found", slow="gpu1", scaling=0.5, rule="tokens_per_s")
    (found,) = store.verdicts.open_findings("n2")
    store.waivers.give(found.finding.id, store.waivers.end_of("2099-12-31"), "Ada", "known")
    train("waived", slow="gpu1", scaling=0.5, rule="tokens_per_s")
    assert store.trainings.comparisons(train("now"))["earlier"]["scaling"] == [0.5, 1]


@pytest.mark.parametrize(("gpus", "saves"), [(2, 2), (1, 1), (3, 0)])
def test_saves_are_compared_with_blocks_of_as_many_devices_and_tokens_with_all(gpus: int, saves: int) -> None:
    """A block without one of its nodes trains as fast a device; by the number of devices a save is divided."""
    for number, before in enumerate((2, 2, 1)):
        train(f"before{number}", gpus=before)
    key = train("now", gpus=gpus)
    run = store.runs.get(key, node="n1")
    recipe = next(row.text for row in member("n1").observations if row.metric == "training_recipe")
    found = store.trainings.earlier(run, str(recipe), 2.0 * gpus)
    assert found is not None
    assert (found.blocks, found.saves) == (3, saves)
    kept = store.trainings.comparisons(key)["earlier"]
    assert [kept.get(name, [0.0, 0])[1] for name in ("scaling", "checkpoint_load", "checkpoint_save")] == [
        3,
        saves,
        saves,
    ]
    now = datetime.datetime.now(datetime.UTC)
    assert store.trainings.inputs(run.sku, spares.RECORD, now, simulated=run.simulated).save.measured


def test_the_rate_of_failures_is_that_of_the_spares() -> None:
    key = train("b1")
    store.nodes.move("n2", State.PRODUCTION, "ada", "x")
    store.nodes.move("n2", State.QUARANTINE, "ada", "x")
    rate = store.trainings.comparisons(key)["rate"]
    now = datetime.datetime.now(datetime.UTC)
    (failure,) = store.failures.since(now - spares.PERIOD)
    came = [store.nodes.get(name).machine_since or now for name in NAMES]
    wanted = spares.measured(came, [failure], now, spares.PERIOD)
    assert rate["measured"]
    assert rate["value"] == pytest.approx(wanted.rate, rel=1e-3)
    assert rate["low"] < rate["value"] < rate["high"]


def test_the_digest_forecasts_jobs_from_what_blocks_measured() -> None:
    train("b1")
    for name in NAMES:
        store.nodes.move(name, State.PRODUCTION, "ada", "x")
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5)
    (jobs,) = store.ledger.fleet(end - datetime.timedelta(days=1), end).jobs
    assert (jobs.sku, jobs.service) == ("cpu-generic", 2)
    assert (jobs.inputs.save.value, jobs.inputs.restart.value) == (11.2, pytest.approx(48.0 + 7.9))
    assert jobs.inputs.save.measured
    assert not jobs.inputs.rate.measured, "nothing has failed"
    assert jobs.inputs.tokens_per_s == pytest.approx(37_000.0 / 4)


@pytest.mark.parametrize(("sku", "gpus"), [("gb200-nvl72", 4), ("cpu-generic", 8), ("unknown", 8)])
def test_jobs_are_forecast_on_nodes_with_as_many_gpus_as_the_sku_counts(sku: str, gpus: int) -> None:
    found = store.trainings.inputs(sku, spares.RECORD, datetime.datetime.now(datetime.UTC), simulated=False)
    assert found.gpus_a_node == gpus


def test_a_run_that_is_not_recorded_has_no_training() -> None:
    key = RunKey("cluster_qualification", "none")
    assert store.trainings.training(key) is None
    assert store.trainings.differences(key) == ()
    with pytest.raises(UnknownRun):
        store.trainings.comparisons(key)
