"""What an upgrade makes of records that are there already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from muster import records
from muster.lifecycle.transitions import State
from muster.records import engine
from muster_criteria.context.waivers import finding_id
from muster_criteria.model import Verdict
from tests.muster import fleet
from tests.muster.conftest import POSTGRESQL

SINCE = "2026-01-02 03:04:05.000000"


def at_schema(revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(engine.__file__).parent / "migrations"))
    with engine.engine().execution_options(muster_writes=True).begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


@pytest.mark.parametrize("empty_db", ["sqlite", POSTGRESQL], indirect=True)
def test_from_the_first_schema_nothing_is_lost(empty_db: str) -> None:
    """A run with a stage and a finding: what hangs on a table that is made anew must not go with the old one."""
    at_schema("0001")
    empty = {"launch": "{}", "labels": "{}", "list": "[]", "at": SINCE}
    rows = (
        "INSERT INTO nodes VALUES ('gpu-0001', 'h', 22, '', :key, 'cpu-generic', 'quarantine', :launch, '~', '', '', "
        ":labels, false, :at, 3, 0, NULL)",
        "INSERT INTO runs VALUES (7, 'dag', 'run', 'gpu-0001', 'cpu-generic', 'short', 'new', NULL, :list, "
        "'registered', 'quarantine', 'FAIL', 'slow', false, :labels, :labels, :at, :at)",
        "INSERT INTO stages VALUES (8, 7, 'intake', 'short', true, 'FAIL', 'slow', 1, 1, 1, :list, :list, "
        "'cpu-generic', '1', false, :list, 1, :at, NULL, NULL, 'completed', false, '', :list, :list, :list, '', '')",
        "INSERT INTO findings VALUES (9, 8, 'gpu-0001', 'floor', 'gemm_rate', 'gpu3', 'critical', 'gpu', 'rma', "
        "'480 TFLOPS', '≥ 600 TFLOPS', 's', 'slow', :found, 1.0)",
    )
    with engine.engine().execution_options(muster_writes=True).begin() as connection:
        for row in rows:
            given = {**empty, "key": fleet.host_key("x"), "found": json.dumps({"dtype": "bf16"})}
            statement = text(row)
            connection.execute(statement, {name: given[name] for name in statement.compile().params})
    assert records.upgrade() == ("0001", engine.SCHEMA)
    node = records.get_node("gpu-0001")
    assert (node.state, node.shadow, node.machine_since) == (State.QUARANTINE, False, node.added_at)
    (stage,) = records.run_report("dag", "run").stages
    (finding,) = stage.judgement.findings
    assert (finding.id, finding.waived) == (finding_id("gpu-0001", fleet.FINDING), "")
    assert [each.verdict for each in records.latest_verdicts("gpu-0001")] == [Verdict.FAIL]
    with engine.reading() as session:
        if empty_db.startswith("sqlite"):
            assert session.execute(text("PRAGMA foreign_key_check")).all() == []
        assert session.execute(text("SELECT count(*) FROM events")).scalar() == 0
