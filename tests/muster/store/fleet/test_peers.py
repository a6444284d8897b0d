"""What is kept so that a verdict can be replayed: readings of sound machines, peer snapshots, SKU revisions."""

from __future__ import annotations

import dataclasses
import datetime
import json

import pytest

from muster import store
from muster.errors import UnknownRevision, UnknownSnapshot
from muster.model.stages import STAGES
from muster.model.states import State
from muster.model.statistics import KeptSnapshot
from muster.settings import settings
from muster.store.database.engine import writing
from muster.store.database.models import RevisionRow
from muster_criteria.model import Action, Severity, Verdict
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.sku_files.work import sku_work
from muster_criteria.stages import LEVELS
from muster_node.contract import Measurement
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")

RATE = "gemm_rate"
NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
SKU = "cpu-generic"
WORK = {level: sku_work(fleet.sku(), level) for level in LEVELS}


def measure(
    node: str,
    value: float,
    run: str = "1",
    *,
    verdict: Verdict = Verdict.PASS,
    level: str = "short",
    serials: dict[str, str] | None = None,
    simulated: bool = False,
    ends: bool = True,
    stage: str = "intake",
    revision: str = "",
) -> tuple[str, str]:
    """A run of the node that measures its rate once, on gpu0, and leaves it where it was."""
    lease = fleet.begin(node, f"{node}__{run}")
    figures = [
        Measurement("gemm_rate", RATE, "gpu0", "TFLOPS", value, labels={"dtype": "bf16"}),
        Measurement("gemm_rate", "gemm_clock", "gpu0", "MHz", 1500.0),
        Measurement("inventory", "driver", "node", "text", None, text="580"),
    ]
    parsed, raw = fleet.result(stage, node=node, measurements=figures, serials=serials, simulated=simulated, note=run)
    found = (fleet.FINDING,) if verdict is Verdict.FAIL else ()
    judgement = dataclasses.replace(
        fleet.judgement(stage, verdict=verdict, findings=found), level=level, observations=(),
        sku_version=revision or fleet.sku().revision,
    )  # fmt: skip
    store.runs.begin_stage(lease.key, stage)
    fleet.record(lease.key, parsed, judgement, raw)
    if ends:
        store.runs.finish(lease.key, verdict, "so it is")
        store.leases.release(lease.key, "over")
    return lease.dag_id, lease.run_id


def revision(*sizes: tuple[str, int]) -> str:
    """The revision under which a SKU is kept whose stages multiply matrices of these sizes."""
    content = fleet.sku().model_dump(mode="json")
    for stage, size in sizes:
        content["programme"]["stages"][stage]["probes"][RATE] = {"params": {"size": size}, "levels": ["short"]}
    name = f"1+{sizes}"
    with writing() as session:
        session.add(RevisionRow(sku=SKU, revision=name, kept_at=NOW, content=json.dumps(content)))
    return name


def rates(level: str = "short", *, simulated: bool = False, visits: int = 3) -> list[tuple[str, float]]:
    frame = store.measured.fleet_readings(SKU, level, [RATE], WORK[level], simulated=simulated, visits=visits)
    return list(zip(frame["node"], frame["value"], strict=True))


def own(node: str = "a", run: str = "x", *, visits: int = 8, before: datetime.datetime | None = None) -> list[float]:
    frame = store.measured.node_readings(node, "short", [RATE], WORK["short"], run_id=run, visits=visits, before=before)
    return list(frame["value"])


class TestReadings:
    @pytest.mark.both_dialects
    def test_it_holds_what_was_measured_and_where_it_comes_from(self) -> None:
        store.nodes.add(fleet.new_node("a", labels={"cooling_zone": "row 3"}))
        measure("a", 600.0)
        frame = store.measured.fleet_readings(SKU, "short", [RATE], WORK["short"], simulated=False)
        (row,) = frame.to_dict("records")
        assert (row["node"], row["device"], row["slot"], row["metric"]) == ("a", "gpu0", 0, RATE)
        assert (row["labels"], row["unit"], row["value"]) == ("dtype=bf16", "TFLOPS", 600.0)
        assert row["run"] == f"{fleet.DAG}/a__1/intake"
        assert row["group"].startswith("cpu-generic|")
        assert row["group"].endswith("|zone=row 3")

    def test_what_was_measured_before_the_driver_was_replaced_in_the_same_run_is_of_the_old_one(self) -> None:
        store.nodes.add(fleet.new_node("a"))
        lease = fleet.begin("a")
        for stage, driver in (("intake", "570"), ("burn_in", "580")):
            figures = [Measurement(RATE, RATE, "gpu0", "TFLOPS", float(driver))]
            parsed, raw = fleet.result(stage, node="a", measurements=figures, environment={"driver": driver})
            judgement = dataclasses.replace(fleet.judgement(stage), observations=(), sku_version=fleet.sku().revision)
            store.runs.begin_stage(lease.key, stage)
            fleet.record(lease.key, parsed, judgement, raw)
        frame = store.measured.fleet_readings(SKU, "short", [RATE], WORK["short"], simulated=False)
        found = dict(zip(frame["value"], frame["group"], strict=True))
        assert {value: f"driver={value:.0f}" in group for value, group in found.items()} == {570.0: True, 580.0: True}

    def test_the_latest_visits_of_each_node_count(self) -> None:
        for name in ("a", "b"):
            store.nodes.add(fleet.new_node(name))
        for run in range(5):
            measure("a", 600.0 + run, str(run))
        measure("b", 500.0)
        assert rates() == [("a", 602.0), ("a", 603.0), ("a", 604.0), ("b", 500.0)]
        assert rates(visits=1) == [("a", 604.0), ("b", 500.0)]

    @pytest.mark.both_dialects
    def test_what_a_probe_measured_with_other_parameters_is_another_quantity(self) -> None:
        for name in ("a", "b", "c"):
            store.nodes.add(fleet.new_node(name))
        now, larger, elsewhere = (
            revision(("intake", 5), ("burn_in", 5)),
            revision(("intake", 7), ("burn_in", 5)),
            revision(("intake", 5), ("burn_in", 7)),
        )
        for name, measured_by in {"a": now, "b": larger, "c": elsewhere}.items():
            measure(name, 600.0, revision=measured_by)
        work = store.revisions.work(SKU, now, "short")
        frame = store.measured.fleet_readings(SKU, "short", [RATE], work, simulated=False)
        assert list(frame["node"]) == ["a", "c"]
        assert store.measured.node_readings("b", "short", [RATE], work, run_id="", visits=5).empty

    def test_what_was_measured_with_unknown_parameters_is_compared_with_nothing(self) -> None:
        store.nodes.add(fleet.new_node("a"))
        measure("a", 600.0, revision="1+lost")
        assert rates() == []

    def test_levels_and_real_and_simulated_nodes_are_kept_apart(self) -> None:
        for name, simulated in (("real", False), ("sim", True)):
            store.nodes.add(fleet.new_node(name, simulated=simulated))
            measure(name, 600.0, simulated=simulated)
        measure("real", 700.0, "2", level="standard")
        assert rates() == [("real", 600.0)]
        assert rates(simulated=True) == [("sim", 600.0)]
        assert rates("standard") == [("real", 700.0)]

    @pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.SKIPPED])
    def test_a_test_that_failed_or_did_not_end_well_is_no_yardstick(self, verdict: Verdict) -> None:
        store.nodes.add(fleet.new_node("a"))
        measure("a", 600.0)
        measure("a", 1.0, "2", verdict=verdict)
        assert rates() == [("a", 600.0)]
        assert own() == [600.0]

    def test_another_machine_under_the_name_has_no_past(self) -> None:
        store.nodes.add(fleet.new_node("a"))
        measure("a", 600.0)
        store.adoption.replace("a", "Ada", "new board", host_key=fleet.host_key("another"))
        assert rates() == []
        measure("a", 610.0, "2")
        assert own() == [610.0]

    def test_a_part_that_was_swapped_takes_its_past_with_it(self) -> None:
        store.nodes.add(fleet.new_node("a"))
        measure("a", 600.0, serials={"gpu0": "OLD"})
        before_swap = datetime.datetime.now(datetime.UTC)
        measure("a", 550.0, "2", serials={"gpu0": "NEW"})
        measure("a", 551.0, "3", serials={"gpu0": "NEW"})
        assert own() == [550.0, 551.0]
        assert rates() == [("a", 550.0), ("a", 551.0)]
        assert own(before=before_swap) == [600.0], "as it was known then"

    def test_the_run_that_is_judged_is_not_its_own_past(self) -> None:
        store.nodes.add(fleet.new_node("a"))
        measure("a", 600.0)
        _, run = measure("a", 610.0, "2")
        assert own(run=run) == [600.0]

    @pytest.mark.both_dialects
    def test_what_was_known_then_is_found_again_although_a_stage_was_repeated(self) -> None:
        store.nodes.add(fleet.new_node("a"))
        measure("a", 600.0)
        then = datetime.datetime.now(datetime.UTC)
        measure("a", 610.0)  # the same run, cleared and repeated
        assert own() == [610.0]
        assert own(before=then) == [600.0]

    def test_an_empty_fleet_has_no_readings(self) -> None:
        assert rates() == []


class TestSuspicion:
    @pytest.mark.both_dialects
    def test_nodes_out_of_service_and_nodes_with_a_critical_finding_are_no_peers(self) -> None:
        for name in ("sound", "quarantined", "failed", "warned", "sim"):
            store.nodes.add(fleet.new_node(name, simulated=name == "sim"))
            measure(name, 600.0, simulated=name == "sim")
        store.nodes.move("quarantined", State.QUARANTINE, "Ada", "smells")
        measure("failed", 1.0, "2", verdict=Verdict.FAIL, ends=False)  # found, and nothing done about it yet
        measure("warned", 590.0, "2", verdict=Verdict.WARN)
        measure("sim", 1.0, "2", verdict=Verdict.FAIL, simulated=True)
        assert store.measured.excluded_from_peers(SKU, simulated=False) == {"quarantined", "failed"}
        assert store.measured.excluded_from_peers(SKU, simulated=True) == {"sim"}

    @pytest.mark.parametrize(
        ("rule", "action", "suspected"),
        [
            ("drift", Action.RETEST, True),
            ("node_drift", Action.RETEST, True),
            ("drift", Action.NONE, False),  # acquitted by a second reading
            ("peers", Action.RETEST, False),  # the far end of what healthy parts do
        ],
    )
    def test_one_that_is_unlike_its_own_past_is_no_peer(self, rule: str, action: Action, suspected: bool) -> None:
        store.nodes.add(fleet.new_node("a"))
        lease = fleet.begin("a")
        doubt = fleet.finding(rule=rule, action=action, severity=Severity.WARNING)
        fleet.do_stage(lease, "intake", Verdict.WARN, findings=(doubt,))
        assert store.measured.excluded_from_peers(SKU, simulated=False) == ({"a"} if suspected else set())

    def test_a_later_pass_clears_it_and_a_waiver_does_not(self) -> None:
        store.nodes.add(fleet.new_node("a"))
        measure("a", 1.0, verdict=Verdict.FAIL)
        for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
            store.nodes.move("a", state, "Ada", "new fan")
        (found,) = store.verdicts.open_findings("a")
        in_a_year = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=365)
        store.waivers.give(found.finding.id, in_a_year, "Ada", "it is slow, we know")
        assert store.measured.excluded_from_peers(SKU, simulated=False) == {"a"}
        measure("a", 600.0, "2")
        assert store.measured.excluded_from_peers(SKU, simulated=False) == frozenset()


@dataclasses.dataclass(frozen=True)
class Stub:
    """As much of a snapshot as the records look at."""

    version: str
    made_at: datetime.datetime = NOW
    nodes: int = 9

    def to_bytes(self) -> bytes:
        return f"bytes of {self.version}".encode()


class TestSnapshots:
    def test_the_newest_of_such_nodes_is_the_one_to_judge_by(self) -> None:
        for day, version in enumerate(("one", "two")):
            made = Stub(version, NOW + datetime.timedelta(days=day))
            store.peers.keep(made, SKU, "short", simulated=False)
        kept = store.peers.keep(Stub("two", NOW), SKU, "short", simulated=False)
        assert kept.made_at == NOW + datetime.timedelta(days=1), "the same version changes nothing"
        latest = store.peers.latest(SKU, "short", simulated=False)
        assert latest == KeptSnapshot("two", kept.made_at, SKU, "short", False, 9)
        assert [each.version for each in store.peers.find()] == ["two", "one"]
        assert store.peers.find(sku="other") == []
        assert store.peers.latest(SKU, "long", simulated=False) is None
        assert store.peers.latest(SKU, "short", simulated=True) is None

    def test_one_that_is_not_there_or_cannot_be_read_is_reported(self) -> None:
        with pytest.raises(UnknownSnapshot):
            store.peers.load("x", SKU, "short", simulated=True)
        store.peers.keep(Stub("x"), SKU, "short", simulated=True)
        with pytest.raises(UnknownSnapshot):
            store.peers.load("x", SKU, "short", simulated=True)

    @pytest.mark.both_dialects
    def test_retention_takes_the_old_but_neither_the_newest_nor_what_a_verdict_cites(self) -> None:
        store.nodes.add(fleet.new_node("a"))
        for day, version in enumerate(("cited", "old", "newest")):
            store.peers.keep(Stub(version, NOW + datetime.timedelta(days=day)), SKU, "short", simulated=False)
        lease = fleet.begin("a")
        store.runs.begin_stage(lease.key, "intake")
        judgement = dataclasses.replace(fleet.judgement(), snapshot="cited")
        fleet.record(lease.key, None, judgement)
        assert store.reporting.run(lease.key).stages[0].judgement.snapshot == "cited"
        assert store.retention.apply(NOW + datetime.timedelta(days=90))["snapshots"] == 0
        assert store.retention.apply(NOW + datetime.timedelta(days=99), dry_run=True)["snapshots"] == 1
        assert store.retention.apply(NOW + datetime.timedelta(days=99))["snapshots"] == 1
        assert [each.version for each in store.peers.find()] == ["newest", "cited"]

    def test_it_is_known_when_something_last_changed(self) -> None:
        assert store.peers.last_change(SKU, "short", simulated=False) is None
        store.nodes.add(fleet.new_node("a"))
        assert store.peers.last_change(SKU, "short", simulated=False) is None, "nothing was ever tested"
        measure("a", 600.0)
        tested = store.peers.last_change(SKU, "short", simulated=False)
        assert tested is not None
        store.nodes.move("a", State.QUARANTINE, "Ada", "smells")
        moved = store.peers.last_change(SKU, "short", simulated=False)
        assert moved is not None
        assert moved > tested
        assert store.peers.last_change(SKU, "short", simulated=True) is None


class TestRevisions:
    def record(self, version: str) -> None:
        store.nodes.add(fleet.new_node("a"))
        lease = fleet.begin("a")
        for stage in STAGES[:2]:
            store.runs.begin_stage(lease.key, stage)
            fleet.record(lease.key, None, dataclasses.replace(fleet.judgement(stage), sku_version=version))

    def test_what_the_files_contained_when_a_verdict_was_given_is_kept(self) -> None:
        sku = load_sku(SKU, settings().sku_folders)
        self.record(sku.revision)
        assert store.revisions.load(SKU, sku.revision) == sku

    def test_one_that_the_files_are_no_longer_at_is_not_kept_under_its_name(self) -> None:
        self.record("1+other")
        with pytest.raises(UnknownRevision):
            store.revisions.load(SKU, "1+other")


def test_a_finding_s_measurements_and_confidence_reach_the_report() -> None:
    store.nodes.add(fleet.new_node("a"))
    lease = fleet.begin("a")
    store.runs.begin_stage(lease.key, "intake")
    behind = ("gemm_rate:gemm_rate[dtype=bf16]@gpu3", "gemm_rate:gemm_clock@gpu3")
    found = fleet.finding(confidence=0.75, measurements=behind)
    judgement = dataclasses.replace(fleet.judgement(verdict=Verdict.FAIL, findings=(found,)), snapshot="s-1")
    fleet.record(lease.key, None, judgement)
    report = store.reporting.run(lease.key)
    (seen,) = report.stages[0].judgement.findings
    assert (seen.confidence, seen.measurements) == (0.75, behind)
    stored = json.loads(report.result_json)["stages"][0]["judgement"]
    assert (stored["snapshot"], stored["sku_version"]) == ("s-1", judgement.sku_version)
    assert stored["findings"][0]["measurements"] == list(behind)
