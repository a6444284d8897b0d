"""``python -m tests.bench.aged_fleet --nodes N --runs R``: what a fleet costs after two years, on PostgreSQL.

Each node has lived through R whole qualifications, evenly over two years; of each loaded stage there is telemetry.
Timed: a back-up and its restore, the export of a run, the gate's decision and a node's page, a scrape of the metrics,
what is read to choose idle tests, and retention that keeps telemetry for 90 days, raw results and measurements for a
year, and runs for 600 days. Checked: the restored records have as many rows in each table, what is too old is gone, and
no node is. Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import BigInteger, Column, Integer, text

from muster import store
from muster.admission import idle_fleet
from muster.judging import policies
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.settings import settings
from muster.store.database.base import Base
from muster.store.database.engine import reading, writing
from muster.store.database.retention import WITNESSES
from muster_demo import watchdog
from tests.bench import age, bars
from tests.muster import fleet
from tests.support.servers import postgresql, sshd

YEARS_H, STEP = 2 * 365 * 24.0, 10**7
"""Hours of two years; how far the numbers of one node's rows are from those of the next."""
PLACES = {"origin", "ended_place", "after", "until_after", "accepted", "kept", "repaired", "machine_event"}
"""Columns that hold the number of a stage or event without a foreign key."""
NAMES = {("nodes", "host_key"), ("parts", "serial"), ("certificates", "id")}
SKIPPED = {"goldens", "peer_snapshots", "sku_revisions", "audit_cursors", "outbox"}


def copied(column: Column[object]) -> str:
    """The column's value in the rows of node number ``k``."""
    keys = {key.column.name for key in column.foreign_keys} | ({"id"} if column.name == "id" else set())
    if column.name == "name" or "name" in keys or (column.table.name, column.name) in NAMES:
        return f"\"{column.name}\" || '-' || k"
    if isinstance(column.type, BigInteger | Integer) and ("id" in keys or column.name in PLACES):
        return f'"{column.name}" + k::bigint * {STEP}'
    return f'"{column.name}"'


def multiply(nodes: int) -> None:
    """Make ``nodes`` of the one that there is."""
    with writing() as session:
        for table in Base.metadata.sorted_tables:
            if table.name in SKIPPED:
                continue
            names = ", ".join(f'"{column.name}"' for column in table.c)
            values = ", ".join(copied(column) for column in table.c)
            copies = f"SELECT {values} FROM {table.name}, generate_series(1, {nodes - 1}) k"
            session.execute(text(f"INSERT INTO {table.name} ({names}) {copies}"))
            if "id" in table.c and isinstance(table.c.id.type, BigInteger):
                last = f"(SELECT max(id) FROM {table.name})"
                session.execute(text(f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), {last})"))
    with writing() as session:
        session.execute(text("ANALYZE"))


@contextlib.contextmanager
def timed(figures: dict[str, float], name: str) -> Iterator[None]:
    """Note the block's seconds."""
    began = time.perf_counter()
    yield
    figures[name] = round(time.perf_counter() - began, 1)
    print(name, figures[name], flush=True)


def rows() -> dict[str, int]:
    """{table: its rows}."""
    with reading() as session:
        counted = {name: session.scalar(text(f"SELECT count(*) FROM {name}")) for name in Base.metadata.tables}
    return {name: int(number or 0) for name, number in counted.items()}


def older(table: str, column: str, days: int) -> int:
    """How many rows are older than ``days``."""
    with reading() as session:
        asked = f"SELECT count(*) FROM {table} WHERE {column} < now() - interval '{days} days'"
        return int(session.scalar(text(asked)) or 0)


def scrape(_: int) -> object:
    """The fleet in figures."""
    return store.figures.fleet(policies.health())


def planner(_: int) -> object:
    """What the choice of idle tests knows of the fleet."""
    return idle_fleet.known(store.nodes.find(), store.clock.now())


def measure(server: postgresql.PostgreSQL, folder: Path, nodes: int, runs: int) -> dict[str, float]:
    """All figures; raises AssertionError where something is lost or kept too long."""
    figures: dict[str, float] = {"nodes": nodes, "runs_per_node": runs}
    with timed(figures, "aging_s"):
        age.first_run({stage: age.stage_of(stage, metrics=1, seconds=20) for stage in STAGES})
        age.grow(1, runs, YEARS_H / runs)
        multiply(nodes)
    for name, ask in (("scrape_ms", scrape), ("planner_ms", planner)):
        took, _ = age.measured(ask, age.REPEATS)
        figures[name] = round(statistics.median(took), 1)
    before = rows()
    figures["rows"] = sum(before.values())
    gate, _ = age.measured(lambda _: store.admission.decision(f"{age.NODE}-1"), age.REPEATS)
    page, _ = age.measured(lambda _: age.page(), age.PAGES)
    figures["gate_ms"], figures["page_ms"] = round(sorted(gate)[len(gate) // 2], 1), round(sorted(page)[-2], 1)
    saved = folder / "saved"
    with timed(figures, "backup_s"):
        assert store.backup.save(saved).rows == figures["rows"]
    figures["backup_mb"] = round(saved.stat().st_size / 1e6)
    with timed(figures, "export_s"):
        files = store.export.run(RunKey(fleet.DAG, "run-1"), folder / "run", node=age.NODE)
        assert {"run.json"} <= {each.name for each in files}
    store.engine.dispose()
    os.environ["MUSTER_DATABASE_URL"] = server.create("restored")
    with timed(figures, "restore_s"):
        store.backup.restore(saved)
    assert rows() == before
    os.environ |= {
        "MUSTER_RETENTION_MEASUREMENTS_DAYS": "365", "MUSTER_RETENTION_RUNS_DAYS": "600",
    }  # fmt: skip
    for _ in range(WITNESSES):
        store.audit.command("a decision of today", {})  # retention trusts a clock that events confirm
    with timed(figures, "retention_s"):
        purged = store.retention.apply()
    gone = ("telemetry", "measurements", "runs")
    figures |= {f"{kind}_gone": purged[kind] for kind in gone}
    keep = settings()
    assert older("runs", "ended_at", keep.retention_runs_days) == 0
    assert older("artifacts", "created_at", keep.retention_results_days) == 0
    assert rows()["nodes"] == nodes
    assert before["runs"] - rows()["runs"] == purged["runs"]
    assert all(purged[kind] > 0 for kind in gone)
    return figures


def main(arguments: list[str]) -> int:
    """The command; status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=12)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="aged-") as name, postgresql.running() as server:
        os.environ |= {
            "MUSTER_HOME": f"{name}/home", sshd.CONNECTION: sshd.connection(),
            "MUSTER_DATABASE_URL": server.create("aged"),
        }  # fmt: skip
        os.environ.setdefault("AIRFLOW_HOME", f"{name}/airflow")
        store.engine.upgrade()
        figures = measure(server, Path(name), chosen.nodes, chosen.runs)
        store.engine.dispose()
    print(json.dumps(figures))
    return bars.status(figures, bars.AGED_FLEET)


if __name__ == "__main__":
    sys.exit(watchdog.run(lambda: main(sys.argv[1:])))
