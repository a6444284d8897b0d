"""What is asked of a node costs the same at any age of it."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Mapper

from muster import store
from muster.judging import policies
from muster.model.runs import RunKey
from muster.model.stages import STAGES
from muster.model.states import State
from muster.store.database import engine
from muster.store.database.base import Base
from muster.store.decisions import questions
from muster_criteria.model import Verdict
from tests.muster import fleet

NODE = "gpu-0001"
ASKED: dict[str, Callable[[], object]] = {
    "gate": lambda: store.admission.decision(NODE),
    "findings": lambda: store.verdicts.open_findings(NODE),
    "last run": lambda: store.runs.last(NODE),
    "versions": lambda: store.certificates.versions_of([NODE]),
    "tests": store.verdicts.stage_tests,
}


def qualify(number: int) -> None:
    """One whole qualification of the node, with a warning and charts."""
    lease = fleet.begin(NODE, f"run-{number}", level="long")
    for stage in STAGES:
        store.runs.begin_stage(lease.key, stage)
        result, raw = fleet.result(stage, environment={"driver": "580.65"})
        judged = fleet.judgement(stage, Verdict.PASS, level="long")
        fleet.record(lease.key, result, judged, raw + b" " * number, fleet.telemetry(20))
    store.runs.finish(lease.key, Verdict.PASS, "as the SKU demands")
    store.leases.release(lease.key, "over")


def loaded(ask: Callable[[], object]) -> tuple[collections.Counter[str], set[str]]:
    """How many rows of each table are read, and which of their columns."""
    counts: collections.Counter[str] = collections.Counter()
    columns: set[str] = set()

    def note(row: Base, _context: object) -> None:
        counts[row.__tablename__] += 1
        columns.update(f"{row.__tablename__}.{name}" for name in vars(row))

    event.listen(Mapper, "load", note)
    try:
        ask()
    finally:
        event.remove(Mapper, "load", note)
    return counts, columns


@pytest.mark.both_dialects
def test_what_is_read_of_a_node_does_not_grow_with_its_age_and_has_no_charts(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node())
    qualify(0)
    store.nodes.move(NODE, State.PRODUCTION, "Petra", "the certificate is of interest")
    young = {name: loaded(ask) for name, ask in ASKED.items()}
    for number in range(1, 4):
        qualify(number)
    for name, ask in ASKED.items():
        counts, columns = loaded(ask)
        assert counts == young[name][0], name
        assert "stages.charts" not in columns, name


def test_a_verdict_stored_with_charts_is_reported_with_them(fleet_db: str) -> None:
    store.nodes.add(fleet.new_node())
    qualify(0)
    run = store.runs.last(NODE)
    assert run is not None
    assert all(stage.telemetry for stage in store.reporting.run(run.key).stages)


def plans(ask: Callable[[], object]) -> str:
    """How the database would answer what is asked, if reading a table from end to end were dear."""
    asked: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        asked.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        ask()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    with engine.reading() as session:
        connection = session.connection()
        sqlite = connection.dialect.name == engine.SQLITE
        if not sqlite:
            connection.exec_driver_sql("SET enable_seqscan = off")
        explain = "EXPLAIN QUERY PLAN" if sqlite else "EXPLAIN"
        return "\n".join(
            str(row)
            for statement, parameters in asked
            if statement.startswith(("SELECT", "WITH", "UPDATE"))
            for row in connection.exec_driver_sql(f"{explain} {statement}", parameters)
        )


def metrics() -> None:
    store.figures.fleet(policies.health())


def leave_service() -> None:
    store.nodes.move(NODE, State.QUARANTINE, "Ada", "a test of the index")


def past_faults() -> None:
    result, _ = fleet.result(serials={"gpu0": "A"})
    store.past_faults.previous(result, NODE, "run-1")


def by(index: str) -> dict[str, str]:
    """Each database takes it."""
    return dict.fromkeys(("sqlite", "postgresql"), index)


@pytest.mark.both_dialects
@pytest.mark.parametrize(
    ("indexes", "ask"),
    [
        # Of the two that SQLite can take, which hold the rows' ids after their columns, it takes either.
        ({"sqlite": "ix_events_", "postgresql": "ix_events_moves"}, store.overview.rows),
        (by("ix_certificates_unrevoked"), metrics),
        (by("ix_certificates_unrevoked"), leave_service),
        (by("ix_stages_in_order"), metrics),
        (by("ix_stages_in_order"), store.verdicts.stage_tests),
        (by("ix_stages_in_order"), store.verdicts.stage_numbers),
        (by("ix_stages_of_machine"), ASKED["gate"]),
        (by("ix_events_moves"), store.health.judged_until),
        (by("ix_placements_part_id"), past_faults),
    ],
)
def test_what_a_fleets_years_leave_behind_is_reached_by_an_index(
    fleet_db: str, indexes: dict[str, str], ask: Callable[[], object]
) -> None:
    store.nodes.add(fleet.new_node())
    fleet.qualify()
    store.nodes.move(NODE, State.PRODUCTION, "Ada", "needed now")
    assert indexes[fleet_db.partition(":")[0]] in plans(ask)


def test_retention_asks_an_index_of_each_snapshot_and_part_whether_it_is_needed(fleet_db: str) -> None:
    asked = plans(lambda: store.retention.apply(dry_run=True))
    assert "ix_stages_snapshot (snapshot=?)" in asked
    assert "ix_placements_part_id (part_id=?)" in asked


def test_of_a_spare_its_own_questions_alone_are_read(fleet_db: str) -> None:
    for number in range(3):
        name = f"n{number}"
        store.nodes.add(fleet.new_node(name))
        store.questions.put(RunKey("admission", name), name, store.questions.newest(name))
    with engine.reading() as session:
        counts, _ = loaded(lambda: questions.waits(session, "n0"))
    assert counts["questions"] == 1
