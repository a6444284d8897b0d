"""Every edge withstands a bounded share of the fuzz bench, and each of its counters rises on a planted defect."""

from __future__ import annotations

import dataclasses
import gzip
import random
from collections.abc import Callable
from typing import Any

import pytest

from muster.errors import MusterError
from muster_criteria.model import Judgement, Verdict
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import Evaluate, judge
from tests.bench.fuzz.__main__ import load, names
from tests.bench.fuzz.edge import DEFECTS, Edge, Sample, Taken, run

INPUTS = {"result": 40, "bmc": 40, "sku": 25, "restored": 30, "settings": 30}
"""Edges of which one input takes longer; of the others 100 are read."""


@pytest.mark.parametrize("name", names())
def test_an_edge_withstands_hostile_input(name: str) -> None:
    tally = run(load(name), INPUTS.get(name, 100), seed=2026)
    assert dict(tally.counts) == {}, tally.examples


def _raise() -> Taken:
    raise KeyError("serial")


def _refuse() -> Taken:
    raise MusterError("a sentence")


@pytest.mark.parametrize(
    ("defect", "read"),
    [
        ("tracebacks", _raise),
        ("unbounded_reads", lambda: Taken([str(len(gzip.decompress(gzip.compress(bytes(8 * 2**20)))))])),
        ("unbounded_reads", lambda: Taken(oversize="5,000 rows")),
        ("injections", lambda: Taken(["gpu0\nPASS"])),
        ("injections", lambda: Taken(injections=["<script> in a page"])),
        ("false_passes", lambda: Taken(well=True)),
        ("", _refuse),
        ("", Taken),
    ],
)
def test_each_counter_rises_on_its_defect_and_on_no_other(defect: str, read: Callable[[], Taken]) -> None:
    edge = Edge(lambda rng: Sample(None, "a metric taken away", large=True), lambda _: read(), (MusterError,), 2**20)
    tally = run(edge, 3, seed=1)
    assert {kind: tally.counts[kind] for kind in DEFECTS} == dict.fromkeys(DEFECTS, 0) | ({defect: 3} if defect else {})


def _passes(case: Case, evaluate: Evaluate) -> Judgement:
    return dataclasses.replace(judge(case, evaluate=evaluate), verdict=Verdict.PASS)


@pytest.mark.parametrize(
    ("name", "where", "value", "defect"),
    [
        ("result", "tests.bench.fuzz.edges.result.judge", _passes, "false_passes"),
        ("result", "muster_criteria.measured.StageResult.model_validate", lambda raw: raw["nothing"], "tracebacks"),
        ("kernel-log", "muster_node.hardware.host.kernel_events.device_events", lambda lines: [], "false_passes"),
        ("tool-output", "tests.bench.fuzz.edges.tool_output._well", lambda tool, output: True, "false_passes"),
        ("inventory", "muster.enrolment.inventory.one_line", lambda text: text, "injections"),
        ("sku", "muster_criteria.sku_files.model.one_line", lambda text: text, "injections"),
    ],
)
def test_an_edge_without_its_check_is_found(
    name: str, where: str, value: Any, defect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, value)
    edge = load(name)
    assert any(run(edge, 20, seed).counts[defect] for seed in range(10))


def test_the_same_seed_draws_the_same_inputs() -> None:
    drawn = [[load(name).draw(random.Random(7)).data for name in names() if name != "telemetry"] for _ in range(2)]
    assert drawn[0] == drawn[1]
