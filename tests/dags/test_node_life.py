"""One node's life in a real Airflow: its five stages are measured, a person is asked, and it enters production."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster import store
from muster.model.runs import RunKey
from muster.model.states import State
from muster_criteria.model import Verdict
from muster_criteria.sku_files.skus import SHIPPED
from tests.dags import conftest
from tests.dags.conftest import NODE, Mailbox
from tests.support.servers import live_airflow

pytestmark = [*live_airflow.MARKS, pytest.mark.early(7)]

QUALIFICATION, ADMISSION = "node_qualification", "admission"
STAGES = ["intake", "burn_in", "integrity", "performance", "thermal"]
MEASURED = (Verdict.PASS, Verdict.WARN, Verdict.PROVISIONAL)
"""What a healthy node can get that has neither peers nor history."""


def short_loads(folder: Path) -> Path:
    """The shipped SKU files, whose burn and soak of a CPU node last as long as shows that they ran."""
    shutil.copytree(SHIPPED, folder)
    programme = folder / "programmes" / "cpu-node.yaml"
    text = programme.read_text()
    assert text.count("seconds: {demo: 6,") == 2
    programme.write_text(text.replace("seconds: {demo: 6,", "seconds: {demo: 2,"))
    return folder


@pytest.fixture
def mailbox_and_desk(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Mailbox, live_airflow.Desk]]:
    folder = tmp_path_factory.mktemp("life")
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("MUSTER_ADMISSION_LEVEL", "demo")
        patch.setenv("MUSTER_SKU_PATH", str(short_loads(folder / "skus")))
        stack.enter_context(conftest.empty_records(folder, patch))
        mailbox = stack.enter_context(conftest.mail_sink(patch))
        stack.enter_context(conftest.this_machine(folder, patch))
        yield mailbox, live_airflow.Desk(stack.enter_context(live_airflow.running(folder, QUALIFICATION)))


def test_a_node_is_tested_admitted_by_a_person_and_in_service(
    mailbox_and_desk: tuple[Mailbox, live_airflow.Desk],
) -> None:
    mailbox, desk = mailbox_and_desk
    tested, decision = f"{NODE}__first", f"{NODE}-asked"
    conf = {
        "node": NODE,
        "level": "demo",
        "reason": "a new node",
        "force_reason": "the tests run here",
        "pool": "rack-a",
    }
    desk.client.trigger(QUALIFICATION, tested, conf)
    desk.wait_over(QUALIFICATION, tested)
    assert [(each.stage, each.attempts) for each in store.runs.stages(RunKey(QUALIFICATION, tested))] == [
        (stage, 1) for stage in STAGES
    ]
    run = store.runs.get(RunKey(QUALIFICATION, tested))
    assert run.verdict in MEASURED, run.headline
    assert store.nodes.get(NODE).state is State.QUALIFIED
    assert store.leases.live() == []
    assert len(mailbox.about(NODE)) == 1
    desk.stack.wait_ready(ADMISSION)
    desk.client.trigger(ADMISSION, decision, {"node": NODE})
    desk.wait("the question", lambda: [each for each in desk.client.hitl_pending() if NODE in each["subject"]])
    assert store.leases.live() == [], "no run holds the node while a person decides"
    desk.settle()
    desk.client.hitl_answer(ADMISSION, decision, "ask", ["Admit"], {"decision_reason": "seen it myself"})
    assert desk.wait_over(ADMISSION, decision) == "success"
    (approval,) = store.verdicts.approvals(NODE)
    assert approval.person == desk.stack.login.username
    assert list(dict.fromkeys(event.to_state for event in store.nodes.events(NODE))) == [
        State.REGISTERED, State.INTAKE, State.BURN_IN, State.VALIDATION, State.QUALIFIED, State.PRODUCTION,
    ]  # fmt: skip
