"""The page of one node, from real records."""

from __future__ import annotations

import dataclasses
import datetime
import html
import re

import pytest
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient

from muster import store
from muster.model.attention import Cause
from muster.model.certificates import Certificate
from muster.model.events import Event
from muster.model.parts import Placement
from muster.model.states import State
from muster.store.database.engine import writing
from muster.store.database.outgoing import PlaceRow
from muster.web import access, plots, timeline
from muster.web import app as web
from muster_criteria import chassis
from muster_criteria.fleet.peers.bands import Band
from muster_criteria.labels import Key
from muster_criteria.model import Verdict
from muster_node.contract import Measurement
from tests.muster import fleet
from tests.muster.web.conftest import notices, page
from tests.support import lives

RATE = "gpu:gemm_rate:TFLOPS"


def test_a_figure_without_a_limit_is_shown_below_the_judged_ones(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    measured = [Measurement("gemm_rate", name, "gpu0", "TFLOPS", 640.0) for name in ("judged", "not_judged")]
    parsed, raw = fleet.result(node="n1", measurements=measured)
    found = fleet.judged(measured, floor=600.0)
    seen = (found.observations[0], dataclasses.replace(found.observations[1], floor=None))
    store.runs.begin_stage(lease.key, "intake", node="n1")
    fleet.record(lease.key, parsed, dataclasses.replace(found, observations=seen), raw, node="n1")
    store.runs.finish(lease.key, Verdict.PROVISIONAL, "not all is judged")
    figures = page(client, "/node/n1").partition('id="figures"')[2]
    judged, _, unlimited = figures.partition("<details>")
    assert 'aria-label="judged (gpu) in intake:' in judged
    assert 'aria-label="not_judged (gpu) in intake:' in unlimited


@pytest.mark.both_dialects
def test_a_figure_stands_beside_the_peers_of_its_sku_level_and_kind(client: TestClient) -> None:
    for name, simulated in (("n1", False), ("sim", True)):
        store.nodes.add(fleet.new_node(name, simulated=simulated))
        fleet.fail(name)
    snapshot = fleet.peers(range(500, 601))
    for sku, level, simulated in (("another", "short", False), ("cpu-generic", "long", False),
                                  ("cpu-generic", "short", True)):  # fmt: skip
        store.peers.keep(snapshot, sku, level, simulated=simulated)
    assert 'class="peers"' not in page(client, "/node/n1")
    store.peers.keep(snapshot, "cpu-generic", "short", simulated=False)
    (label,) = re.findall(r'aria-label="gemm_rate \(gpu\) in intake:([^"]+)"', page(client, "/node/n1"))
    assert {"101", "505", "550", "595"} <= set(re.findall(r"\d+", label))
    seen, *_ = plots.seen(store.reporting.run(store.runs.last("n1").key))
    strip, *_ = plots.strips([seen], {Key("gpu", "gemm_rate", (), "TFLOPS"): Band(505.0, 550.0, 595.0, 101)})
    assert strip.peers
    assert [word for _, word in strip.limits] == ["at least 600 TFLOPS"]
    counted = dataclasses.replace(seen, of=dataclasses.replace(seen.of, value=0.0, floor=0.0, ceiling=0.0))
    assert [word for _, word in plots.strips([counted])[0].limits] == ["exactly 0 TFLOPS"]
    floor, (dot,) = strip.limits[0][0], strip.dots
    assert strip.peers.low < strip.peers.median < strip.peers.high < floor < dot.x


def test_a_node_shows_its_figures_findings_history_and_parts(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1", serials={"gpu0": "S-1"}))
    fleet.fail("n1")
    text = page(client, f"/node/n1?metric={RATE}")
    for expected in (fleet.FINDING.summary, fleet.FINDING.expected, "S-1", "n1__new"):
        assert expected in text, expected
    assert client.get("/node/unknown").status_code == 404


def test_a_nodes_history_is_one_list(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1", serials={"gpu0": "S-1"}))
    run = fleet.fail("n1").run_id
    text = page(client, "/node/n1")
    history = text[text.index('id="history"') :]
    assert {"state", "test", "part"} <= set(re.findall(r'data-kind="([^"]+)"', history))
    for expected in ("S-1", f"/runs/{run}"):
        assert expected in history, expected
    assert f"/dags/{fleet.DAG}/runs/{run}/tasks/intake" in text, "a stage leads to its task's log"


def test_the_timeline_is_sorted_and_keeps_the_latest() -> None:
    def at(day: int) -> datetime.datetime:
        return datetime.datetime(2026, 5, day, tzinfo=datetime.UTC)

    event = Event("n1", at(2), State.REGISTERED, State.INTAKE, "muster", "x", {})
    parts = [Placement("n1", "gpu0", "gpu", "S-1", at(1), at(4))]
    certificate = Certificate("c-1", "n1", at(3), at(9), "PASS", None, "a FAIL", "", at(5))
    found = timeline.timeline([event], [], [certificate], parts, [], [], at(30), 4)
    expected = [(5, "certificate"), (4, "part"), (3, "certificate"), (2, "state")]
    assert [(each.at.day, each.kind) for each in found] == expected


@pytest.mark.parametrize(
    ("revoked", "now", "days"), [(None, 8, [3]), (None, 9, [9, 3]), (5, 30, [5, 3]), (12, 30, [12, 9, 3])]
)
def test_the_timeline_shows_what_became_of_a_certificate(revoked: int | None, now: int, days: list[int]) -> None:
    def at(day: int) -> datetime.datetime:
        return datetime.datetime(2026, 5, day, tzinfo=datetime.UTC)

    why, when = ("a FAIL", at(revoked)) if revoked else ("", None)
    row = Certificate("c-1", "n1", at(3), at(9), "PASS", None, why, "", when)
    assert [each.at.day for each in timeline.timeline([], [], [row], [], [], [], at(now), 9)] == days


@pytest.mark.both_dialects
def test_a_nodes_history_shows_each_certificate_and_what_its_bmc_showed(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    for run in ("one", "two"):
        fleet.qualify("n1", f"n1__{run}")
        store.nodes.move("n1", State.PRODUCTION, "ada", "seen it")
        if run == "one":
            store.nodes.move("n1", State.REGISTERED, "ada", "new fan")
    lease = fleet.begin("n1", "n1__three")
    parsed, raw = fleet.result("thermal", node="n1")
    states = (("psu0", "ok"), ("psu1", "critical"))
    readings = [chassis.reading("psu_state", device, None, state, "PSU") for device, state in states]
    shown = chassis.Chassis(tuple(readings)).to_json().encode()
    store.runs.begin_stage(lease.key, "thermal")
    fleet.record(lease.key, parsed, fleet.judgement("thermal"), raw, chassis=shown)
    newest, oldest = store.certificates.of_node("n1")
    assert (newest.revoked_at, bool(oldest.revoked_at), newest) == (None, True, store.certificates.newest("n1"))
    text = page(client, "/node/n1")
    history = text[text.index('id="history"') :]
    rows = re.findall(r'<tr data-kind="certificate">(.*?)</tr>', history, re.DOTALL)
    assert [sum(each.id in row for row in rows) for each in (newest, oldest)] == [1, 2], "issued; issued and revoked"
    assert ("psu1" in history, "psu0" in history) == (True, False)


def test_a_chosen_metric_and_a_chosen_curve_stand_side_by_side(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    lease = fleet.begin("n1")
    store.runs.begin_stage(lease.key, "intake", node="n1")
    parsed, raw = fleet.result(node="n1")
    fleet.record(lease.key, parsed, fleet.judgement(), raw, fleet.telemetry(10), node="n1")
    store.runs.finish(lease.key, Verdict.PASS, "All is well.")
    text = page(client, f"/node/n1?metric={RATE}&curve=x")
    assert '<input type="hidden" name="curve" value="x">' in text
    assert f'<input type="hidden" name="metric" value="{RATE}">' in text


def test_without_the_permission_the_node_page_has_no_forms(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    assert 'method="post"' in page(client, "/node/n1")
    app = client.app
    assert isinstance(app, FastAPI)
    for may in (access.may_decide, access.may_start):
        app.dependency_overrides[may] = lambda: False
    assert 'method="post"' not in page(client, "/node/n1")


def test_the_last_attempt_that_was_skipped_is_a_line_beside_the_last_verdict(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.fail("n1")
    for state in (State.TRIAGE, State.REPAIR, State.REGISTERED):
        store.nodes.move("n1", state, "Ada", "repaired")
    lease = fleet.begin("n1", "skipped")
    store.runs.finish(lease.key, Verdict.SKIPPED, "A job took the node.")
    store.leases.release(lease.key, "over")
    text = page(client, "/node/n1")
    assert fleet.FINDING.summary in text
    assert re.findall(r'data-skipped="([^"]+)"', text) == ["skipped"]
    fleet.qualify("n1", "again")
    assert "data-skipped" not in page(client, "/node/n1")


def test_a_metric_of_one_run_is_drawn(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.fail("n1")
    (path,) = re.findall(r'class="line" d="([^"]+)"', page(client, f"/node/n1?metric={RATE}"))
    assert path.endswith("h8")


def test_what_to_do_follows_what_a_person_decided_since(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_BREAKER_FLEET", "1")
    store.nodes.add(fleet.new_node("n1"))
    lives.in_production("n1")
    fleet.fail("n1")
    assert to_do(client)[0] == [Cause.HELD]
    store.withdrawals.keep_in_service("n1", "Ada", "a bad driver")
    causes, commands = to_do(client)
    assert Cause.HELD not in causes
    assert any(each.startswith("muster node move n1 quarantine") for each in commands)
    store.nodes.move("n1", State.QUARANTINE, "Ada", "no better")
    causes, commands = to_do(client)
    assert causes == [Cause.QUARANTINE]
    assert not any("quarantine" in each for each in commands), "it is there"


def to_do(client: TestClient, name: str = "n1") -> tuple[list[str], list[str]]:
    """What a node waits for, and the commands that the page names for it before its findings."""
    text = page(client, f"/node/{name}").partition('id="findings"')[0]
    commands = re.findall(r"(muster [a-z]+[^<:;,]*)", html.unescape(text))
    return re.findall(r'data-cause="([^"]+)"', text), commands


def test_the_page_of_a_node_that_waits_says_for_what_and_whose_turn_it_is(client: TestClient) -> None:
    for name in ("n1", "n2"):
        store.nodes.add(fleet.new_node(name))
        fleet.qualify(name)
    causes, commands = to_do(client)
    assert causes == [Cause.WAITS_FOR_BLOCK]
    assert "muster block n1 n2 --reason …" in commands


def test_a_person_s_reason_for_a_quarantine_stands_before_the_pass(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    lives.in_production("n1")
    store.nodes.move("n1", State.QUARANTINE, "Ada", "smells of smoke")
    assert to_do(client)[0] == [Cause.QUARANTINE]
    assert re.findall(r'data-why="([^"]+)"', page(client, "/node/n1")) == ["smells of smoke"]


def test_the_page_shows_the_node_as_its_scheduler_does(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    lives.in_production("n1")
    assert "data-shown" not in page(client, "/node/n1")
    with writing() as session:
        now = datetime.datetime.now(datetime.UTC)
        there = {"cluster": "alpha", "name": "n1", "wanted": "admitted", "done": "admitted", "why": ""}
        session.add(PlaceRow(node="n1", wanted_at=now, **there))
    assert 'data-shown=""' in page(client, "/node/n1")
    shown = "closed: root: bad fan"
    store.schedulers.note_seen("n1", shown, "it is admitted, and closed in alpha: root: bad fan")
    text = page(client, "/node/n1")
    assert re.findall(r'data-shown="([^"]+)"', text) == [shown], "with its state"
    assert shown in text.partition('id="history"')[2]
    causes, commands = to_do(client)
    assert causes == [Cause.CLOSED]
    assert any(each.startswith("muster node schedulers") for each in commands)


def test_the_chart_over_a_life_has_axes_and_offers_what_earlier_runs_measured(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.qualify("n1")
    lease = fleet.begin("n1", "later")
    fleet.do_stage(lease, "intake")
    measured = [Measurement("probe", "only_in_the_last", "gpu0", "W", 7.0)]
    parsed, raw = fleet.result("burn_in", node="n1", measurements=measured)
    store.runs.begin_stage(lease.key, "burn_in", node="n1")
    fleet.record(lease.key, parsed, fleet.judgement("burn_in"), raw, node="n1")
    store.runs.finish(lease.key, Verdict.INCONCLUSIVE, "Not all was measured.")
    text = page(client, f"/node/n1?metric={RATE}").partition('id="life"')[2]
    assert {"gemm_rate (gpu)", "only_in_the_last (gpu)"} <= set(re.findall(r"<option[^>]*>([^<]+)</option>", text))
    chart = text.partition("<svg")[2].partition("</svg>")[0]
    assert 'class="axis"' in chart
    assert chart.count("<text") == 4, "both ends of both axes"


def test_a_history_and_runs_that_are_cut_say_so(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.qualify("n1")
    fleet.fail("n1", "second")
    assert "data-more" not in page(client, "/node/n1")
    monkeypatch.setattr(web, "EVENTS_MAX", 3)
    monkeypatch.setattr(web, "RUNS_MAX", 1)
    text = page(client, "/node/n1")
    assert re.findall(r'data-more="(\w+)"', text) == ["runs", "history"]
    assert text.count("data-kind=") == 3


def test_after_an_action_the_page_names_the_run_that_was_started_with_a_link(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    text = page(client, "/node/n1?started=node_qualification%2Fn1__why")
    assert '/dags/node_qualification/runs/n1__why"' in text
    assert "n1__why" not in page(client, "/node/n1")


def test_a_page_that_is_shown_again_once_the_run_is_recorded_announces_it_no_more(client: TestClient) -> None:
    store.nodes.add(fleet.new_node("n1"))
    fleet.begin("n1")
    assert notices(page(client, "/node/n1?started=node_qualification%2Fn1__new")) == []


def test_who_is_not_logged_in_is_led_to_the_login(client: TestClient) -> None:
    app = client.app
    assert isinstance(app, FastAPI)

    def refuse() -> None:
        raise HTTPException(401, "Not authenticated")

    app.dependency_overrides[access.read] = refuse
    answer = client.get("/node/n1", headers={"Accept": "text/html"})
    assert (answer.status_code, '/auth/login"' in answer.text) == (401, True)
