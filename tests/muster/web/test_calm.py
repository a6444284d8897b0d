"""What is wrong does not look right on the overview: nodes that do not serve, DAGs that do not run."""

from __future__ import annotations

import datetime
import re

import pytest
from airflow.models.dagrun import DagRun
from fastapi.testclient import TestClient
from sqlalchemy import Engine, select

from muster import store
from muster.model.dags import HOUSEKEEPING, IDLE_REVALIDATION, PEER_STATISTICS, STOPPED_AFTER
from muster.model.states import State
from muster.store.database.decisions import CertificateRow
from muster.store.database.engine import writing
from muster.store.database.models import NodeRow
from muster.store.database.outgoing import PlaceRow
from muster.web import overview
from tests.muster import fleet
from tests.muster.web.conftest import notices, page
from tests.support import lives


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
    assert re.findall(r"<b>(\d)</b> <span class=.sim.>(\d) ", text) == [("1", "1")] * 2, "by state and by verdict"
    store.nodes.move("real", State.QUARANTINE, "Ada", "it is hot")
    assert "Not serving: 1 of 1, 1 of 1 simulated" in page(client, "/")


@pytest.mark.parametrize(("dag", "hours", "noticed"), [
    (HOUSEKEEPING, 0.5, 0), (HOUSEKEEPING, 2, 1), (HOUSEKEEPING, 200, 1),
    (IDLE_REVALIDATION, 2, 0), (PEER_STATISTICS, 9, 0),
])  # fmt: skip
def test_a_dag_that_stopped_is_a_notice_if_the_page_rests_on_it(
    client: TestClient, dag_runs: Engine, dag: str, hours: float, noticed: int
) -> None:
    """Else the page shows for days what was true when its last run ended."""
    now = store.clock.now()
    for name in STOPPED_AFTER:
        succeeded(dag_runs, name, now - datetime.timedelta(hours=hours if name == dag else 0.1))
    assert notices(page(client, "/")) == [], "there is no node yet"
    store.nodes.add(fleet.new_node())
    with writing() as session:
        session.get_one(NodeRow, "gpu-0001").added_at = now - datetime.timedelta(days=9)
    text = page(client, "/")
    assert (len(notices(text)), f"DAG {dag} " in text) == (noticed, bool(noticed))


def test_an_expired_certificate_in_service_is_a_notice(client: TestClient, dag_runs: Engine) -> None:
    for name in STOPPED_AFTER:
        succeeded(dag_runs, name, store.clock.now())
    serves("real")
    with writing() as session:
        (certificate,) = session.scalars(select(CertificateRow))
        certificate.expires_at = store.clock.now() - datetime.timedelta(days=1)
    text = page(client, "/")
    assert (len(notices(text)), "first real" in text) == (1, True)


def test_a_dag_without_a_run_is_a_notice_once_it_should_have_ended(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.add(fleet.new_node())
    assert notices(page(client, "/")) == []
    later = store.clock.now() + datetime.timedelta(hours=2)
    monkeypatch.setattr(overview, "_now", lambda: later)
    assert len(notices(page(client, "/"))) == len(overview.RESTS_ON)


def succeeded(airflow: Engine, dag: str, end: datetime.datetime) -> None:
    run = {"dag_id": dag, "run_id": str(end), "state": "success", "end_date": end, "run_type": "scheduled"}
    more = {"run_after": end, "log_template_id": 1, "span_status": "not_started"}
    with airflow.begin() as session:
        session.execute(DagRun.metadata.tables["dag_run"].insert().values(**run, **more))
