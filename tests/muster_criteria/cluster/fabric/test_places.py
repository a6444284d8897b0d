"""Where members sit: their rails by label, their leaves by label or file, and sentences for what contradicts."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from muster_criteria.cluster.fabric.decoding.parts import Part, PartKind
from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.judging.verdict import judge_fabric
from muster_criteria.cluster.fabric.observed import Port
from muster_criteria.cluster.fabric.places import ONLY_RAIL, Member, places_of, topology_of
from muster_criteria.cluster.fabric.topology import BadTopology, Topology
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.model import Severity
from tests.muster_criteria.cluster.fabric.worlds import Small

SLURM = "SwitchName=s1 Nodes=n[0-1]\nSwitchName=s2 Nodes=n[2-3]\nSwitchName=top Switches=s[1-2]\n"


def members(count: int = 4, gpus: int | None = None, **labels: str) -> list[Member]:
    return [
        Member(f"n{at}", f"10.0.0.{at}", {k: v.format(at=at) for k, v in labels.items()}, gpus) for at in range(count)
    ]


def topology(given: list[Member], files: dict[str, str] | None = None) -> Topology:
    return topology_of(given, *places_of(given), files)


def test_nodes_without_labels_have_the_one_rail_by_which_they_are_reached() -> None:
    rails, places = places_of(members())
    assert rails == (ONLY_RAIL,)
    assert (places["n2"].address, places["n2"].ports) == ("10.0.0.2", (Port(address=""),))
    assert not topology_of(members(), rails, places).known


def test_rails_are_read_from_the_label_whatever_their_order_on_a_node() -> None:
    given = members(2, rails="r0@10.1.0.{at}/eth0/mlx5_0/4 r1@10.2.0.{at}")
    swapped = Member("n9", "10.0.0.9", {"rails": "r1@10.2.0.9 r0@10.1.0.9"})
    rails, places = places_of([*given, swapped])
    assert rails == ("r0", "r1")
    assert places["n1"].ports == (Port("10.1.0.1", "eth0", "mlx5_0", 4), Port("10.2.0.1", gpu=1, named=False))
    assert [port.address for port in places["n9"].ports] == ["10.1.0.9", "10.2.0.9"]


@pytest.mark.parametrize(("gpus", "places"), [(1, [0, 0, 0]), (2, [0, 1, 0]), (8, [0, 1, 2]), (None, [0, 1, 2])])
def test_of_more_rails_than_gpus_those_that_name_none_begin_with_the_first_again(
    gpus: int | None, places: list[int]
) -> None:
    """A GH200 has four ports for its one GPU, and a NIC may have two ports."""
    _, found = places_of(members(2, gpus=gpus, rails="r0@10.1.0.{at} r1@10.2.0.{at} r2@10.3.0.{at}"))
    assert [port.gpu for port in found["n0"].ports] == places


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (members(2, rails="r0"), "n0"),
        (members(2, rails="r0@10.1.0.1/a/b/c"), "n0"),
        (members(2, rails="r0@n{at}-ib0"), "n0"),
        (members(2, rails="r0@10.1.0.1/a/b/1/more"), "n0"),
        (members(2, rails="r0@10.1.0.1 r0@10.1.0.2"), "n0"),
        (members(2, rails="r0@10.1.0.{at}//mlx5_0/0 r1@10.2.0.{at}//mlx5_0/1"), "n0"),
        (members(2, rails="r0@10.1.0.{at}/ib0/mlx5_0 r1@10.2.0.{at}/ib0/mlx5_1"), "n0"),
        ([*members(1, rails="r0@10.1.0.1"), Member("m", "10.0.0.9", {})], "m"),
        ([*members(1, rails="r0@10.1.0.1"), Member("m", "10.0.0.9", {"rails": "r1@10.1.0.2"})], "m"),
        (members(2, rails="r0@10.1.0.7"), "n1 has the address 10.1.0.7 on rail r0, and so has n0"),
        (members(2, rails="r0@10.1.0.{at} r1@10.2.0.7"), "n1 has the address 10.2.0.7 on rail r1, and so has n0"),
    ],
)
def test_a_label_that_cannot_be_used_is_one_sentence_that_names_the_node(given: list[Member], names: str) -> None:
    with pytest.raises(BadTopology, match=rf"(^|\b){names}\b"):
        places_of(given)


def test_nodes_of_one_host_may_share_a_port() -> None:
    assert places_of(members(2, rails="r0@127.0.0.1"))[0] == ("r0",)
    one_host = [Member(name, "10.0.0.1", {"rails": "r0@10.1.0.7"}) for name in ("a", "b")]
    assert places_of(one_host)[0] == ("r0",)


def test_leaves_come_from_the_file_if_there_is_one() -> None:
    found = topology(members(), {"topology.conf": SLURM})
    assert found.known
    assert [found.leaves[leaf] for leaf in found.leaf_of] == ["s1", "s1", "s2", "s2"]
    assert topology(members(leaf="l{at}")).leaves == ("l0", "l1", "l2", "l3")


def test_slurms_yaml_is_known_by_its_name_or_by_its_text() -> None:
    of_slurm = "- topology: a\n  tree: {switches: [{switch: s1, nodes: 'n[0-1]'}, {switch: s2, nodes: 'n[2-3]'}]}\n"
    for name in ("topology.yaml", "fabric.txt"):
        assert topology(members(), {name: of_slurm}).leaves == ("s1", "s2")
    with pytest.raises(BadTopology, match="YAML"):
        topology(members(), {"fabric.yaml": "leaves: {s1: [n0]}"})


@pytest.mark.parametrize("label", ["eth0@10.1.0.{at}", "rail0@10.1.0.{at}/eth0/mlx5_0"])
def test_each_node_has_its_own_file_of_lldp_which_names_the_switch_of_each_rails_interface(label: str) -> None:
    files = {f"n{at}.lldp": f"lldp.eth0.chassis.name=leaf{at // 2}\n" for at in range(4)}
    assert topology(members(rails=label), files).leaves == ("leaf0", "leaf1")
    while files:
        files.popitem()
        if files:
            with pytest.raises(BadTopology, match=f"n{len(files)}"):
                topology(members(rails=label), files)


def test_nodes_may_have_one_rail_over_interfaces_of_different_names() -> None:
    given = [*members(2, rails="rail0@10.1.0.{at}/eth0"), Member("n9", "10.0.0.9", {"rails": "rail0@10.1.0.9/ens1"})]
    files = {
        "n9.lldp": "lldp.ens1.chassis.name=leaf7\n",
        **{f"n{at}.lldp": "lldp.eth0.chassis.name=leaf0" for at in (0, 1)},
    }
    assert topology(given, files).leaves == ("leaf0", "leaf7")
    with pytest.raises(BadTopology, match="n9 sees no switch on ens1, its interface of rail rail0"):
        topology(given, {**files, "n9.lldp": ""})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (members(5), "n4 is enrolled"),
        (members(leaf="s1"), "n2 is on leaf s2 by the topology file and on s1 by its label"),
    ],
)
def test_a_file_that_contradicts_enrolment_is_one_sentence(given: list[Member], says: str) -> None:
    with pytest.raises(BadTopology, match=re.escape(says)):
        topology(given, {"topology.conf": SLURM})


def test_more_rails_than_the_fabric_has_adapters_are_refused() -> None:
    dump = 'Switch\t36 "S-0a"\t\t# "leaf" base port 0 lid 1 lmc 0\n' + "".join(
        f'[{at + 1}]\t"H-0{at}"[1](1{at})\t\t# "n{at} mlx5_0" lid 9 4xNDR\n' for at in range(2)
    )
    assert topology(members(2), {"ib.txt": dump}).leaves == ("S-0a",)
    with pytest.raises(BadTopology, match="2 rails"):
        topology(members(2, rails="r0@10.1.0.{at} r1@10.2.0.{at}"), {"ib.txt": dump})


def ibnetdiscover(switch: str, adapter: str, nodes: Iterable[int]) -> str:
    return f'Switch\t64 "S-{switch}"\t\t# "{switch}" enhanced port 0 lid 1 lmc 0\n' + "".join(
        f'[{at + 1}]\t"H-{switch}{at:02x}"[1](1{at})\t\t# "n{at} {adapter}" lid 9 4xNDR\n' for at in nodes
    )


def test_adapters_that_the_file_names_otherwise_count_by_these_names() -> None:
    given = members(2, rails="r0@10.1.0.{at}/ib0/mlx5_0")
    assert topology(given, {"ib.txt": ibnetdiscover("aa", "HCA-1", range(2))}).leaves == ("S-aa",)


@pytest.mark.parametrize("without", [None, 5])
def test_an_adapter_of_no_rail_says_nothing_of_a_leaf(without: int | None) -> None:
    """A node whose storage adapter is down would be a leaf of its own, and its slow NIC an uplink's fault."""
    given = members(16, rails="r0@10.1.0.{at}/ib0/mlx5_0")
    storage = ibnetdiscover("bb", "mlx5_9", (at for at in range(16) if at != without))
    found = topology(given, {"ib.txt": ibnetdiscover("aa", "mlx5_0", range(16)) + "\n" + storage})
    assert (found.rails, found.leaves) == (("r0",), ("S-aa",))
    results, _ = Small(found, {Part(PartKind.NIC, 5, rail=0): 0.5}).isolate()
    block = BlockFindings()
    judge_fabric(Rounds(found, places_of(given)[1], tuple(results)), block)
    assert [(name, each.severity) for name, (each,) in block.findings.items()] == [("n5", Severity.CRITICAL)]


def test_a_node_that_lacks_the_adapter_of_a_rail_is_refused() -> None:
    dump = ibnetdiscover("aa", "mlx5_0", [0]) + "\n" + ibnetdiscover("bb", "mlx5_9", range(2))
    with pytest.raises(BadTopology, match="n1 lacks adapter mlx5_0, its device of rail r0"):
        topology(members(2, rails="r0@10.1.0.{at}/ib0/mlx5_0"), {"ib.txt": dump})
