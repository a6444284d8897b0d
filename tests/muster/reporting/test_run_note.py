"""The note of a DAG run; the unattended demo shows it in a real Airflow."""

from __future__ import annotations

import httpx
import pytest
from markdown_it import MarkdownIt

from muster import store
from muster.integration.airflow_api import AirflowClient
from muster.model.runs import RunKey
from muster.reporting import run_note
from muster_criteria.model import Verdict
from tests.muster import fleet

pytestmark = pytest.mark.usefixtures("fleet_db")


class Airflow:
    """Stands in for the API of Airflow 3.3: keeps notes, and refuses one of more than 1,000 characters."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.notes: list[str] = []
        self.down = False
        self.note = ""
        transport = httpx.MockTransport(self.answer)

        def made(timeout_s: float) -> AirflowClient:
            return AirflowClient("http://airflow", token="t", transport=transport, timeout_s=timeout_s)

        patch.setattr(run_note.AirflowClient, "from_settings", made)
        patch.setenv("MUSTER_AIRFLOW_TOKEN", "t")

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("refused")
        if request.method == "GET":
            return httpx.Response(200, json={"note": self.note or None})
        assert (request.method, request.url.params["update_mask"]) == ("PATCH", "note")
        note = httpx.Response(200, content=request.content).json()["note"]
        if len(note) > 1000:
            return httpx.Response(422, json={"detail": "note"})
        self.notes.append(note)
        self.note = note
        return httpx.Response(200, json={})


def test_the_note_names_node_verdict_and_reason_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = Airflow(monkeypatch)
    store.nodes.add(fleet.new_node("n1"))
    run = fleet.fail("n1").run_id
    run_note.annotate(RunKey(fleet.DAG, run))
    assert airflow.notes == ["n1: FAIL: gpu3 is slow."]
    airflow.down = True
    run_note.annotate(RunKey(fleet.DAG, run))
    monkeypatch.delenv("MUSTER_AIRFLOW_TOKEN")
    airflow.down = False
    run_note.annotate(RunKey(fleet.DAG, run))
    assert len(airflow.notes) == 1


def test_a_node_writes_no_link_or_picture_into_the_note(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = Airflow(monkeypatch)
    airflow.note = "Petra swapped gpu3"
    headline = "![](https://evil.example/p) [log in](https://evil.example) <b> www.evil.example ops@evil.example"
    for name in ("n_1", "n_2"):
        store.nodes.add(fleet.new_node(name))
        store.runs.begin(RunKey("block", "b"), name, "short", "x")
        store.runs.finish(RunKey("block", "b"), Verdict.INCONCLUSIVE, headline, node=name)
    run_note.annotate(RunKey("block", "b"))
    first = airflow.note
    run_note.annotate(RunKey("block", "b"))
    assert airflow.note == first, "its own lines are replaced"
    shown = MarkdownIt("commonmark").render(first)
    assert shown.count("<br") == 1, "a line for each node"
    assert not [each for each in ("<a", "<img", "<b>", "<em", "https://", "www.", "@evil") if each in shown]


@pytest.mark.parametrize("by_hand", ["Petra swapped gpu3", "n1: watch the fan", "x" * 990, "x" * 1000])
def test_a_note_of_a_person_stays_above_the_verdict(monkeypatch: pytest.MonkeyPatch, by_hand: str) -> None:
    airflow = Airflow(monkeypatch)
    airflow.note = by_hand
    store.nodes.add(fleet.new_node("n1"))
    run = fleet.fail("n1").run_id
    run_note.annotate(RunKey(fleet.DAG, run))
    run_note.annotate(RunKey(fleet.DAG, run))  # a task that was cleared
    assert airflow.note == (f"{by_hand}\n\nn1: FAIL: gpu3 is slow."[:1000] if len(by_hand) < 900 else airflow.note)
    assert airflow.note.startswith(by_hand)


def test_a_block_has_a_line_for_each_member_as_long_as_airflow_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    airflow = Airflow(monkeypatch)
    for number in range(20):
        name = f"n{number:02d}"
        store.nodes.add(fleet.new_node(name))
        store.runs.begin(RunKey("block", "b"), name, "short", "x")
        store.runs.finish(RunKey("block", "b"), Verdict.INCONCLUSIVE, "x" * 90 + "\nsecond", node=name)
    run_note.annotate(RunKey("block", "b"))
    (note,) = airflow.notes
    assert note.startswith("n00: INCONCLUSIVE: xxx")
    assert len(note) == 1000
    run_note.annotate(RunKey("block", "no such run"))
    assert len(airflow.notes) == 1
