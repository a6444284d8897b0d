"""The generator of the accuracy benchmark: its spreads are those it claims, and faults do to a GPU what they say."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from muster_criteria.sku_files.skus import load_sku
from muster_node.agent.registry import discover
from tests.bench import accuracy
from tests.bench.accuracy.devices import GPUS, Devices, Hall, Places, build
from tests.bench.accuracy.draws import run_noise, student
from tests.bench.accuracy.faults import FAULTS, Fault, Severity
from tests.bench.accuracy.fleet import CELLS, FAULTY_SHARE, HEALTHY, Cell, draw_fleet, draw_trials
from tests.bench.accuracy.metrics import CONTINUOUS, METRICS, PROBES
from tests.bench.accuracy.physics import Readings, measure, settle
from tests.bench.accuracy.verdicts import shows

FOLDER = Path(accuracy.__file__).parent
KNOW_THE_JUDGE = {"__main__", "chances", "muster_judge"}

TELLS = {
    "matrix units lost": "burn_rate_per_clock",
    "one format slow": "gemm_rate_per_clock[dtype=fp8]",
    "HBM slow": "memory_bandwidth[op=copy]",
    "PCIe replays": "pcie_bandwidth[direction=h2d]",
    "PCIe speed down": "pcie_bandwidth[direction=d2h]",
    "NVLink replays": "peer_bandwidth",
    "power not delivered": "power_share",
    "slow clock": "burn_rate",
    "leakage": "burn_rate",
    "paste dried": "thermal_resistance",
    "air blocked": "thermal_resistance",
}
"""The figure that a fault's effect is stated for."""


def _visit(rng: np.random.Generator, devices: Devices) -> Readings:
    nodes = len(devices)
    older = Places(*(np.zeros(nodes, dtype=np.int64) for _ in range(3)))
    return measure(rng, devices, older, np.full(nodes, 24.0))


def _cells(*groups: str) -> list[Cell]:
    return [cell for cell in CELLS if cell.fault is not None and cell.fault.group in groups]


def _known(cell: Cell) -> tuple[Fault, Severity]:
    assert cell.fault is not None
    assert cell.severity is not None
    return cell.fault, cell.severity


def _name(cell: Cell) -> str:
    fault, severity = _known(cell)
    return f"{fault.name} {severity.label}"


def test_generator_and_judge_import_nothing_of_each_other() -> None:
    for file in FOLDER.glob("*.py"):
        imported = _imports(file)
        if file.stem not in KNOW_THE_JUDGE:
            assert not [name for name in imported if name.startswith("muster")], file.name
            assert not [name for name in imported if name.rpartition(".")[2] in KNOW_THE_JUDGE], file.name
    for file in (FOLDER.parents[2] / "validators" / "muster_criteria").rglob("*.py"):
        assert not [name for name in _imports(file) if name.split(".")[0] == "tests"], file.name


def _imports(file: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return plain + [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]


def test_one_run_differs_from_the_next_by_three_to_five_in_a_thousand() -> None:
    rng = np.random.default_rng(1)
    devices = build(rng, 1500)
    first, second = _visit(rng, devices), _visit(rng, devices)
    for metric in CONTINUOUS:
        if metric.unit != "°C":
            noise = np.std(first[metric.key] / second[metric.key] - 1.0) / np.sqrt(2.0)
            assert 0.0028 < noise < 0.0053, metric.key


def test_clocks_of_one_node_vary_from_part_to_part_and_rates_per_clock_hardly() -> None:
    readings = _visit(np.random.default_rng(2), build(np.random.default_rng(3), 4000))

    def within(key: str) -> float:
        values = readings[key]
        return float(np.std(values / values.mean(axis=1, keepdims=True)) * np.sqrt(GPUS / (GPUS - 1)))

    assert within("gemm_clock[dtype=bf16]") == pytest.approx(0.018, abs=0.001)
    assert within("burn_rate_per_clock") < 0.004
    assert within("memory_bandwidth[op=copy]") < 0.004


def test_tails_are_heavier_than_gaussian() -> None:
    rng = np.random.default_rng(4)
    parts, runs = student(rng, 1.0, (500_000,)), run_noise(rng, 1.0, (500_000,))
    assert np.std(parts) == pytest.approx(1.0, abs=0.02)
    assert np.std(runs) == pytest.approx(1.0, abs=0.01)
    beyond_4 = 6.3e-5  # of a Gaussian
    assert np.mean(np.abs(parts) > 4.0) > 50 * beyond_4
    assert np.mean(np.abs(runs) > 4.0) > 5 * beyond_4


def test_leakage_is_skewed_upwards() -> None:
    leakage = build(np.random.default_rng(5), 5000).leakage_w
    centred = (leakage - leakage.mean()) / leakage.std()
    assert np.mean(centred**3) > 0.2


def test_the_night_is_one_to_two_percent_faster_than_noon() -> None:
    devices = build(np.random.default_rng(6), 500)
    night, noon = (settle(devices, np.full(500, inlet)).clock_mhz.mean() for inlet in (20.5, 27.5))
    assert 0.01 < night / noon - 1.0 < 0.02


def test_rear_slots_run_warmer_and_racks_differ() -> None:
    devices = build(np.random.default_rng(7), 500)
    core = settle(devices, np.full(500, 24.0)).core_c.mean(axis=0)
    assert core[GPUS // 2 :].mean() - core[: GPUS // 2].mean() > 1.0
    rng = np.random.default_rng(8)
    hall = Hall.draw(rng, 400)
    places = hall.fill(rng, 400)
    assert np.std(hall.rack_offset_c[places.rack]) > 0.5
    assert 0.1 < np.mean(places.driver) < 0.3


def test_the_newer_driver_multiplies_fp8_faster_and_nothing_else() -> None:
    devices, nodes = build(np.random.default_rng(9), 1000), 1000
    zeros = np.zeros(nodes, dtype=np.int64)
    old, new = (
        measure(np.random.default_rng(10), devices, Places(zeros, zeros, zeros + driver), np.full(nodes, 24.0))
        for driver in (0, 1)
    )
    gain = {key: np.mean(new[key] / old[key]) for key in ("gemm_rate[dtype=fp8]", "gemm_rate[dtype=bf16]")}
    assert gain["gemm_rate[dtype=fp8]"] == pytest.approx(1.015)
    assert gain["gemm_rate[dtype=bf16]"] == 1.0


def test_there_are_fifteen_classes_and_more_each_with_its_source() -> None:
    assert len(FAULTS) >= 15
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(len(fault.source) > 20 for fault in FAULTS)
    known = {field.name for field in dataclasses.fields(Devices)}
    assert all(set(fault.parameters) <= known for fault in FAULTS)


@pytest.mark.parametrize("cell", CELLS, ids=_name)
def test_a_fault_alters_its_own_parameters_of_its_own_gpus_only(cell: Cell) -> None:
    fault, severity = _known(cell)
    rng = np.random.default_rng(11)
    sound = build(rng, 50)
    slots = rng.integers(0, GPUS, 50)
    faulty, hit = fault.inflict(sound, slots, severity), fault.hit(slots)
    assert (hit.sum(axis=1) == (2 if fault.pair else 1)).all()
    for field in dataclasses.fields(Devices):
        changed = getattr(faulty, field.name) != getattr(sound, field.name)
        assert (changed == (hit if field.name in fault.parameters else False)).all(), field.name


@pytest.mark.parametrize(
    "cell", [cell for cell in _cells("low spread", "varied", "thermal") if _known(cell)[0].name in TELLS], ids=_name
)
def test_a_fault_has_the_effect_that_it_states(cell: Cell) -> None:
    fault, severity = _known(cell)
    sound = build(np.random.default_rng(12), 400)
    slots = np.random.default_rng(13).integers(0, GPUS, 400)
    faulty, hit = fault.inflict(sound, slots, severity), fault.hit(slots)
    key = TELLS[fault.name]
    before, after = (_visit(np.random.default_rng(14), devices)[key][hit] for devices in (sound, faulty))
    sign = 1.0 if fault.group == "thermal" else -1.0
    assert severity.effect is not None
    effect = sign * (np.mean(after / before) - 1.0)
    assert severity.effect - 0.002 < effect < 1.15 * severity.effect


def test_a_locked_clock_costs_the_slowest_gpu_in_a_hundred_what_it_states() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "clock left locked")
    devices = build(np.random.default_rng(15), 3000)
    slowest = float(np.quantile(settle(devices, np.full(3000, 24.0)).clock_mhz, 0.01))
    for severity in fault.severities:
        assert severity.effect == pytest.approx(max(0.0, 1.0 - severity.value / slowest), abs=0.015)


def test_no_healthy_gpu_shows_what_discrete_faults_show() -> None:
    rng = np.random.default_rng(16)
    hall = Hall.draw(rng, 3000)
    assert not shows(draw_trials(rng, hall, [(HEALTHY, 3000)], 0).today.readings).any()


@pytest.mark.parametrize("cell", _cells("discrete"), ids=_name)
def test_a_discrete_fault_shows_on_its_gpu_and_no_other(cell: Cell) -> None:
    rng = np.random.default_rng(17)
    trials = draw_trials(rng, Hall.draw(rng, 400), [(cell, 400)], 0)
    seen = shows(trials.today.readings)
    assert (seen & trials.hit).any()
    assert not (seen & ~trials.hit).any()


def test_a_missing_gpu_measures_nothing() -> None:
    missing = next(cell for cell in CELLS if _known(cell)[0].name == "GPU missing")
    rng = np.random.default_rng(18)
    trials = draw_trials(rng, Hall.draw(rng, 20), [(missing, 20)], 0)
    for values in trials.today.readings.values():
        assert (np.isnan(values) == trials.hit).all()


def test_at_most_two_nodes_in_a_hundred_of_a_fleet_are_faulty_and_they_were_sound_before() -> None:
    rng = np.random.default_rng(19)
    fleet = draw_fleet(rng, Hall.draw(rng, 400), 400)
    faulty = fleet.hit.any(axis=1)
    assert faulty.sum() == int(400 * FAULTY_SHARE)
    assert faulty.mean() <= 0.02
    for visit in fleet.visits[:-1]:
        assert not shows(visit.readings).any()


def test_the_same_seed_gives_the_same_trials_and_another_one_others() -> None:
    def drawn(seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return draw_fleet(rng, Hall.draw(rng, 40), 40).today.readings["burn_rate"]

    assert np.array_equal(drawn(20), drawn(20))
    assert not np.array_equal(drawn(20), drawn(21))


def test_a_retest_sees_the_same_gpu_with_noise_of_its_own() -> None:
    rng = np.random.default_rng(22)
    trials = draw_trials(rng, Hall.draw(rng, 300), [(HEALTHY, 300)], 0)
    first, again = (visit.readings["memory_bandwidth[op=copy]"] for visit in (trials.today, trials.again))
    assert not np.array_equal(first, again)
    assert np.std(first / again - 1.0) < 0.006
    assert (trials.again.day > trials.today.day).all()


def test_metrics_have_the_names_and_units_that_probes_declare_or_the_programme_derives() -> None:
    probes = discover().probes
    derived = {each.metric: each.unit for each in load_sku("h100-sxm-8").programme.derive}
    for metric in METRICS:
        if metric.name in derived:
            assert metric.unit == derived[metric.name]
        else:
            assert metric.unit == probes[metric.probe].metrics[metric.name].unit_on("gpu0"), metric.key


def test_the_longest_probes_take_as_long_as_the_programme_says() -> None:
    programme = load_sku("h100-sxm-8").programme
    for probe in PROBES:
        if probe.name in ("gpu_burn", "thermal_soak"):
            use = programme.stages[probe.stage].probes[probe.name]
            assert use.params_at("short")["seconds"] == probe.seconds
