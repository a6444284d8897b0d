"""What is wrong does not look right on the overview: nodes that do not serve, DAGs that do not run."""

from __future__ import annotations

import datetime
import re

import pytest
from fastapi.testclient import TestClient

from muster import store
from muster.integration import last_runs
from muster.model.dags import HOUSEKEEPING, PEER_STATISTICS, STOPPED_AFTER
from muster.model.states import State
from muster.store.database.engine import writing
from muster.store.database.outgoing import PlaceRow
from muster.web import overview
from tests.muster import fleet
from tests.muster.web.conftest import page
from tests.support import lives

STOPPED = overview._stopped


def serves(name: str, *, simulated: bool = False, shown: str = "open") -> None:
    store.nodes.add(fleet.new_node(name, rack="r1", simulated=simulated))
    lives.in_production(name)
    now = store.clock.now()
    with writing() as session:
        session.add(PlaceRow(node=name, cluster="c1", name=name, wanted="admitted", why="", wanted_at=now,
                             done="admitted", done_at=now, shown=shown, shown_since=now))  # fmt: skip


def test_a_node_in_production_that_its_scheduler_has_closed_is_out_on_the_map_and_in_the_table(
    client: TestClient,
) -> None:
    for name, shown in (("away", "down: Not responding"), ("unknown", "not at all"), ("works", "open")):
        serves(name, shown=shown)
    text = page(client, "/")
    cells = dict(re.findall(r'href="/muster/node/(\w+)" tabindex="-1".*?<rect class="(\w+)"', text))
    assert cells == {"away": "out", "unknown": "out", "works": "serving"}
    (rack,) = re.findall(r'aria-label="(r1:.*?)"', text)
    assert re.findall(r"\d+", rack) == ["1", "3", "2"]
    assert text.count(">not serving<") == 2
    assert text.count("Not responding") >= 2, "the cell says why, too"


def test_simulated_nodes_are_counted_apart(client: TestClient) -> None:
    serves("real")
    assert "simulated" not in page(client, "/")
    serves("sim", simulated=True, shown="down")
    text = page(client, "/")
    assert "Not serving: 1 of 1 simulated" in text
    assert re.findall(r"production <b>(\d)</b> <span class=.sim.>(\d) ", text) == [("2", "1")]
    store.nodes.move("real", State.QUARANTINE, "Ada", "it is hot")
    assert "Not serving: 1 of 1, 1 of 1 simulated" in page(client, "/")


def test_a_dag_that_stopped_is_a_notice_unless_it_may_still_begin(
    fleet_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the page shows for days what was true when its last run ended."""
    now = store.clock.now()
    ended = dict.fromkeys(STOPPED_AFTER, now)
    monkeypatch.setattr(last_runs, "successes", lambda: ended)
    assert STOPPED(store.overview.rows()) == []
    store.nodes.add(fleet.new_node())
    rows = store.overview.rows()
    assert STOPPED(rows) == []
    ended |= {HOUSEKEEPING: now - datetime.timedelta(hours=2), PEER_STATISTICS: None}
    (notice,) = STOPPED(rows)
    assert f" {HOUSEKEEPING} " in notice
    ended |= dict.fromkeys(ended)
    assert STOPPED(rows) == [], "its first run may still come"
    monkeypatch.setattr(overview, "_now", lambda: now + datetime.timedelta(hours=2))
    assert [dag in "".join(STOPPED(rows)) for dag in overview.RESTS_ON] == [True] * 3
