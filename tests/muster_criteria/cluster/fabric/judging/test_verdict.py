"""What a diagnosis means for members: a part of a node fails it, a part of the fabric fails none, doubt passes none."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from muster_criteria.cluster.fabric.decoding.parts import Part, PartKind, Symptom
from muster_criteria.cluster.fabric.judging.covered import count_rails
from muster_criteria.cluster.fabric.judging.found import FabricJudgement
from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.judging.verdict import judge_fabric
from muster_criteria.cluster.fabric.observed import Place, Port, round_result
from muster_criteria.cluster.fabric.pairing import screening
from muster_criteria.cluster.fabric.planner import next_round
from muster_criteria.cluster.fabric.rounds import Kind, Round, RoundResult
from muster_criteria.cluster.fabric.topology import LEAF_LABEL, Miscabled, Topology
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.model import FaultClass, Lack, Severity
from muster_criteria.stage.coverage import Tally
from tests.muster_criteria.cluster.fabric.worlds import (
    Small,
    fabric,
    failed,
    flat,
    judged,
    places,
    unjudged,
    without_perftest,
)


@pytest.mark.parametrize(
    ("kind", "device", "fault"),
    [
        (PartKind.NODE, "node", FaultClass.NODE),
        (PartKind.NIC, "nic:mlx5_1", FaultClass.NIC),
        (PartKind.GPU, "gpu6", FaultClass.GPU),
    ],
)
def test_a_part_of_a_node_fails_that_node_alone_and_names_its_device(
    kind: PartKind, device: str, fault: FaultClass
) -> None:
    part = Part(kind, 5, rail=-1 if kind is PartKind.NODE else 1)
    found, block, rounds = judged(Small(fabric(4, 4), {part: 0.5}))
    name = rounds.topology.nodes[5]
    assert list(block.findings) == [name]
    (finding,) = block.findings[name]
    assert (finding.severity, finding.device, finding.fault_class) == (Severity.CRITICAL, device, fault)
    assert [(each.kind, each.node, each.confirmed) for each in found.parts] == [(kind, name, True)]
    assert block.suspected == {}


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("kind", [PartKind.NODE, PartKind.NIC, PartKind.GPU])
def test_a_part_of_a_node_whose_leaf_is_not_known_may_be_its_uplink_unless_its_gpu_is_low_over_two_nics(
    kind: PartKind, share: float
) -> None:
    part = Part(kind, 5, rail=-1 if kind is PartKind.NODE else 1)
    for topology, doubt in ((flat(12, 4), kind is not PartKind.GPU), (fabric(4, 4), False)):
        found, block, _ = judged(Small(topology, {part: share}))
        name = topology.nodes[5]
        assert [(each.kind, each.node, each.confirmed) for each in found.parts] == [(kind, name, True)]
        assert [each.severity for each in block.findings[name]] == [Severity.WARNING if doubt else Severity.CRITICAL]
        advised = [f"give the nodes the label {LEAF_LABEL}" in each.summary for each in block.findings[name]]
        assert advised == [doubt]  # mail and page show the finding, so it says what to do
        assert {at: [gap.code for gap in gaps] for at, gaps in block.suspected.items()} == (
            {name: [Lack.UNDECIDED]} if doubt else {}
        )


@pytest.mark.parametrize("share", [0.5, 0.89, 0.905, 0.91, 0.915])
def test_the_limit_that_failed_a_part_is_the_one_that_is_stated(share: float) -> None:
    """Low begins above 0.9, so that a part that lost 10 % is not taken for good."""
    found, block, _ = judged(Small(fabric(4, 4), {Part(PartKind.NIC, 5, rail=1): share}))
    ((finding,),) = block.findings.values()
    assert finding.severity is Severity.CRITICAL
    assert [each.share < each.least for each in found.parts] == [True]
    assert float(finding.observed.split()[0]) < float(finding.expected.split()[1])


@pytest.mark.parametrize(("used", "device"), [({(5, 1): "gpu2"}, "gpu2"), ({}, "node")])
def test_of_a_rail_that_names_no_gpu_the_one_is_charged_that_was_measured(
    used: dict[tuple[int, int], str], device: str
) -> None:
    """On a board that lost gpu1 the GPU at that place is gpu2."""
    world, block = Small(fabric(4, 4), {Part(PartKind.GPU, 5, rail=1): 0.5}), BlockFindings()
    results = tuple(dataclasses.replace(each, gpus=used) for each in world.isolate()[0])
    unnamed = Place("10.0.0.1", tuple(Port("10.0.0.1", gpu=at, named=False) for at in range(4)))
    judge_fabric(Rounds(world.topology, dict.fromkeys(world.topology.nodes, unnamed), results), block)
    assert [each.device for each in block.findings[world.topology.nodes[5]]] == [device]


@pytest.mark.parametrize(("share", "together"), [(0.5, 1.0), (0.0, 1.0), (1.0, 0.5), (1.0, 0.0)])
def test_what_the_tool_said_is_quoted_of_a_part_over_which_nothing_went(share: float, together: float) -> None:
    """A part that is slow may have failed once for another reason."""
    world, block = Small(fabric(4, 4), {Part(PartKind.NIC, 5, rail=1): share}), BlockFindings()
    world.together_on = {(5, 1): together}
    results = tuple(dataclasses.replace(each, troubles={(5, 1): "no GID"}) for each in world.isolate()[0])
    judge_fabric(Rounds(world.topology, places(world.topology), results), block)
    ((finding,),) = block.findings.values()
    assert ("no GID" in finding.summary) is (share * together == 0.0)


@pytest.mark.parametrize(
    "part",
    [Part(PartKind.LEAF, 1, rail=2), Part(PartKind.UPLINK, 1, rail=2), Part(PartKind.PATH, 0, 2, rail=1)],
)
def test_a_part_of_the_fabric_costs_no_node_its_verdict_and_names_whom_it_touches(part: Part) -> None:
    found, block, rounds = judged(Small(fabric(6, 6), {part: 0.5}))
    assert (block.findings, block.suspected) == ({}, {})
    (each,) = found.parts
    assert (each.kind, each.node, each.rail) == (part.kind, "", rounds.topology.rails[part.rail])
    assert set(each.touches) & {rounds.topology.nodes[node] for node in rounds.topology.members[part.a]}


@pytest.mark.parametrize("part", [Part(PartKind.UPLINK, 1, rail=2), Part(PartKind.PATH, 0, 2, rail=1)])
def test_wrong_bytes_that_a_part_of_the_fabric_explains_hold_no_node(part: Part) -> None:
    found, block, _ = judged(Small(fabric(6, 6), {part: 1.0}, frozenset({part})))
    assert [(each.kind, each.symptom) for each in found.parts] == [(part.kind, Symptom.CORRUPTS)]
    assert (block.findings, block.suspected) == ({}, {})


def test_a_pair_over_which_nothing_went_once_is_held_although_it_recovered() -> None:
    topology = flat(16)
    pair = screening(topology, 0)[0].pairs[0]
    results, block = (
        Small(topology, {Part(PartKind.PATH, *pair, 2, between_nodes=True): 0.0}).recovered(),
        BlockFindings(),
    )
    assert judge_fabric(Rounds(topology, places(topology), tuple(results)), block).parts == ()
    assert {name: [gap.code for gap in gaps] for name, gaps in block.suspected.items()} == {
        topology.nodes[node]: [Lack.UNDECIDED] for node in pair
    }


def test_slow_together_is_congestion_and_nobodys_fault() -> None:
    world = Small(fabric(4, 4), {})
    world.together = {3: 0.5}
    found, block, _ = judged(world)
    assert [each.kind for each in found.parts] == [PartKind.CONGESTION]
    assert (block.findings, block.suspected) == ({}, {})


def test_a_silent_node_warns_and_cannot_pass_but_does_not_fail() -> None:
    world = Small(fabric(4, 4), {})
    world.silent = {number: {2} for number in range(1, 8)}
    found, block, rounds = judged(world)
    name = rounds.topology.nodes[2]
    assert [each.severity for each in block.findings[name]] == [Severity.WARNING]
    assert [gap.code for gap in block.suspected[name]] == [Lack.LOST]
    assert [each.symptom for each in found.parts] == [Symptom.SILENT]


def test_a_suspect_that_no_further_round_confirmed_cannot_pass() -> None:
    world = Small(fabric(4, 4), {Part(PartKind.NIC, 5, rail=1): 0.5})
    results, _ = world.isolate(rounds_max=3)
    block = BlockFindings()
    found = judge_fabric(Rounds(world.topology, places(world.topology), tuple(results)), block)
    name = world.topology.nodes[5]
    assert [each.confirmed for each in found.parts] == [False]
    assert [each.severity for each in block.findings[name]] == [Severity.WARNING]
    assert [gap.code for gap in block.suspected[name]] == [Lack.UNDECIDED]


@pytest.mark.parametrize("corrupt", [False, True])
def test_too_few_to_tell_whose_fault_a_dead_or_corrupting_rail_is_pass_neither(corrupt: bool) -> None:
    part = Part(PartKind.NIC, 0, rail=1)
    world = Small(flat(2, rails=2), {part: 1.0 if corrupt else 0.0}, frozenset({part} if corrupt else ()))
    found, block, _ = judged(world)
    assert {name: {gap.code for gap in gaps} for name, gaps in block.suspected.items()} == {
        "n0": {Lack.UNDECIDED}, "n1": {Lack.UNDECIDED}
    }  # fmt: skip
    assert not [each for findings in block.findings.values() for each in findings if each.severity == "critical"]
    assert all(not each.confirmed for each in found.parts)


def test_what_was_not_judged_is_said() -> None:
    found, block, _ = judged(Small(flat(2, rails=2), {}))
    assert len(found.notes) == 1
    assert (block.findings, block.suspected) == ({}, {})


def test_each_rail_of_a_member_has_to_be_measured_once() -> None:
    topology = flat(4, rails=2)
    alone = np.full((2, 2, 1), 100.0)
    alone[1, 1] = np.nan
    result = RoundResult(Round(1, Kind.SAME_LEAF, ((0, 1), (2, 3))), alone, np.zeros((2, 2), dtype=bool))
    rounds = Rounds(topology, places(topology), (result,), {"n3": "its partner did not come"})
    counted = {name: Tally() for name in ("n0", "n3", "nobody")}
    for name, tally in counted.items():
        count_rails(rounds, name, tally, FabricJudgement(judged=frozenset({(name, "r0"), (name, "r1")})))
    assert [(t.required, len(t.missing)) for t in counted.values()] == [(2, 0), (2, 1), (2, 2)]
    assert not any(tally.unjudged for tally in counted.values())
    assert counted["n3"].missing[0].why == "its partner did not come"


def test_a_round_of_which_no_pair_is_left_changes_nothing() -> None:
    world = Small(fabric(4, 4), {})
    results, _ = world.isolate()
    empty = RoundResult(
        Round(len(results) + 1, Kind.CONFIRM, ()), np.zeros((0, 4, 1)), np.zeros((0, 4), dtype=bool),
        np.zeros((0, 4)), np.zeros((0, 4)),
    )  # fmt: skip
    block = BlockFindings()
    rounds = Rounds(world.topology, places(world.topology), (*results, empty))
    assert judge_fabric(rounds, block) == judge_fabric(dataclasses.replace(rounds, results=tuple(results)), block)


def test_what_may_be_a_common_switch_fails_no_node_and_passes_none() -> None:
    faults = {Part(PartKind.NIC, node, rail=1): 0.5 for node in range(4)}
    found, block, _ = judged(Small(flat(32), faults))
    assert [(each.kind, each.node, each.rail, set(each.touches)) for each in found.parts] == [
        (PartKind.SHARED, "", "r1", {"n0", "n1", "n2", "n3"})
    ]
    assert block.findings == {}
    assert {name: {gap.code for gap in gaps} for name, gaps in block.suspected.items()} == {
        f"n{at}": {Lack.UNDECIDED} for at in range(4)
    }


def test_nodes_behind_one_unknown_switch_for_all_rails_neither_fail_nor_pass() -> None:
    world = Small(flat(8), {})
    world.behind = (frozenset({2, 6}), 0.5, True)
    found, block, _ = judged(world)
    assert [(each.kind, each.node, each.rail) for each in found.parts] == [(PartKind.SHARED, "", "")]
    assert block.findings == {}
    assert {name: {gap.code for gap in gaps} for name, gaps in block.suspected.items()} == {
        f"n{at}": {Lack.UNDECIDED} for at in (2, 6)
    }


def test_a_rail_that_is_slow_for_all_costs_no_node_anything() -> None:
    found, block, _ = judged(Small(flat(16), {Part(PartKind.NIC, node, rail=1): 0.5 for node in range(16)}))
    assert [(each.kind, each.rail, len(each.touches)) for each in found.parts] == [(PartKind.RAIL, "r1", 16)]
    assert (block.findings, block.suspected) == ({}, {})


@pytest.mark.parametrize("corrupt", [False, True])
@pytest.mark.parametrize(
    ("topology", "bad"),
    [
        (fabric(2, 8), 16), (flat(16), 16), (fabric(4, 4), 4), (fabric(4, 2), 2), (fabric(4, 2, rails=1), 2),
        (fabric(3, 3), 3), (fabric(3, 3, rails=1), 9),
    ],
)  # fmt: skip
def test_nodes_over_whose_rail_nothing_ever_arrived_neither_fail_nor_pass(
    topology: Topology, bad: int, corrupt: bool
) -> None:
    """Whether the fabric's part or theirs, nothing is known of their own ports then."""
    ports = [Part(PartKind.NIC, node, rail=len(topology.rails) // 4) for node in range(bad)]
    world = Small(topology, dict.fromkeys(ports, 1.0 if corrupt else 0.0), frozenset(ports if corrupt else ()))
    found, block, _ = judged(world)
    assert failed(block) == set()
    assert {name: [gap.code for gap in gaps] for name, gaps in block.suspected.items()} == {
        name: [Lack.UNDECIDED] for name in topology.nodes[:bad]
    }
    assert all(not (part.node and part.confirmed) for part in found.parts)


@pytest.mark.parametrize("each", [2, 3])
@pytest.mark.parametrize("kind", [PartKind.NIC, PartKind.NODE])
def test_all_nodes_of_a_small_leaf_neither_fail_nor_pass(each: int, kind: PartKind) -> None:
    """Their leaf switch and a port of each look alike."""
    faults = {Part(kind, node, rail=1 if kind is PartKind.NIC else -1): 0.6 for node in range(each)}
    found, block, rounds = judged(Small(fabric(5, each), faults))
    assert {part.kind for part in found.parts} == {PartKind.LEAF}
    assert block.findings == {}
    assert set(block.suspected) == set(rounds.topology.nodes[:each])


@pytest.mark.parametrize(
    ("kind", "rail"), [(PartKind.UPLINK, 1), (PartKind.LEAF, 1), (PartKind.NIC, 1), (PartKind.NODE, -1)]
)
def test_the_only_node_of_a_leaf_neither_fails_nor_passes_for_what_may_be_its_uplinks(
    kind: PartKind, rail: int
) -> None:
    found, block, rounds = judged(Small(fabric(12, 1), {Part(kind, 3, rail=rail): 0.6}))
    assert [(part.kind, part.where) for part in found.parts] == [(PartKind.SHARED, "leaf03")]
    assert block.findings == {}
    assert {name: {gap.code for gap in gaps} for name, gaps in block.suspected.items()} == {
        rounds.topology.nodes[3]: {Lack.UNDECIDED}
    }


def test_a_gpu_of_the_only_node_of_a_leaf_is_the_nodes() -> None:
    _, block, rounds = judged(Small(fabric(12, 1), {Part(PartKind.GPU, 3, rail=1): 0.6}))
    assert [each.severity for each in block.findings[rounds.topology.nodes[3]]] == [Severity.CRITICAL]


def test_a_port_whose_only_neighbour_is_bad_itself_may_be_behind_slow_uplinks() -> None:
    faults = {Part(PartKind.NODE, 0): 0.5, Part(PartKind.NIC, 1, rail=1): 0.7}
    _, block, rounds = judged(Small(fabric(8, 2), faults))
    assert failed(block) == {rounds.topology.nodes[0]}
    assert set(block.suspected) == {rounds.topology.nodes[1]}


def test_a_node_that_lacks_the_backend_is_no_hardware_fault_and_does_not_pass() -> None:
    topology = flat(16, 2)
    results: list[RoundResult] = []
    while (plan := next_round(topology, results, 0)) is not None:
        results.append(round_result(topology, plan, without_perftest(topology, plan, 5)))
    rounds, block = Rounds(topology, places(topology), tuple(results)), BlockFindings()
    assert (judge_fabric(rounds, block).parts, block.findings) == ((), {})
    missing = {}
    for name in topology.nodes:
        tally = Tally()
        count_rails(rounds, name, tally, FabricJudgement())
        missing[name] = [gap.why for gap in tally.missing if "tcp" in gap.why]
    assert {name: len(gaps) for name, gaps in missing.items() if gaps} == {"n5": 2}


def test_a_dead_port_on_a_rail_that_is_slower_as_a_whole_fails_its_node() -> None:
    faults = {Part(PartKind.NIC, node, rail=1): 0.0 if node == 3 else 0.5 for node in range(16)}
    found, block, rounds = judged(Small(fabric(4, 4, rails=2), faults))
    assert {each.kind for each in found.parts} == {PartKind.RAIL, PartKind.NIC}
    assert failed(block) == {rounds.topology.nodes[3]}


@pytest.mark.parametrize("part", [Part(PartKind.NODE, 5), Part(PartKind.NIC, 5, rail=1)])
@pytest.mark.parametrize("tcp", [True, False])
def test_rdma_that_sends_nothing_where_tcp_does_is_suspected_and_fails_no_node(part: Part, tcp: bool) -> None:
    world = Small(fabric(4, 4), {part: 0.0})
    results, _ = world.isolate()
    said = {(5, 1): "no GID"}
    answered = [dataclasses.replace(each, host=(each.alone[:, :, 0] == 0.0) & tcp, troubles=said) for each in results]
    block = BlockFindings()
    judge_fabric(Rounds(world.topology, places(world.topology), tuple(answered)), block)
    name = world.topology.nodes[5]
    (finding,) = block.findings[name]
    assert finding.severity is (Severity.WARNING if tcp else Severity.CRITICAL)
    assert "no GID" in finding.summary
    assert [gap.code for gap in block.suspected.get(name, ())] == ([Lack.UNDECIDED] if tcp else [])


@pytest.mark.parametrize(("slow", "notes"), [(10, 1), (1, 0)])
def test_rates_that_differ_too_much_to_judge_are_said(slow: int, notes: int) -> None:
    """Ten of sixteen nodes at half speed: the others look like noise above the usual rate."""
    topology = flat(16, 1)
    world = Small(topology, {Part(PartKind.NODE, node): 0.5 for node in range(slow)})
    found, _, _ = judged(world)
    assert len(found.notes) - 1 == notes, "one says that leaves are not known"


def test_what_cannot_be_distinguished_passes_no_node() -> None:
    """Two slow nodes and a hot spot of four pairs set the median: the slowest is as good as usual."""
    topology = flat(8, 1)
    result = RoundResult(
        Round(1, Kind.SAME_LEAF, ((0, 1), (2, 3), (4, 5), (6, 7))),
        np.array([[[33.6]], [[33.6]], [[38.4]], [[48.0]]]), np.zeros((4, 1), dtype=bool),
    )  # fmt: skip
    rounds = Rounds(topology, places(topology), (result,))
    found = judge_fabric(rounds, BlockFindings())
    assert unjudged(rounds, found) == {name: [Lack.NOT_COMPARED] for name in topology.nodes}


@pytest.mark.parametrize(("nodes", "compared"), [(2, False), (4, False), (7, False), (8, True), (16, True)])
def test_rails_that_were_compared_with_nothing_are_not_judged(nodes: int, compared: bool) -> None:
    found, _, rounds = judged(Small(flat(nodes, rails=2), {}))
    gaps = {} if compared else dict.fromkeys(rounds.topology.nodes, [Lack.NOT_COMPARED] * 2)
    assert unjudged(rounds, found) == gaps
    assert unjudged(rounds, found, simulated=True) == {}


def test_a_node_that_is_cabled_unlike_the_others_is_warned_of_and_charged_with_nothing() -> None:
    world = Small(fabric(2, 6), {})
    (name, *_), rail = world.topology.nodes, world.topology.rails[0]
    world.topology = dataclasses.replace(world.topology, miscabled=(Miscabled(name, rail, "b (port 7)", "a"),))
    found, block, _ = judged(world)
    ((at, (finding,)),) = block.findings.items()
    assert (at, finding.rule, finding.severity) == (name, "cabling", Severity.WARNING)
    assert finding.labels == (("rail", rail),)
    assert ("b (port 7)" in finding.observed, finding.expected) == (True, f"rail {rail} on a")
    assert found.parts == ()
    assert block.suspected == {}
