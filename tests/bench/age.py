"""``python -m tests.bench.age --runs N``: what a node costs after N runs, on PostgreSQL where it is installed.

A node of eight GPUs lives through 10, 100 and so on up to N qualifications, each stage with its measurements, the
loaded ones with charts, the latest 30 runs with telemetry files. Timed at each age: the gate's decision (``gate_ms``),
the node's page as the web server renders it (``page_ms``, 95th percentile), and the transaction that stores a verdict
(``record_ms``); ``peak_mb``: what these allocate at most. Each is asked once before, as a running controller was.
Prints a table and one JSON object as its last line; status 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import func, insert, select, text, update
from starlette.requests import Request

from muster import store
from muster.model.nodes import NewNode
from muster.model.stages import LOAD_STAGES, STAGES
from muster.model.states import State
from muster.store.database.base import Base
from muster.store.database.decisions import CertificateRow
from muster.store.database.engine import reading, writing
from muster.store.database.models import ArtifactRow, EventRow, JobRow, LeaseRow, MeasurementRow, RunRow, StageRow
from muster_criteria.measured import StageResult
from muster_criteria.model import Judgement, Verdict
from muster_demo import watchdog
from muster_node.contract import Measurement
from tests.bench import bars
from tests.muster import fleet
from tests.support.servers import postgresql, sshd

NODE, LEVEL, AGES = "gpu-0001", "long", (10, 100, 1000)
GPUS, METRICS, CHARTED = 8, 30, ("temperature", "hbm_temperature", "power", "clock", "utilisation")
SECONDS, WITH_TELEMETRY, REPEATS, PAGES = 600, 30, 7, 20
FIGURES = (*(key for key in bars.AGE if key != "more_mb"), "peak_mb")


@contextlib.contextmanager
def records(folder: Path) -> Iterator[str]:
    """Empty records; yields what they are on."""
    os.environ["MUSTER_HOME"], os.environ[sshd.CONNECTION] = str(folder / "home"), sshd.connection()
    with contextlib.ExitStack() as stack:
        try:
            os.environ["MUSTER_DATABASE_URL"] = stack.enter_context(postgresql.running()).create("age")
            where = "postgresql"
        except FileNotFoundError:
            os.environ.pop("MUSTER_DATABASE_URL", None)
            where = "sqlite"
        store.engine.upgrade()
        yield where
        store.engine.dispose()


def stage_of(
    stage: str, metrics: int = METRICS, seconds: int = SECONDS
) -> tuple[StageResult, bytes, Judgement, bytes | None]:
    """A stage as a node of eight GPUs returns it, judged PASS, and its telemetry if it loads the node."""
    figures = [
        Measurement("gemm_rate", f"rate_{place}", f"gpu{gpu}", "TFLOPS", 612.5, labels={"dtype": "bf16"})
        for place in range(metrics)
        for gpu in range(GPUS)
    ]
    serials = {"system": "CHASSIS1", **{f"gpu{gpu}": f"SERIAL{gpu}" for gpu in range(GPUS)}}
    result, raw = fleet.result(
        stage, node=NODE, serials=serials, measurements=figures, environment={"driver": "580.65", "vbios": "96.1"}
    )
    devices = [f"gpu{gpu}" for gpu in range(GPUS)]
    rows = [fleet.telemetry(seconds, devices, series) for series in CHARTED] if stage in LOAD_STAGES else []
    judged = fleet.judged(figures, floor=600.0)
    changed: dict[str, Any] = {"stage": stage, "level": LEVEL, "verdict": Verdict.PASS}
    return result, raw, type(judged)(**{**vars(judged), **changed}), b"".join(rows) or None


def first_run(stages: dict[str, tuple[StageResult, bytes, Judgement, bytes | None]]) -> None:
    """The node's first qualification, by the functions of the controller, and its entry into production."""
    store.nodes.add(NewNode(NODE, "n.example", fleet.host_key(NODE), "cpu-generic"))
    lease = fleet.begin(NODE, "run-0", level=LEVEL)
    for stage, (result, raw, judgement, telemetry) in stages.items():
        store.runs.begin_stage(lease.key, stage)
        fleet.record(lease.key, result, judgement, raw, telemetry)
    store.runs.finish(lease.key, Verdict.PASS, "as the SKU demands")
    store.leases.release(lease.key, "over")
    store.nodes.move(NODE, State.PRODUCTION, "Petra", "the bench begins here")


def grow(done: int, age: int, apart_h: float = 17.0) -> None:
    """Copy the first run, so that the node has ``age`` runs instead of ``done``, ``apart_h`` hours apart."""
    with writing() as session:
        run = _values(session.scalars(select(RunRow).order_by(RunRow.id)).first())
        first = run.pop("id")
        stages = [_values(each) for each in session.scalars(select(StageRow).where(StageRow.run == first))]
        figures = {
            stage["id"]: [
                _values(each) for each in session.scalars(select(MeasurementRow).filter_by(stage=stage["id"]))
            ]
            for stage in stages
        }
        files = {
            stage["id"]: [_values(each) for each in session.scalars(select(ArtifactRow).filter_by(stage=stage["id"]))]
            for stage in stages
        }
        lease, certificate = (_values(session.scalars(select(table)).first()) for table in (LeaseRow, CertificateRow))
        event = _values(session.scalars(select(EventRow).order_by(EventRow.id.desc())).first())
        number = session.scalar(select(func.max(CertificateRow.number))) or 0
        for place in range(done, age):
            at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=apart_h * (age - place))
            name = f"run-{place}"
            new = session.scalar(
                insert(RunRow).values({**run, "run_id": name, "started_at": at, "ended_at": at}).returning(RunRow.id)
            )
            token = {"token": lease["token"] - place, "run_id": name, "acquired_at": at, "released_at": at}
            session.execute(insert(LeaseRow).values({**lease, **token}))
            for each in stages:
                values = {**each, "run": new, "recorded_at": at}
                del values["id"]
                stage = session.scalar(insert(StageRow).values(values).returning(StageRow.id))
                session.execute(update(StageRow).where(StageRow.id == stage).values(origin=stage))
                session.execute(insert(JobRow).values(_job(new, each["stage"], at)))
                session.execute(insert(MeasurementRow), [{**row, "stage": stage} for row in figures[each["id"]]])
                if files[each["id"]] and age - place <= WITH_TELEMETRY:
                    session.execute(
                        insert(ArtifactRow), [{**row, "stage": stage, "created_at": at} for row in files[each["id"]]]
                    )
            session.execute(update(RunRow).where(RunRow.id == new).values(ended_place=stage))
            for _ in range(5):
                session.execute(insert(EventRow).values({**event, "at": at, "evidence": {"run": name}}))
            old = {"id": name, "number": number + place, "issued_at": at, "revoked": "a later one"}
            session.execute(insert(CertificateRow).values({**certificate, **old}))
    with writing() as session:
        session.execute(text("ANALYZE"))


def _job(run: int | None, stage: str, at: datetime.datetime) -> dict[str, Any]:
    return {
        "run": run, "stage": stage, "attempt_key": "0", "state": "collected", "remote_dir": "~/.muster", "boot_id": "b",
        "fence": 1, "started_at": at, "ended_at": at, "note": "",
    }  # fmt: skip


def _values(row: Base | None) -> dict[str, Any]:
    assert row is not None
    return {column.key: getattr(row, column.key) for column in row.__table__.columns if column.key != "id"} | (
        {"id": row.id} if isinstance(row, StageRow | RunRow) else {}  # type: ignore[attr-defined]
    )


def page() -> None:
    """The node's page, rendered."""
    from muster.web import app

    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/node/{NODE}",
        "headers": [],
        "query_string": b"",
        "root_path": "",
    }
    answer = app.node(Request(scope), NODE, True, True, [])
    assert NODE.encode() in bytes(answer.body)


def measured(ask: Callable[[int], object], times: int) -> tuple[list[float], float]:
    """(milliseconds of each call, MiB that one of them allocated at most), after one call that is not counted."""
    ask(0)
    took = []
    for place in range(1, times + 1):
        gc.collect()
        began = time.perf_counter()
        ask(place)
        took.append((time.perf_counter() - began) * 1000)
    gc.collect()
    tracemalloc.start()
    ask(times + 1)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    return took, peak


def at_age(stages: dict[str, tuple[StageResult, bytes, Judgement, bytes | None]], age: int) -> dict[str, float]:
    """All figures of the node as it is now."""
    lease = fleet.begin(NODE, f"age-{age}", level=LEVEL)
    stage = STAGES[-1]
    result, raw, judgement, _ = stages[stage]

    def record(place: int) -> None:
        fleet.record(lease.key, result, judgement, raw + b" " * place)

    gate, gate_mb = measured(lambda _: store.admission.decision(NODE), REPEATS)
    shown, page_mb = measured(lambda _: page(), PAGES)
    recorded, record_mb = measured(record, REPEATS)
    store.leases.release(lease.key, "over")
    with reading() as session:
        runs = session.scalar(select(func.count()).select_from(RunRow)) or 0
    return {
        "runs": runs - 1,
        "gate_ms": round(statistics.median(gate), 1),
        "page_ms": round(float(np.percentile(shown, 95)), 1),
        "record_ms": round(statistics.median(recorded), 1),
        "peak_mb": round(max(gate_mb, page_mb, record_mb), 1),
    }


def measure(runs: int) -> tuple[str, list[dict[str, float]]]:
    """(the database, the figures at each age)."""
    ages = sorted({age for age in AGES if age < runs} | {runs})
    with tempfile.TemporaryDirectory(prefix="age-") as name:
        folder = Path(name)
        os.environ.setdefault("AIRFLOW_HOME", str(folder / "airflow"))
        with records(folder) as where:
            stages = {stage: stage_of(stage) for stage in STAGES}
            first_run(stages)
            found, done = [], 1
            for age in ages:
                grow(done, age)
                done = age
                print(f"measuring at {age} runs", flush=True)
                found.append(at_age(stages, age))
                print(f"measured at {age} runs", flush=True)
    return where, found


def main(arguments: list[str]) -> int:
    """The command; status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=AGES[-1])
    chosen = parser.parse_args(arguments)
    where, found = measure(chosen.runs)
    print("| runs | gate, ms | page, ms (p95) | verdict, ms | memory, MiB |\n|--:|--:|--:|--:|--:|")
    for each in found:
        print("| " + " | ".join(f"{figure:g}" for figure in each.values()) + " |")
    last = found[-1]
    ages = [{key: each[key] for key in ("runs", *FIGURES)} for each in found]
    print(json.dumps({**{key: last[key] for key in FIGURES}, "database": where, "ages": ages}))
    return bars.status({**last, "more_mb": last["peak_mb"] - found[0]["peak_mb"]}, bars.AGE)


if __name__ == "__main__":
    sys.exit(watchdog.run(lambda: main(sys.argv[1:])))
