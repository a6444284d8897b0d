"""A node's BMC in whole runs of the DAG: asked before, during and after the load, judged with the node, kept.

The node side is a stand-in that measures nothing; the BMC is OpenStack's static emulator.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster import store
from muster.judging.reevaluate import reevaluate
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.operators.testing import remote_job
from muster.remote.bmc import redfish
from muster.remote.bmc.bmc import Login
from muster.remote.job.zipapp import AgentFile
from muster_criteria.model import FaultClass, Verdict
from muster_demo.services import free_port
from tests.dags.conftest import NODE, dag_of
from tests.support import standin
from tests.support.servers import bmc, sshd

pytestmark = pytest.mark.needs_sshd

DAG_ID = "node_qualification"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    return bmc.write(tmp_path / "redfish", fans=[bmc.fan()], temperatures=[bmc.air()], supplies=[bmc.supply()])


@pytest.fixture
def watched(
    airflow_db: None, server: sshd.Sshd, documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """This machine with a BMC; gives its URL."""
    path, sha256 = standin.write(tmp_path / "cache")
    monkeypatch.setattr(remote_job, "build_agent", lambda _: AgentFile(path, sha256))
    monkeypatch.setenv("MUSTER_RETRY_SECONDS", "0.1")
    with bmc.static(documents) as url:
        enrol({"url": url})
        yield url


def enrol(described: dict[str, str], **serials: str) -> None:
    known = store.nodes.get(NODE)
    fields = {each.name: getattr(known, each.name) for each in dataclasses.fields(NewNode)
              if hasattr(known, each.name)}  # fmt: skip
    store.nodes.add(NewNode(**{**fields, "bmc": described, "serials": serials}))


def qualify() -> str:
    return dag_of(DAG_ID).test(run_conf={"node": NODE, "level": "demo", "reason": "a test"}).run_id


def test_a_fan_that_fails_under_load_is_found_on_that_fan_and_found_again_by_a_replay(
    watched: str, documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intake is passed by decree, since the stand-in cannot; the burn-in is the real judge's."""
    stages_read = []
    real = redfish.ask

    def ask(described: dict[str, str], at: str, **options: Any) -> object:
        if described and at == "burn_in" and stages_read.count("burn_in") == 1:
            bmc.write(documents, fans=[bmc.fan(rpm=0, health="Critical")], temperatures=[bmc.air()], supplies=[])
        stages_read.append(at)
        return real(described, at, **options)

    monkeypatch.setattr(redfish, "ask", ask)
    pass_intake(monkeypatch)
    run_id = qualify()

    assert stages_read[-2:] == ["burn_in", "burn_in"], "before the load, and after it"
    judged = next(
        each for each in store.reporting.run(RunKey(DAG_ID, run_id)).stages if each.judgement.stage == "burn_in"
    )
    assert judged.judgement.verdict is Verdict.FAIL
    found = {(each.metric, each.device, each.fault_class) for each in judged.judgement.findings}
    assert found == {
        ("fan_speed", "fan0", FaultClass.COOLING), ("fan_state", "fan0", FaultClass.COOLING),
        ("psu_state", "psu0", FaultClass.PSU),
    }, "the supply was there before the load, and is gone"  # fmt: skip
    observed = {(each.metric, each.device): each for each in judged.judgement.observations}
    assert observed["inlet_temperature", "inlet"].value == 24.0
    assert dict(observed["inlet_temperature", "inlet"].labels) == {"source": "redfish"}
    (again,) = reevaluate(store.runs.get(RunKey(DAG_ID, run_id)), stage="burn_in")
    assert again.differences == ()


@pytest.mark.slow
def test_a_fan_that_fails_for_a_while_and_turns_again_before_the_load_is_over_is_found(
    watched: str, documents: Path, server: sshd.Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three readings finds it still, and one supply not listed: only what stays away is lost."""
    monkeypatch.setenv("MUSTER_BMC_SECONDS", "3")
    standin.behave(server.home, burn_in={"seconds": 8})
    readings = []
    real = redfish.ask

    def ask(described: dict[str, str], at: str, who: Login | None = None, **options: Any) -> object:
        if described and at == "burn_in":
            broken = len(readings) == 1
            fan, supplies = bmc.fan(rpm=0, health="Critical") if broken else bmc.fan(), [] if broken else [bmc.supply()]
            bmc.write(documents, fans=[fan], temperatures=[bmc.air()], supplies=supplies)
            readings.append(broken)
        return real(described, at, who, **options)

    monkeypatch.setattr(redfish, "ask", ask)
    pass_intake(monkeypatch)
    run_id = qualify()

    assert len(readings) >= 3
    assert standin.started(server.home).count("burn_in") == 1, "read beside the load, which goes on"
    judged = next(
        each for each in store.reporting.run(RunKey(DAG_ID, run_id)).stages if each.judgement.stage == "burn_in"
    )
    found = {(each.metric, each.device) for each in judged.judgement.findings}
    assert found == {("fan_speed", "fan0"), ("fan_state", "fan0")}


@pytest.mark.slow
def test_a_bmc_that_does_not_answer_is_reported_and_neither_passes_nor_fails_the_node(
    watched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol({"url": f"http://127.0.0.1:{free_port()}"})
    pass_intake(monkeypatch)
    run_id = qualify()
    judged = next(
        each for each in store.reporting.run(RunKey(DAG_ID, run_id)).stages if each.judgement.stage == "burn_in"
    )
    assert judged.judgement.verdict is Verdict.INCONCLUSIVE
    assert judged.judgement.findings == ()
    assert any("the BMC at http://127.0.0.1" in note for note in judged.judgement.notes)


@pytest.mark.parametrize("serial", ["S1", "S2"])
def test_the_bmc_of_another_machine_fails_no_node(
    watched: str, documents: Path, monkeypatch: pytest.MonkeyPatch, serial: str
) -> None:
    """The inventory has a line that was copied, so the node has the BMC of the machine S1, whose fan stands still."""
    bmc.write(documents, fans=[bmc.fan(rpm=0, health="Critical")], temperatures=[bmc.air()], supplies=[bmc.supply()])
    bmc.write_log(documents, "Systems/1", "SEL", [])
    system = documents / "Systems/1/index.json"
    system.write_text(json.dumps(json.loads(system.read_text()) | {"SerialNumber": "S1"}))
    enrol({"url": watched}, system=serial)
    pass_intake(monkeypatch)
    run_id = qualify()
    judged = next(
        each for each in store.reporting.run(RunKey(DAG_ID, run_id)).stages if each.judgement.stage == "burn_in"
    )
    assert {each.device for each in judged.judgement.findings} == ({"fan0"} if serial == "S1" else set())
    assert any("system serial 'S1'" in note for note in judged.judgement.notes) is (serial == "S2")


def pass_intake(monkeypatch: pytest.MonkeyPatch) -> None:
    from muster_criteria.model import Coverage, Judgement
    from muster_criteria.stage import judge as judging
    from muster_criteria.stage.case import Case

    real = judging.judge

    def judge(case: Case) -> Judgement:
        if case.stage != "intake":
            return real(case)
        return Judgement(
            case.stage, case.level, Verdict.PASS, "by decree", Coverage(1, 1, 1), (), (), False, case.sku.name, "1"
        )

    monkeypatch.setattr(judging, "judge", judge)
