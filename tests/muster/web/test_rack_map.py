"""The map: where nodes stand, and what colours them."""

from __future__ import annotations

import dataclasses
import html
import re

import pytest
from fastapi.testclient import TestClient

from muster import store
from muster.model.figures import FleetRow, NodeFigure
from muster.model.states import State
from muster.web import keys, rack_map
from muster_criteria.labels import Key
from muster_criteria.model import Judgement
from muster_node.contract import Measurement
from tests.muster import fleet
from tests.muster.web.conftest import page


def row(name: str, *, rack: str = "r1", pod: str = "", slot: str = "", state: State = State.PRODUCTION) -> FleetRow:
    return FleetRow(name, state, "h100-sxm-8", rack, False, None, None, "", "", None, "", None, None, 0, pod, slot)


def figure(value: float, *, floored: bool = True, ok: bool = True) -> NodeFigure:
    return NodeFigure(value, "TFLOPS", floored, ok)


def test_nodes_stand_by_pod_rack_and_slot_and_what_has_no_place_comes_last() -> None:
    rows = [
        row("a", rack="r10", pod="p2", slot="2"), row("b", rack="r9", pod="p2"), row("d", rack=""),
        row("c", rack="r10", pod="p2", slot="1"), row("e", rack="r1", pod="p10"),
    ]  # fmt: skip
    found = rack_map.pods(rack_map.racks(rows, rack_map.by_state(rows, {}), {}))
    assert [(pod, [(rack.name, [cell.node for cell in rack.cells]) for rack in racks]) for pod, racks in found] == [
        ("p2", [("r9", ["b"]), ("r10", ["c", "a"])]), ("p10", [("r1", ["e"])]), ("", [("", ["d"])]),
    ]  # fmt: skip


@pytest.mark.parametrize("floored", [True, False])
def test_the_worst_fifth_is_the_strongest_whichever_way_the_limit_lies(floored: bool) -> None:
    rows = [row(f"n{number}") for number in range(12)]
    figures = {f"n{number}": figure(float(number), floored=floored) for number in range(10)}
    figures["n0"] = dataclasses.replace(figures["n0"], ok=False)
    colours = rack_map.by_metric(rows, figures)
    worst, best = ("n1", "n9") if floored else ("n9", "n1")
    assert (colours.classes[worst], colours.classes[best]) == ("shade5", "shade1")
    assert (colours.classes["n0"], colours.classes["n11"]) == ("bad", "unmeasured")
    assert [group for group, _ in colours.legend][:1] + [group for group, _ in colours.legend][-1:] == [
        "bad", "unmeasured",
    ]  # fmt: skip


def test_a_large_map_draws_a_path_a_class_with_a_square_for_each_node() -> None:
    rows = [row(f"n{number}", state=State.QUARANTINE if number < 3 else State.PRODUCTION) for number in range(500)]
    (rack,) = rack_map.racks(rows, rack_map.by_state(rows, {}), {})
    assert rack.cells == ()
    assert {group: path.count("z") for group, path in rack.paths} == {"out": 3, "serving": 497}
    assert rack.out == 3


@pytest.mark.parametrize("labels", [(), (("dtype", "bf16"),), (("a&b", "c=d?é"), ("e", ""))])
def test_a_metric_and_its_labels_survive_the_address(labels: tuple[tuple[str, str], ...]) -> None:
    key = Key("gpu", "gemm:rate?", labels, "GB/s")
    assert keys.read(keys.address(key)) == key


def test_a_slot_of_many_digits_is_sorted_too() -> None:
    rows = [row("a", slot="9" * 5000), row("b", slot="1")]
    (rack,) = rack_map.racks(rows, rack_map.by_state(rows, {}), {})
    assert [cell.node for cell in rack.cells] == ["b", "a"]


def test_each_rack_leads_to_its_own_nodes(client: TestClient) -> None:
    places = [("R1", "a"), ("R1", "b"), ("R1", "b"), ("R2", ""), ("", "b"), ("", ""), ("", "")]
    for number, (rack, pod) in enumerate(places):
        store.nodes.add(fleet.new_node(f"n{number}", rack=rack, labels={"pod": pod} if pod else {}))
    links = re.findall(r'href="/muster/([^"]*)" title="(\d+) nodes', page(client, "/"))
    found = [len(client.get(f"/nodes.csv{html.unescape(query)}").text.splitlines()) - 1 for query, _ in links]
    assert found == [int(nodes) for _, nodes in links] == [1, 2, 1, 1, 2]


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_the_figure_of_a_node_is_its_worst_device_in_its_last_conclusive_stage() -> None:
    for name in ("a", "b", "never"):
        store.nodes.add(fleet.new_node(name))
    for name, values in (("a", (700.0, 640.0)), ("b", (500.0, 710.0))):
        figures = [
            Measurement("gemm_rate", "gemm_rate", f"gpu{slot}", "TFLOPS", value, None, {"dtype": dtype})
            for slot, value in enumerate(values)
            for dtype in ("bf16", "fp8")
        ]
        judge_as(name, figures, fleet.judged(figures, floor=600.0))
    of = {dtype: Key("gpu", "gemm_rate", (("dtype", dtype),), "TFLOPS") for dtype in ("bf16", "fp8", "int8")}
    found = store.node_metrics.figures(of["bf16"])
    assert found == {"a": NodeFigure(640.0, "TFLOPS", True, True), "b": NodeFigure(500.0, "TFLOPS", True, False)}
    assert store.node_metrics.figures(of["int8"]) == {}
    assert store.node_metrics.figures(of["bf16"]._replace(labels=())) == {}
    assert store.node_metrics.judged() == [of["bf16"], of["fp8"]]


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_the_memory_of_the_host_is_no_memory_of_its_gpus() -> None:
    for name, gpu, host in (("good", 2900.0, 280.0), ("bad", 2620.0, 300.0)):
        store.nodes.add(fleet.new_node(name))
        rates = [("gpu0", gpu), ("gpu1", 2900.0), ("memory", host)]
        figures = [Measurement("memory_bandwidth", "memory_bandwidth", at, "GB/s", rate) for at, rate in rates]
        judge_as(name, figures, fleet.judged(figures, floor=90.0))
    key = Key("gpu", "memory_bandwidth", (), "GB/s")
    assert {node: each.value for node, each in store.node_metrics.figures(key).items()} == {
        "good": 2900.0,
        "bad": 2620.0,
    }
    assert store.node_metrics.judged() == [key, key._replace(kind="memory")] == store.node_metrics.of_node("good")
    assert [(each.device, each.value) for each in store.node_metrics.life("bad", key._replace(kind="memory"))] == [
        ("memory", 300.0)
    ]


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
@pytest.mark.parametrize(("exact", "values", "worst"), [(0.0, (0.0, 3.0), 3.0), (1.0, (0.0, 1.0), 0.0)])
def test_of_what_must_be_an_exact_number_another_is_the_worst(
    exact: float, values: tuple[float, ...], worst: float
) -> None:
    store.nodes.add(fleet.new_node("n1"))
    figures = [Measurement("p", "m", f"gpu{at}", "count", value) for at, value in enumerate(values)]
    judged = fleet.judged(figures, floor=exact)
    seen = tuple(dataclasses.replace(each, ceiling=exact) for each in judged.observations)
    judge_as("n1", figures, dataclasses.replace(judged, observations=seen))
    assert store.node_metrics.figures(Key("gpu", "m", (), "count"))["n1"].value == worst


def judge_as(name: str, figures: list[Measurement], judgement: Judgement) -> None:
    lease = fleet.begin(name)
    parsed, raw = fleet.result(node=name, measurements=figures)
    store.runs.begin_stage(lease.key, "intake", node=name)
    fleet.record(lease.key, parsed, judgement, raw, node=name)
