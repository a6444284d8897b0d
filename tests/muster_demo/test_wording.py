"""The wording of the demo's messages: one snapshot, renewed by ``make wording``."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from muster_criteria.model import Verdict
from muster_demo import outcome
from muster_demo.draw import Planted
from muster_demo.scoring import Aftermath, Service
from muster_demo.service import ACTOR, ANSWER_REASON
from muster_demo.services import ServiceFailed, Supervisor
from tests.muster_demo.test_scoring import (
    HOST,
    NOT_SERVED,
    SPOILT,
    Fleet,
    approval,
    failed_in_block,
    finding,
    report,
    serving,
    spoilt_slurms,
)
from tests.muster_reports.fabrics import fabric
from tests.muster_reports.trainings import training


def sentences(fleet: Fleet) -> list[str]:
    return [check.sentence for check in fleet.score().checks if not check.ok]


def test_what_the_examiner_writes(snapshot: SnapshotAssertion) -> None:
    written = {"right": [check.sentence for check in Fleet().score().checks]}
    for number, fields in enumerate(NOT_SERVED):
        fleet = Fleet()
        fleet.change(fleet.healthy().node, **fields)
        written[f"not served {number}"] = sentences(fleet)
    for number, (_, changed) in enumerate(spoilt_slurms()):
        fleet = Fleet()
        fleet.in_slurm(**changed)
        written[f"slurm {number}"] = sentences(fleet)
    for number, (_, changed) in enumerate(SPOILT):
        fleet = Fleet()
        fleet.aftermath = dataclasses.replace(fleet.aftermath, **changed)  # type: ignore[type-var, arg-type]
        written[f"between tests {number}"] = sentences(fleet)
    for named in ((), (("straggler", "gpu7"),)):
        fleet = Fleet()
        node = fleet.in_block[0].node
        fleet.change(node, validations=failed_in_block(node, *named).validations)
        written[f"in the block {len(named)}"] = sentences(fleet)
    fleet = Fleet()
    fleet.in_block = ()
    written["no block"] = [check.sentence for check in fleet.score().checks if check.code == "block"]
    fleet = Fleet()
    fleet.put(report(HOST, Verdict.FAIL, (finding("gemm_peak_share", "cpu0"),), simulated=False))
    fleet.put(report(fleet.of_kind("sdc").node, Verdict.PASS))
    fleet.change(fleet.of_kind("throttle").node, state="production", entered_by="muster", on_full_pass=True)
    written["host failed, fault missed, faulty node serves"] = sentences(fleet)
    assert written == snapshot


def test_who_admitted_a_node(snapshot: SnapshotAssertion) -> None:
    people = [
        Service("n", "production", person, approvals=(approval("n", person, reason),))
        for person, reason in (("Petra", "seen it myself"), (ACTOR, ANSWER_REASON))
    ]
    assert outcome.admissions([serving("n"), *people, Service("n", "qualified")], ACTOR) == snapshot


def test_what_became_of_the_fault_between_tests(snapshot: SnapshotAssertion) -> None:
    console = Console(file=io.StringIO(), width=160)
    outcome.show_aftermath(console, None)
    outcome.show_aftermath(console, Fleet().aftermath)
    outcome.show_aftermath(console, Aftermath(Planted("n", 3, "row_remap_pending"), "row_remap_pending on gpu3"))
    assert console.file.getvalue() == snapshot  # type: ignore[attr-defined]


def test_a_block_on_screen(snapshot: SnapshotAssertion) -> None:
    console = Console(file=io.StringIO(), width=160)
    outcome.show_block(console, None, None)
    outcome.show_block(console, fabric(nodes=4, rails=1, faults=False), training())
    assert console.file.getvalue() == snapshot  # type: ignore[attr-defined]


def test_the_score_on_screen(snapshot: SnapshotAssertion) -> None:
    console = Console(file=io.StringIO(), width=160)
    outcome.show_score(console, Fleet().score())
    assert console.file.getvalue() == snapshot  # type: ignore[attr-defined]


def test_a_service_that_ends_or_does_not_come(snapshot: SnapshotAssertion, tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path / "logs")
    supervisor.start("dud", ["sh", "-c", "echo no database >&2; exit 4"], {"PATH": "/bin:/usr/bin"}).process.wait(5)
    with pytest.raises(ServiceFailed) as ended:
        supervisor.check()
    supervisor.services.clear()
    with pytest.raises(ServiceFailed) as late:
        supervisor.wait_until("the API", lambda: False, 0)
    assert [str(error.value).replace(str(tmp_path), "FOLDER") for error in (ended, late)] == snapshot
