"""Whole repairs by the DAGs, over a real sshd: a fault seen in service, evidence, a rung, the tests that can see it.

The machine that runs the tests is neither rebooted nor has it GPUs: ``nvidia-smi`` and ``systemctl reboot`` are
stand-ins, and the second changes the boot id that the server shows (MUSTER_BOOT_ID_FILE) after a while, or never. The
verdicts of the tests after the repair are set by the test.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from muster import store
from muster.judging import health
from muster.model.attention import Turn
from muster.model.health import Report
from muster.model.nodes import NewNode
from muster.model.repairs import Fault, Incident, Outcome
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import repair
from muster.remote.job.zipapp import AgentFile
from muster.reporting import bundles
from muster_criteria.health.readings import Reading
from muster_criteria.model import Verdict
from muster_criteria.sku_files.skus import SHIPPED
from tests.dags.conftest import NODE, dag_of
from tests.dags.test_qualification_runs import Decree, decree, node  # noqa: F401 - fixtures
from tests.muster import fleet
from tests.support import lives, standin
from tests.support.servers import sshd

pytestmark = pytest.mark.needs_sshd

SMI = """#!/bin/sh
echo "nvidia-smi $*" >>{calls}
echo "GPU 00000000:4E:00.0 was successfully reset."
"""
REBOOT = """#!/bin/sh
echo "systemctl $*" >>{calls}
[ -e {folder}/never ] || (sleep 0.5; echo "$(date +%s%N)" >{boot}) >/dev/null 2>&1 &
"""


@dataclasses.dataclass
class Bench:
    folder: Path
    server: sshd.Sshd

    @property
    def calls(self) -> list[str]:
        """What was carried out as root."""
        path = self.folder / "calls"
        return [each for each in path.read_text().splitlines() if "reset" in each or "reboot" in each]

    @property
    def incident(self) -> Incident:
        (found,) = store.repairs.find(NODE)
        return found

    @property
    def state(self) -> State:
        return store.nodes.get(NODE).state

    def outcomes(self) -> list[tuple[str, Outcome | None, bool | None]]:
        return [(each.rung, each.outcome, each.proved) for each in store.repairs.history(self.incident)]


@pytest.fixture
def bench(node: sshd.Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:  # noqa: F811
    tools = tmp_path / "tools"
    tools.mkdir()
    (tmp_path / "calls").touch()
    for name, text in (("nvidia-smi", SMI), ("systemctl", REBOOT)):
        (tools / name).write_text(text.format(calls=tmp_path / "calls", folder=tmp_path, boot=tmp_path / "boot_id"))
        (tools / name).chmod(0o700)
    policies = tmp_path / "skus" / "policies"
    policies.mkdir(parents=True)
    for name, before, after in (
        ("health", "mode: quarantine", "mode: quarantine\ngroups: [{label: repair, value: auto, mode: repair}]"),
        ("repair", "enabled: []", "enabled: [{label: repair, value: auto, rungs: [reset_gpu, reboot]}]"),
    ):
        text = (SHIPPED / "policies" / f"{name}.yaml").read_text()
        assert text.count(f"\n{before}") == 1
        (policies / f"{name}.yaml").write_text(text.replace(f"\n{before}", f"\n{after}"))
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path / "skus"))
    monkeypatch.setattr(repair, "build_agent", lambda _: AgentFile(*standin.write(tmp_path / "cache")))
    node.stop()
    node.env["PATH"] = f"{tools}:/usr/bin:/bin"
    node.start()
    known = store.nodes.get(NODE)
    new = NewNode(
        NODE, known.host, known.host_key, known.sku, port=known.port, user=known.user, launch=known.launch,
        work_dir=known.work_dir, labels={"repair": "auto"}, serials={"gpu3": "1650423000003"},
    )  # fmt: skip
    store.nodes.add_all([("", new)], actor="Ada")
    lives.in_production(NODE, "standard")
    return Bench(tmp_path, node)


def run(dag_id: str, **conf: Any) -> dict[str, str]:
    """The tasks' states of a whole run."""
    made = dag_of(dag_id)
    if dag_id == "repair":
        made.task_dict["returned"].poke_interval = 0.3
    done = made.test(run_conf=conf)
    states = {each.task_id: str(each.state) for each in done.get_task_instances()}
    return {**states, "run": str(done.state)}


def queued(dag_id: str) -> list[dict[str, Any]]:
    """The conf of each run of a DAG that waits to be scheduled, oldest first; they count as done then."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(DagRun).where(DagRun.dag_id == dag_id, DagRun.state == "queued").order_by(DagRun.id)
        runs = list(session.scalars(query))
        conf = [dict(each.conf or {}) for each in runs]
        for each in runs:
            session.delete(each)
    return conf


def swept() -> list[dict[str, Any]]:
    """One run of the sweep; returns the conf of each repair that it starts."""
    assert run("health_sweep")["run"] == "success"
    return queued("repair")


def break_down(check: str = "xid/95") -> None:
    """What a sweep of the node shows."""
    seen = Reading(check, "gpu3", value="uncontained", severity="ISOLATE")
    health.record([Report(NODE, "sweep", (seen,), "b1")], {NODE: "h100-sxm-8"})


def test_a_full_disk_asks_a_person_once_and_begins_no_run_every_ten_minutes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_down()
    (conf,) = swept()
    usage = shutil.disk_usage("/")._replace(free=1)
    with monkeypatch.context() as full:
        full.setattr(bundles.shutil, "disk_usage", lambda _: usage)
        assert run("repair", **conf)["run"] == "failed"
        assert swept() == []
        (shown,) = [each for each in store.attention.collect() if each.node == NODE]
        assert shown.turn is Turn.PERSON
        assert "MUSTER_ARCHIVE" in shown.why
    assert swept() == [], "it waits for a person, who made room"
    assert run("repair", **conf)["run"] == "success"
    assert bench.outcomes() == [("reset_gpu", Outcome.SUCCEEDED, None)]
    assert len(queued("node_qualification")) == 1


def test_while_repairs_are_paused_the_sweep_starts_none_and_goes_on(bench: Bench) -> None:
    """Else each sweep would add one to those that wait; were it to fail, it would count as stopped."""
    from airflow.models import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    break_down()
    assert len(swept()) == 1
    for paused in (True, False):
        with create_session() as session:
            session.execute(update(DagModel).where(DagModel.dag_id == "repair").values(is_paused=paused))
        assert len(swept()) == int(not paused)


def test_a_fault_seen_in_service_is_repaired_and_the_node_returns_by_its_tests(bench: Bench) -> None:
    break_down()
    (conf,) = swept()
    assert (conf["node"], conf["fault"], conf["device"]) == (NODE, "gpu_memory", "gpu3")
    assert bench.state is State.QUARANTINE
    states = run("repair", **conf)
    assert set(states.values()) == {"success"}
    assert bench.incident.bundle is not None
    assert Path(bench.incident.bundle.path).exists()
    assert bench.calls == ["nvidia-smi --gpu-reset -i 1650423000003"]
    assert bench.outcomes() == [("reset_gpu", Outcome.SUCCEEDED, None)], "nothing has proved it yet"
    assert (bench.state, store.leases.live()) == (State.REGISTERED, [])
    (proof,) = queued("node_qualification")
    assert (proof["node"], proof["level"]) == (NODE, "standard")
    assert swept() == [], "it waits for its tests"
    assert run("node_qualification", **proof)["run"] == "success"
    assert bench.state is State.QUALIFIED
    assert swept() == []
    assert bench.incident.closed_at
    assert bench.outcomes() == [("reset_gpu", Outcome.SUCCEEDED, True)]
    moves = [each.to_state for each in store.nodes.events(NODE) if each.from_state is not each.to_state]
    out = moves[moves.index(State.QUARANTINE) :]
    assert out[:4] == [State.QUARANTINE, State.TRIAGE, State.REPAIR, State.REGISTERED]
    assert out[-1] is State.QUALIFIED
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "its NIC is swapped")
    assert swept() == [], "it is out of service for another reason"


@pytest.mark.slow
def test_a_fault_that_comes_back_goes_up_the_ladder_and_then_to_a_person(bench: Bench, decree: Decree) -> None:  # noqa: F811
    break_down()
    (conf,) = swept()
    run("repair", **conf)
    (proof,) = queued("node_qualification")
    decree.verdicts["burn_in"], decree.findings["burn_in"] = Verdict.FAIL, (fleet.finding(device="gpu3"),)
    assert run("node_qualification", **proof)["run"] == "failed"
    assert bench.state is State.QUARANTINE
    (conf,) = swept()
    assert set(run("repair", **conf).values()) == {"success"}
    assert bench.calls == ["nvidia-smi --gpu-reset -i 1650423000003", "systemctl reboot"]
    assert bench.outcomes() == [("reset_gpu", Outcome.SUCCEEDED, False), ("reboot", Outcome.SUCCEEDED, None)]
    (proof,) = queued("node_qualification")
    run("node_qualification", **proof)
    (conf,) = swept()
    states = run("repair", **conf)
    assert (states["act"], states["prove"], states["run"]) == ("skipped", "skipped", "success")
    assert bench.incident.asks
    assert (bench.state, len(bench.calls)) == (State.QUARANTINE, 2)
    assert swept() == [], "a person decides: it is not begun again by itself"
    assert queued("node_qualification") == []


@pytest.mark.slow
def test_a_node_that_does_not_come_back_is_no_success_and_is_not_tested(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.remote.repairing.RETURN_S", 2.0)
    (bench.folder / "never").touch()
    break_down("kernel/machine-check")
    (conf,) = swept()
    states = run("repair", **conf)
    assert (states["act"], states["returned"], states["release"]) == ("success", "failed", "success")
    assert (states["proofs"], states["run"]) == ("upstream_failed", "failed")
    assert bench.outcomes() == [("reboot", Outcome.PERMANENT, None)]
    assert (bench.state, store.leases.live()) == (State.QUARANTINE, [])
    assert queued("node_qualification") == []
    (conf,) = swept()
    assert run("repair", **conf)["act"] == "skipped"
    assert bench.calls == ["systemctl reboot"]
    assert bench.incident.asks, "what is left is an inspection"


def test_no_clock_of_a_worker_gives_up_a_node_that_restarts() -> None:
    """Airflow compares a sensor's time limit with the clocks of the workers that look first and now."""
    assert dag_of("repair").task_dict["returned"].timeout > 86_400


@pytest.mark.slow
def test_a_node_that_is_in_use_keeps_its_job_and_is_repaired_when_it_is_free(bench: Bench) -> None:
    break_down()
    (conf,) = swept()
    known = store.nodes.get(NODE)

    def label(**labels: str) -> None:
        new = NewNode(
            NODE, known.host, known.host_key, known.sku, port=known.port, user=known.user, launch=known.launch,
            work_dir=known.work_dir, labels={"repair": "auto", **labels},
        )  # fmt: skip
        store.nodes.add_all([("", new)], actor="Ada")

    label(busy="yes")
    states = run("repair", **conf)
    assert (states["evidence"], states["act"], states["run"]) == ("success", "skipped", "success")
    assert bench.incident.bundle, "the evidence is there before the job ends"
    assert swept() == [], "it is in use"
    assert (bench.calls, bench.incident.asks) == ([], "")
    label()
    (conf,) = swept()
    assert run("repair", **conf)["run"] == "success"
    assert bench.calls == ["nvidia-smi --gpu-reset -i 1650423000003"]


def test_of_a_rack_that_is_held_no_node_is_repaired_by_itself(bench: Bench) -> None:
    known = store.nodes.get(NODE)
    new = NewNode(
        NODE, known.host, known.host_key, known.sku, port=known.port, user=known.user, launch=known.launch,
        work_dir=known.work_dir, labels=known.labels, rack="r1",
    )  # fmt: skip
    store.nodes.add_all([("", new)], actor="Ada")
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "XID 95")
    incident = store.repairs.open_incident(NODE, Fault("gpu_memory", "gpu3"), "XID 95", ("intake",), "standard")
    assert [each["conf"]["fault"] for each in repair.wanted()] == [incident.fault.fault_class]
    store.racks.hold(RunKey("cluster_qualification", "block"), "r1", [], "its NVLink domain is at fault", [NODE])
    assert repair.wanted() == []


def test_as_shipped_nothing_is_repaired(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SKU_PATH", "")
    break_down()
    assert swept() == []
    assert bench.state is State.QUARANTINE
    assert store.repairs.find(NODE) == []


@pytest.mark.slow
def test_a_run_that_is_cleared_carries_nothing_out_twice(bench: Bench) -> None:
    """The worker is lost after the reservation: the task's second attempt ends it, and repeats nothing."""
    break_down()
    (conf,) = swept()
    key = RunKey("repair", "lost")
    incident = repair.claim(key, conf)
    repair.take_evidence(incident)
    store.repairs.reserve(incident, "reset_gpu", key)
    with pytest.raises(Exception, match="not recorded"):
        repair.act(key, incident)
    repair.release(key)
    assert (bench.calls, bench.state) == ([], State.QUARANTINE)
    (conf,) = swept()
    run("repair", **conf)
    assert bench.calls == ["systemctl reboot"], "the reset may have been carried out"
