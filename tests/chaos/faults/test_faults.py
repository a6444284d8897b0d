"""The kinds of faults of a campaign."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from muster.errors import AirflowRefused
from tests.chaos import evidence, faults
from tests.chaos.faults.nodes import TAMPERING
from tests.chaos.nodes import INTERPRETER
from tests.chaos.world import World


def test_every_class_has_kinds_of_faults() -> None:
    kinds = faults.load()
    assert list(kinds) == list(faults.CLASSES)
    assert all(len(each) >= 5 for each in kinds.values())


def test_a_campaign_of_chosen_kinds_draws_no_other() -> None:
    chosen = faults.load(["backup_restored", "foreign_drain"])
    assert {of: [kind.name for kind in kinds] for of, kinds in chosen.items()} == {
        "controller": ["backup_restored"],
        "people": ["foreign_drain"],
    }


def test_a_fault_whose_answer_was_lost_is_lifted() -> None:
    class Client:
        def pause(self, _dag: str) -> None:
            raise AirflowRefused("no answer in time")

    class Lost:
        client, todo = Client(), list[Any]()
        lifted_by = World.lifted_by

    faults.load()
    strike = faults.KINDS["dag_paused"].strike(cast("World", Lost()), random.Random(1))
    with pytest.raises(AirflowRefused):
        next(iter(strike))
    assert len(Lost.todo) == 1


def _measured(home: Path, job: str, content: str, how: str) -> list[tuple[str, str]]:
    """(what, job) of each line that a node's diary has after one more job, whose result is tampered with."""
    (home / "agent").write_text(f"#!/bin/sh\nprintf %s '{content}' >\"$4/result.json\"\n")
    (home / "agent").chmod(0o755)
    (home / "tamper").write_text(f"# {how}\n{TAMPERING[how]}\n")
    folder = home / job
    folder.mkdir()
    (folder / "plan.json").write_text('{"stage": "thermal"}')
    script = INTERPRETER.format(python=home / "agent", clock="")
    command = ["bash", "-c", script, "python", "agent.pyz", "run", str(folder / "plan.json"), str(folder)]
    subprocess.run(command, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, check=True)
    return [(line.what, line.job) for line in evidence.diary(home, "n0")]


def test_a_node_writes_down_a_replay_only_where_an_earlier_result_took_the_place_of_its_own(tmp_path: Path) -> None:
    first = [("start", "j1"), ("measured", "j1")]
    assert _measured(tmp_path, "j1", "one", "replayed") == first
    (tmp_path / "kept").mkdir(exist_ok=True)
    (tmp_path / "kept" / "thermal").write_text("earlier")
    again = [("start", "j2"), ("measured", "j2"), ("tampered", "j2")]
    assert _measured(tmp_path, "j2", "two", "replayed") == [*first, *again]
