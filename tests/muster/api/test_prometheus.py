"""A real Prometheus scrapes the app, loads the alert rules, and has data for every query of the dashboards."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
import yaml
from airflow import plugins_manager
from sqlalchemy import select
from starlette.applications import Starlette
from starlette.routing import Mount

from muster import store
from muster.admission.entry import move
from muster.api import app, metrics
from muster.judging import policies
from muster.model.states import BROKEN, State
from muster.store.database.engine import writing
from muster.store.database.models import FindingRow, MeasurementRow, NodeRow, StageRow
from muster.store.database.outgoing import PlaceRow
from muster_demo import watchdog
from tests.docs.reference.metrics import families
from tests.muster import fleet, numbers
from tests.support import airflow_home
from tests.support.waiting import until

DEPLOY = airflow_home.ROOT / "plugins" / "muster" / "deploy"
BOARDS = sorted((DEPLOY / "dashboards").glob("*.json"))


PANELS = [panel for board in BOARDS for panel in json.loads(board.read_text())["panels"]]


def queries(job: str = "muster") -> list[str]:
    exprs = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [expr.replace("$node", ".*").replace("$job", job) for expr in exprs]


def test_a_panel_shows_labels_where_they_are_what_its_query_answers() -> None:
    """Of a value that is always 1 Grafana shows the 1, and of a series in a table the value alone."""
    ones = [panel for panel in PANELS if any(target["expr"].endswith("* 0 + 1") for target in panel["targets"])]
    assert {(panel["type"], *panel["options"].items()) for panel in ones} == {
        ("stat", ("textMode", "name")), ("state-timeline", ("showValue", "never")),
    }  # fmt: skip
    tables = [target for panel in PANELS if panel["type"] == "table" for target in panel["targets"]]
    assert [target.get("format") for target in tables] == ["table"]
    ages = [panel for panel in PANELS if panel["fieldConfig"]["defaults"]["unit"] == "dateTimeFromNow"]
    assert len(ages) == 2
    assert all("* 1000" in target["expr"] for panel in ages for target in panel["targets"])


def test_what_an_alert_watches_is_counted_on_a_board() -> None:
    """Else a person is called for a number that no board shows."""
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    named = set(re.findall(r"muster_[a-z_]+", " ".join(rule["expr"] for rule in rules)))
    watched = {name.removesuffix("_oldest_timestamp_seconds") for name in named}
    counts = [name for name, *_ in families() if not name.endswith("_seconds")]
    shown = set(re.findall(r"muster_[a-z_]+", " ".join(queries())))
    assert [each for each in counts if each.startswith(tuple(watched)) and each not in shown] == []


def test_no_panel_has_the_colours_that_grafana_gives_to_a_number() -> None:
    """Which are green below 80 and red from there: green for a node in quarantine, and for one that never passed."""
    coloured = [panel for panel in PANELS if panel["type"] in ("stat", "bargauge", "state-timeline")]
    chosen = [panel["fieldConfig"]["defaults"] for panel in coloured]
    assert [each for each in chosen if "thresholds" not in each and each.get("color", {}).get("mode") != "fixed"] == []
    states = [panel for panel in PANELS if "{{state}}" in json.dumps(panel["targets"])]
    assert len(states) == 3
    for panel in states:
        matchers = {
            each["properties"][0]["value"]["fixedColor"]: each["matcher"]["options"].strip("/")
            for each in panel["fieldConfig"]["overrides"]
        }
        for before in ("n: ", ""):
            of = {colour: {each for each in State if re.search(of, before + each)} for colour, of in matchers.items()}
            assert of == {"red": BROKEN, "green": {State.PRODUCTION}}


def test_airflow_mounts_the_app() -> None:
    """That nothing else imports it is tested where DAGs are parsed: tests/dags/test_dag_files.py."""
    assert app.PREFIX in {each["url_prefix"] for each in plugins_manager.get_fastapi_plugins()[0]}


@pytest.mark.slow
@pytest.mark.needs_prometheus
@pytest.mark.usefixtures("fleet_db")
def test_prometheus_scrapes_and_has_data_for_each_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setenv("MUSTER_METRICS_TOKEN_FILE", str(tmp_path / "token"))
    populate(monkeypatch)
    with served() as port, prometheus(tmp_path, port) as api:
        until(lambda: api("query", query='up{job="muster"}') == ["1", "1"])
        until(lambda: api("query", query='up{job="wrong"}') == ["0"])
        until(lambda: api("query", query="scrape_samples_scraped{job='muster'} > 50") != [])
        without = [query for query in queries() if not api("query", query=query)]
        assert without == []
        # Each API server shows the same records, and another controller others: neither adds to what a board shows.
        until(lambda: api("query", query='up{job="muster-single"}') == ["1"])
        pairs = zip(queries(), queries("muster-single"), strict=True)
        assert [
            two for two, one in pairs if "time" not in two and api("query", query=two) != api("query", query=one)
        ] == []


def populate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet with something in each metric: its labels exist only where there is something to count."""
    for name in ("gpu-0001", "gpu-0002", "gpu-0003", "gpu-0004"):
        store.nodes.add(fleet.new_node(name, rack="r1"))
    fleet.qualify("gpu-0001")
    fleet.qualify("gpu-0002")
    fleet.fail("gpu-0003")
    monkeypatch.setattr(fleet, "DAG", "cluster_qualification")
    fleet.fail("gpu-0002", "block", stage="cluster_validation")
    fleet.begin("gpu-0004", "block-2")
    trained("gpu-0002")
    now = store.nodes.get("gpu-0001").added_at
    with writing() as session:
        session.get_one(NodeRow, "gpu-0001").state = "production"
        for name, done in (("gpu-0001", "admitted"), ("gpu-0002", "")):
            session.add(PlaceRow(node=name, cluster="c1", name=name, wanted="admitted", why="", wanted_at=now,
                                       done=done, done_at=now))  # fmt: skip
    numbers.broken_fleet()
    move("b", State.REGISTERED, "Ada", "its part is new")
    fleet.qualify("b", "b__repaired")
    move("b", State.PRODUCTION, "Ada", "it passed")
    store.numbers.make()


def trained(node: str) -> None:
    """Two ranks of the node's block, of which one held the other up."""
    with writing() as session:
        stage = session.scalars(select(StageRow.id).where(StageRow.stage == "cluster_validation")).one()
        rows = [("step_compute", f"gpu{slot}", {}, 1.0 + slot) for slot in range(2)]
        rows += [("step_wait", f"gpu{slot}", {}, 0.9 - 0.8 * slot) for slot in range(2)]
        rows += [("collective_time", "node", {"op": "all_reduce", "bytes": size}, 0.1) for size in ("8", "1024")]
        for metric, device, labels, value in rows:
            probe = "cluster_training" if device != "node" else "cluster_collectives"
            session.add(MeasurementRow(
                stage=stage, probe=probe, metric=metric, device=device, unit="s", value=value, text=None, labels=labels,
                samples=1, spread=None, note="", judged=None, floor=None, ceiling=None, source="", ok=None,
            ))  # fmt: skip
        slow = session.scalars(select(FindingRow).where(FindingRow.stage == stage)).first()
        assert slow is not None
        slow.rule, slow.device = "straggler", "gpu1"


def test_ranks_are_shown_with_the_straggler_marked(fleet_db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    populate(monkeypatch)
    ranks = store.figures.fleet(policies.health()).ranks
    assert {(each.device, each.part): each.straggler for each in ranks} == {
        ("gpu0", "compute"): False, ("gpu1", "compute"): True, ("gpu0", "communication"): False,
        ("gpu1", "communication"): True, ("node", "all_reduce"): False,
    }  # fmt: skip
    shown = metrics.render(store.figures.fleet(policies.health())).decode()
    assert 'muster_block_straggler{device="gpu1",node="gpu-0002"} 1.0' in shown


@contextlib.contextmanager
def served() -> Iterator[int]:
    """The app, mounted as Airflow's API server mounts it; yields its port."""
    mounted = Starlette(routes=[Mount(app.PREFIX, app.create_app())])
    server = uvicorn.Server(uvicorn.Config(mounted, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def prometheus(folder: Path, port: int) -> Iterator[object]:
    """A Prometheus of our own; yields ``api(path, **parameters)``, which returns the values of a query."""
    replicas = [f"127.0.0.1:{port}", f"localhost:{port}"]
    page = {"metrics_path": f"{app.PREFIX}/metrics"}
    single = page | {"static_configs": [{"targets": replicas[:1]}]}
    token = {"authorization": {"credentials_file": str(folder / "token")}}
    config = {
        "global": {"scrape_interval": "3s", "scrape_timeout": "3s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "alerts.yaml")],
        "scrape_configs": [
            {"job_name": "muster", **token, **page, "static_configs": [{"targets": replicas}]},
            {"job_name": "muster-single", **token, **single},
            {"job_name": "wrong", "authorization": {"credentials": "wrong"}, **single},
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        own = free.getsockname()[1]
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
               f"--web.listen-address=127.0.0.1:{own}"]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=watchdog.die_with_parent)
    url = f"http://127.0.0.1:{own}"

    def api(path: str, **parameters: str) -> list[str]:
        answer = httpx.get(f"{url}/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", answer
        return sorted(each["value"][1] for each in answer["data"]["result"])

    def ready() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/-/ready").status_code == 200
        return False

    try:
        until(ready)
        yield api
    finally:
        process.terminate()
        process.wait()
