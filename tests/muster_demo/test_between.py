"""The fault between tests: policies of the demo's own, a simulated GPU that fails, and what the records say of it."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import store
from muster.judging import health, policies
from muster.model.health import Report
from muster.model.names import SPARE_LABEL
from muster.model.repairs import Bundle, Fault, Outcome
from muster.model.runs import RunKey
from muster.model.states import State
from muster_criteria.health.readings import Reading
from muster_criteria.repair.ladder import Rung
from muster_demo import between, fleet
from muster_demo.scoring import NAMED_BY
from muster_simulator import SimulatedHardware, create_machine, load_machine
from tests.support import lives

NODE = "sim-h100-1"
KEY = RunKey("repair", "r")


@pytest.fixture
def enrolled(enrol: Callable[..., None]) -> None:
    enrol(NODE, labels=fleet.REPAIRED, pool="one")


def test_only_resets_of_simulated_gpus_are_switched_on_and_the_rest_is_as_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MUSTER_SKU_PATH", raising=False)
    health, repair = policies.health(), policies.repair()
    between.write_policies(tmp_path / "skus", "demo")
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path / "skus"))
    assert policies.health().model_copy(update={"groups": ()}) == health
    assert policies.health().mode_of({"pool": fleet.POOL, "rack": "demo"}) == health.mode, "not this machine's"
    assert policies.health().mode_of(fleet.REPAIRED) == "repair"
    assert policies.repair().allowed(fleet.REPAIRED) == {Rung.RESET_GPU}
    assert policies.repair().allowed({"pool": fleet.POOL, "rack": "demo"}) == frozenset()
    assert [each.rungs for each in policies.repair().ladders] == [each.rungs for each in repair.ladders]
    ladder = policies.repair().ladder_for(between.KIND)
    assert ladder is not None
    assert (ladder.rungs[0], ladder.level) == (Rung.RESET_GPU, "demo")


def test_a_gpu_that_fails_shows_it_at_rest_and_the_same_seed_lets_the_same_fail(tmp_path: Path) -> None:
    folders = [tmp_path / name / NODE for name in ("a", "b")]
    for folder in folders:
        create_machine(folder, seed=7)
    (one,), (other,) = (between.plant(folder, NODE, 3, between.KIND) for folder in folders)
    assert one == other
    shown = SimulatedHardware(folders[0]).states()
    assert [fact.device for fact in shown if fact.name == between.KIND and fact.value] == [one.device]
    assert load_machine(folders[0]) == load_machine(folders[1])


def test_faults_before_a_block_are_each_on_a_gpu_of_its_own(tmp_path: Path) -> None:
    create_machine(tmp_path, seed=7)
    slow, wrong = between.plant(tmp_path, NODE, 3, *NAMED_BY)
    gpus = load_machine(tmp_path).gpus
    assert [gpu.slot for gpu in gpus if gpu.clock_lock_mhz] == [slow.gpu]
    assert [gpu.slot for gpu in gpus if gpu.upset_rate] == [wrong.gpu]
    assert slow.gpu != wrong.gpu


def test_a_spare_keeps_what_else_is_known_of_it(enrolled: None) -> None:
    before = store.nodes.get(NODE)
    between.hold_back(NODE)
    after = store.nodes.get(NODE)
    assert after.labels == {**before.labels, SPARE_LABEL: "yes"}
    assert dataclasses.replace(after, labels=before.labels) == before


def _bundle(path: Path, **mark: bool) -> Bundle:
    with tarfile.open(path, "w:gz") as archive:
        text = json.dumps({"node": NODE, **mark}).encode()
        entry = tarfile.TarInfo("incident/manifest.json")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return Bundle(str(path), hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)


@pytest.mark.parametrize("simulated", [True, False])
def test_what_became_of_it_is_read_from_the_records(enrolled: None, tmp_path: Path, simulated: bool) -> None:
    fault = between.Planted(NODE, 3, between.KIND)
    assert between.aftermath(fault).left_for == ""
    lives.qualified(NODE)
    store.nodes.move(NODE, State.PRODUCTION, lives.PERSON, "it may")
    report = Report(NODE, "sweep", (Reading(between.KIND, "gpu3", bad=True),), "b1")
    health.record([report], {NODE: "h100-sxm-8"})
    (observed,) = store.health.of_node(NODE)
    store.health.withdraw(observed, "its sentence")
    seen = between.aftermath(fault)
    assert (seen.left_for, seen.evidence, seen.repairs) == ("row_remap_pending on gpu3", "", ())
    incident = store.repairs.open_incident(NODE, Fault("gpu_memory", "gpu3"), "seen", ["intake"], "demo")
    store.leases.acquire(NODE, KEY)
    mark = {"simulated": True} if simulated else {}
    store.repairs.keep_bundle(incident.id, _bundle(tmp_path / "bundle", **mark))
    attempt = store.repairs.reserve(incident.id, "reset_gpu", KEY)
    store.repairs.settle(attempt.id, Outcome.SUCCEEDED, "done")
    seen = between.aftermath(fault)
    assert (seen.whole, seen.repairs, seen.proved) == (simulated, ("reset_gpu: succeeded",), False)
    (tmp_path / "bundle").write_bytes(b"another")
    assert not between.aftermath(fault).whole
