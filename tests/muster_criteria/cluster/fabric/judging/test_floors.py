"""Rails against a figure of the SKU, and by what they have to be measured to be judged at all."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from muster_criteria.cluster.fabric.decoding.parts import Part, PartKind
from muster_criteria.cluster.fabric.judging.covered import count_rails
from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.judging.verdict import judge_fabric
from muster_criteria.cluster.fabric.observed import Place, Port, round_result
from muster_criteria.cluster.fabric.planner import next_round
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.model import FaultClass, Lack, Severity
from muster_criteria.sku_files.limits import Limit
from muster_criteria.stage.coverage import Tally
from tests.muster_criteria.cluster.fabric.worlds import Small, fabric, flat, places, unjudged, without_perftest

FLOOR = Limit.model_validate({
    "metric": "pair_bandwidth", "device": "node", "labels": {"backend": "ib_write_bw"}, "unit": "Gb/s", "floor": 90.0,
    "breach": "warn", "fault": FaultClass.NIC, "source": "a test's", "date": datetime.date(2026, 11, 26),
})  # fmt: skip


def by_rdma(world: Small, backend: str = "ib_write_bw", rate: float = 1.0) -> Rounds:
    results = [dataclasses.replace(each, backend=backend, alone=each.alone * rate) for each in world.isolate()[0]]
    return Rounds(world.topology, places(world.topology), tuple(results))


def test_a_floor_judges_the_rails_of_a_block_too_small_to_compare() -> None:
    rounds, block = by_rdma(Small(flat(2, rails=2), {Part(PartKind.NIC, 0, rail=1): 0.5})), BlockFindings()
    found = judge_fabric(rounds, block, dict.fromkeys(rounds.topology.nodes, (FLOOR,)))
    assert unjudged(rounds, found) == {}
    assert {
        name: [(each.severity, each.rule, each.labels) for each in rows] for name, rows in block.findings.items()
    } == {name: [(Severity.WARNING, "floor", (("rail", "r1"),))] for name in ("n0", "n1")}


def test_a_floor_of_another_backend_judges_nothing() -> None:
    rounds, block = by_rdma(Small(flat(2, rails=1), {Part(PartKind.NIC, 0, rail=0): 0.5}), "nccl"), BlockFindings()
    found = judge_fabric(rounds, block, dict.fromkeys(rounds.topology.nodes, (FLOOR,)))
    assert unjudged(rounds, found) == {name: [Lack.NOT_COMPARED] for name in ("n0", "n1")}
    assert block.findings == {}


@pytest.mark.parametrize(
    ("backend", "floors", "lacks"),
    [
        ("ib_write_bw", (FLOOR,), []), ("nccl", (FLOOR,), []), ("tcp", (), []),
        ("tcp", (FLOOR,), [Lack.NO_RDMA] * 2), ("gloo", (FLOOR,), [Lack.NO_RDMA] * 2),
        ("", (FLOOR,), [Lack.NO_RDMA] * 2),
    ],
)  # fmt: skip
def test_rails_with_a_floor_for_rdma_that_only_sockets_used_are_not_judged(
    backend: str, floors: tuple[Limit, ...], lacks: list[Lack]
) -> None:
    """All cells are good, compared with each other: that TCP works says nothing of the ports' RDMA."""
    rounds = by_rdma(Small(flat(8, rails=2), {}), backend)
    found = judge_fabric(rounds, BlockFindings(), dict.fromkeys(rounds.topology.nodes, floors))
    assert unjudged(rounds, found) == (dict.fromkeys(rounds.topology.nodes, lacks) if lacks else {})
    assert unjudged(rounds, found, simulated=True) == {}


def test_why_no_rdma_was_used_is_said() -> None:
    topology = flat(2, rails=1)
    plan = next_round(topology, (), 0)
    assert plan is not None
    returned = without_perftest(topology, plan, 1)
    for name, why in (("n0", "the partner"), ("n1", "not installed")):
        returned[name] = [each.model_copy(update={"note": why}) for each in returned[name]]
    result, limits = round_result(topology, plan, returned), dict.fromkeys(topology.nodes, (FLOOR,))
    without_device = places(topology) | {"n1": Place("10.0.0.2", (Port("10.0.0.2"),))}
    for where, of_n0 in ((places(topology), "the partner"), (without_device, "label rails of n1")):
        rounds, counted = Rounds(topology, where, (result,)), Tally()
        count_rails(rounds, "n0", counted, judge_fabric(rounds, BlockFindings(), limits))
        assert of_n0 in counted.unjudged[0].why


def test_half_of_a_block_behind_an_unknown_switch_is_below_the_floor_and_fails_no_node() -> None:
    """Half the nodes move the median of their round, so that no comparison shows it."""
    world = Small(flat(8), {})
    world.behind = (frozenset(range(4)), 0.5, True)
    rounds, block = by_rdma(world), BlockFindings()
    judge_fabric(rounds, block, dict.fromkeys(rounds.topology.nodes, (FLOOR,)))
    assert {f"n{node}" for node in range(4)} <= set(block.findings)
    assert {each.severity for rows in block.findings.values() for each in rows} == {Severity.WARNING}


@pytest.mark.parametrize("part", [Part(PartKind.NODE, 5), Part(PartKind.NIC, 5, rail=1)])
def test_a_floor_adds_nothing_to_what_is_found_already(part: Part) -> None:
    rounds, block = by_rdma(Small(flat(16), {part: 0.5})), BlockFindings()
    judge_fabric(rounds, block, dict.fromkeys(rounds.topology.nodes, (FLOOR,)))
    assert {name: [each.rule for each in rows] for name, rows in block.findings.items()} == {"n5": ["rounds"]}


def below(rounds: Rounds) -> set[tuple[str, str]]:
    """(Node, rail) with a finding by the floor."""
    block = BlockFindings()
    judge_fabric(rounds, block, dict.fromkeys(rounds.topology.nodes, (FLOOR,)))
    found = ((name, each) for name, rows in block.findings.items() for each in rows if each.rule == "floor")
    return {(name, dict(each.labels)["rail"]) for name, each in found}


@pytest.mark.parametrize("part", [
    Part(PartKind.LEAF, 1, rail=2), Part(PartKind.UPLINK, 1, rail=2), Part(PartKind.PATH, 0, 2, rail=2),
    Part(PartKind.CONGESTION, 3),
])  # fmt: skip
@pytest.mark.parametrize("rate", [1.0, 0.8])
def test_a_part_of_the_fabric_explains_a_floor_as_far_as_it_lowers_all_cells_of_the_rail(
    part: Part, rate: float
) -> None:
    """With five nodes a leaf one of them has partners on other leaves only. At 0.8 every rail is below its floor."""
    world = Small(fabric(6, 5), {} if part.kind is PartKind.CONGESTION else {part: 0.5})
    world.together = {part.a: 0.5} if part.kind is PartKind.CONGESTION else {}
    rounds = by_rdma(world, rate=rate)
    every = {(name, rail) for name in rounds.topology.nodes for rail in rounds.topology.rails}
    assert below(rounds) == (set() if rate == 1.0 else every)


def test_a_rail_that_is_slow_for_all_is_below_no_floor_for_it() -> None:
    assert below(by_rdma(Small(flat(16), {Part(PartKind.NIC, node, rail=1): 0.5 for node in range(16)}))) == set()
