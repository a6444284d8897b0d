"""Muster's own judge in the accuracy benchmark: a small version of what ``python -m tests.bench.accuracy`` measures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from muster import store
from tests.bench.accuracy.__main__ import main
from tests.bench.accuracy.baselines import Baseline, sku_figure
from tests.bench.accuracy.devices import DRIVERS, GPUS, Hall
from tests.bench.accuracy.evaluation import Row, Size, evaluate
from tests.bench.accuracy.fleet import CELLS, FLEET_VISITS, HEALTHY, draw_trials
from tests.bench.accuracy.metrics import CONTINUOUS, METRICS
from tests.bench.accuracy.muster_judge import MusterJudge, frame_of

SMALL = Size(trials=10, healthy=400, tuning=200, fleets=1, fleet_nodes=600)
GROSS = {
    ("matrix units lost", "−20 %"), ("one format slow", "−67 %"), ("HBM slow", "−10 %"), ("PCIe speed down", "Gen4"),
    ("NVLink replays", "−25 %"), ("power not delivered", "−25 %"), ("clock left locked", "1,200 MHz"),
    ("overheats", "R × 2.6"), ("GPU missing", ""), ("PCIe width", "x8"), ("NVLink down", "1 of 18"),
    ("wrong products", "0.01"), ("memory loses bits", "10 /GiB"), ("uncorrectable ECC", "400 /h"),
}  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    cells = [cell for cell in CELLS if cell.fault and cell.severity and (cell.fault.name, cell.severity.label) in GROSS]
    assert len(cells) == len(GROSS)
    return evaluate(11, SMALL, MusterJudge, cells)


def test_every_gross_fault_is_found_on_its_gpu_and_no_other(rows: list[Row]) -> None:
    for row in rows:
        if row.cell.fault is not None:
            assert row.found.hits >= row.found.of - 1, row
            assert row.located.hits >= row.located.of - 1, row


def test_healthy_nodes_are_hardly_ever_failed(rows: list[Row]) -> None:
    for row in rows:
        if row.cell.fault is None:
            assert row.found.of == SMALL.healthy + SMALL.tuning
            assert row.found.hits <= 3, row  # at one in 1,000, four or more of 600 come once in 300 times


def test_inventory_tells_at_once_and_heat_only_at_the_end(rows: list[Row]) -> None:
    minutes = {row.cell.fault.name: row.mean_minutes for row in rows if row.cell.fault and row.visit == "first"}
    assert minutes["GPU missing"] < 1.0
    assert minutes["HBM slow"] > minutes["wrong products"] > 15.0


def test_peer_statistics_look_back_as_far_as_the_product_s() -> None:
    assert FLEET_VISITS == store.measured.VISITS


def test_readings_say_where_a_node_stands_and_leave_out_what_did_not_answer() -> None:
    missing = next(cell for cell in CELLS if cell.fault and cell.fault.name == "GPU missing")
    rng = np.random.default_rng(12)
    trials = draw_trials(rng, Hall.draw(rng, 10), [(HEALTHY, 6), (missing, 4)], 0)
    frame = frame_of(trials, trials.today, METRICS)
    present = frame[frame["metric"] == "device_present"]
    assert (present["value"] == 0.0).sum() == 4
    assert len(present) == 10 * GPUS
    assert len(frame) == len(present) + len(METRICS) * (10 * GPUS - 4)
    one = frame[(frame["node"] == "n000002") & (frame["metric"] == "memory_bandwidth") & (frame["device"] == "gpu5")]
    assert one.set_index("labels")["value"].to_dict() == {
        label: trials.today.readings[f"memory_bandwidth[{label}]"][2, 5] for label in ("op=copy", "op=triad")
    }
    driver = DRIVERS[trials.places.driver[2]]
    assert one["group"].astype(str).str.contains(f"driver={driver}", regex=False).all()


def test_the_command_ends_with_its_figures_and_a_sentence_for_each_bar_that_so_few_trials_miss(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = {"--seed": 7, "--trials": 1, "--healthy": 40, "--fleets": 1, "--fleet-nodes": 100, "--tuning": 20}
    plain = Baseline("figure", sku_figure, {metric.key: 0.25 for metric in CONTINUOUS})
    status = main([str(word) for pair in few.items() for word in pair], lambda _: plain.judge)
    printed = capsys.readouterr()
    figures = json.loads(printed.out.splitlines()[-1])
    assert status == 1
    assert figures["trials_per_cell_min"] == 1
    assert figures["healthy_judgements"] == 2 * (40 + 20), "those too by which the baselines are tuned"
    assert "trials_per_cell_min" in printed.err
    assert "| GPU missing |" in printed.out
