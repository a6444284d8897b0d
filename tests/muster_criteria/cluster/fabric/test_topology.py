"""Topology from labels, topology.conf, ibnetdiscover and LLDP; what contradicts itself is refused with a sentence."""

from __future__ import annotations

import dataclasses
import json
import re

import hypothesis
import pytest
from hypothesis import strategies as st

from muster_criteria.cluster.fabric.cabling import Link, miscabled_rails
from muster_criteria.cluster.fabric.topology import BadTopology, Topology, from_labels, from_records, unknown
from muster_criteria.cluster.fabric.topology_files import (
    from_ibnetdiscover,
    from_lldp,
    from_slurm,
    from_slurm_yaml,
    hostlist,
)

RAILS = ["mlx5_0", "mlx5_1"]
NODES = ["n1", "n2", "n3"]
ETH = {"eth0": "eth0", "eth1": "eth1"}


def places(topology: Topology) -> dict[str, tuple[str, str]]:
    return {
        name: (topology.leaves[leaf], topology.pods[topology.pod_of[leaf]])
        for name, leaf in zip(topology.nodes, topology.leaf_of, strict=True)
    }


def test_labels_give_leaf_and_pod() -> None:
    labels = {"a": {"leaf": "l1", "pod": "p1"}, "b": {"leaf": "l2", "pod": "p2"}, "c": {"leaf": "l1", "pod": "p1"}}
    assert places(from_labels(labels, RAILS)) == {"a": ("l1", "p1"), "b": ("l2", "p2"), "c": ("l1", "p1")}


@pytest.mark.parametrize("labels", [{"a": {}, "b": {}}, {"a": {"rack": "r1"}, "b": {"rack": "r2"}}])
def test_without_leaves_nothing_is_known_and_a_rack_is_no_leaf(labels: dict[str, dict[str, str]]) -> None:
    nothing = from_labels(labels, RAILS)
    assert (nothing.known, nothing.paths, nothing.leaf_of) == (False, False, (0, 0))


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ({"a": {"leaf": "l1"}, "b": {}}, "b has no label leaf"),
        ({"a": {"leaf": "l1", "pod": "p1"}, "b": {"leaf": "l1", "pod": "p2"}}, "leaf l1 is in pod p1"),
        ({"a": {"leaf": "l1", "pod": "p1"}, "b": {"leaf": "l2"}}, "leaf l2 is in no pod"),
    ],
)
def test_labels_that_contradict_each_other_are_refused(labels: dict[str, dict[str, str]], says: str) -> None:
    with pytest.raises(BadTopology, match=says):
        from_labels(labels, RAILS)


SLURM = """\
# two leaves below each spine
SwitchName=leaf1 Nodes=gpu[001-002],login
switchname=leaf2 nodes=gpu[003,005] \\
  LinkSpeed=400
SwitchName=leaf3 Nodes=gpu010
SwitchName=spine1 Switches=leaf[1-2]
SwitchName=spine2 Switches=leaf3
SwitchName=core Switches=spine[1-2]
"""


def test_topology_conf() -> None:
    names = ["gpu001", "gpu002", "login", "gpu003", "gpu005", "gpu010"]
    assert places(from_slurm(SLURM, RAILS, names)) == {
        "gpu001": ("leaf1", "spine1"), "gpu002": ("leaf1", "spine1"), "login": ("leaf1", "spine1"),
        "gpu003": ("leaf2", "spine1"), "gpu005": ("leaf2", "spine1"), "gpu010": ("leaf3", "spine2"),
    }  # fmt: skip
    blocks = "BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2"
    assert places(from_slurm(blocks, RAILS, NODES))["n3"] == ("b2", "all leaves")


@pytest.mark.parametrize("sign", [" = ", " =", "=  ", "\t=\t"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_topology_conf_may_have_what_slurm_accepts(sign: str, quote: str) -> None:
    """slurmctld 22.05.8 reads all of these alike."""
    text = re.sub(r"=(\S+)", rf"{sign}{quote}\1{quote}", SLURM)
    names = ["gpu001", "gpu003", "gpu010"]
    assert from_slurm(text, RAILS, names) == from_slurm(SLURM, RAILS, names)


SLURM_YAML = """\
---
- topology: nvl
  block:
    block_sizes: [2]
    blocks:
      - {block: b1, nodes: "n[1-2]"}
      - {block: b2, nodes: n3}
- topology: ethernet
  cluster_default: true
  tree:
    switches:
      - switch: root
        children: s[1-2]
      - switch: s1
        nodes: n[1,3]
      - switch: s2
        nodes: n2
- {topology: plain, flat: true}
"""


def test_topology_yaml() -> None:
    assert places(from_slurm_yaml(SLURM_YAML, RAILS, NODES)) == {
        "n1": ("s1", "root"), "n2": ("s2", "root"), "n3": ("s1", "root")
    }  # fmt: skip
    blocks = SLURM_YAML.replace("n[1,3]", "m1").replace("nodes: n2", "nodes: m2")
    assert places(from_slurm_yaml(blocks, RAILS, NODES))["n3"] == ("b2", "all leaves")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- {topology: a, flat: true}", "no topology of Slurm's"),
        ("networks: {leaf: n1}", "no topology of Slurm's"),
        ("- topology: [", "is not YAML"),
        ("- {topology: a, tree: {switches: [{switch: s, nodes: n1}, {switch: t, nodes: 'n[2-1]'}]}}", "switch t has"),
        ("- {topology: a, tree: {switches: [{switch: s, nodes: n1}, {switch: t, nodes: n1}]}}", "switch t puts n1"),
    ],
)
def test_a_topology_yaml_that_cannot_be_used_says_where(text: str, says: str) -> None:
    with pytest.raises(BadTopology, match=says):
        from_slurm_yaml(text, RAILS, ["n1", "n2"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1", "line 2 puts n1 under b"),
        ("SwitchName=a Nodes=n[3-1]", "no list of numbers"),
        ("SwitchName=a Nodes=n[1-9999999999]", "more than 100000"),
        ("SwitchName=a Nodes=n[1-999][1-999]", "more than 100000"),
        ("SwitchName=a Switches=b", "n1 is enrolled and 2 node"),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=s Switches=a", "leaf b is in no pod"),
    ],
)
def test_a_topology_conf_that_cannot_be_used_says_where(text: str, says: str) -> None:
    with pytest.raises(BadTopology, match=says):
        from_slurm(text, RAILS, ["n1", "n2"])


@pytest.mark.parametrize(
    "row",
    [
        "SwitchName=ethernet Nodes=cpu[001-100]",
        "SwitchName=leaf9 Nodes=gpu[020-021]\nSwitchName=leaf8 Nodes=gpu021\nSwitchName=spine1 Switches=leaf[8-9]",
    ],
)
def test_rows_of_other_nodes_are_ignored(row: str) -> None:
    names = ["gpu010", "gpu003"]
    part = from_slurm(SLURM + row, RAILS, names)
    assert places(part) == {"gpu010": ("leaf3", "spine2"), "gpu003": ("leaf2", "spine1")}
    assert part.nodes == ("gpu010", "gpu003")


def test_hostlists() -> None:
    assert hostlist("n[08-10,3],x,r[1-2]c[1-2]") == ["n08", "n09", "n10", "n3", "x", "r1c1", "r1c2", "r2c1", "r2c2"]
    assert hostlist("") == []


IBNET = """\
#
# Topology file: generated on Mon Nov  2 10:00:00 2026
#
vendid=0x2c9
devid=0xd2f0
sysimgguid=0xa1
switchguid=0xa1(a1)
Switch\t64 "S-00000000000000a1"\t\t# "MF0;leaf-a0:MQM9700/U1" enhanced port 0 lid 11 lmc 0
[1]\t"H-0000000000000011"[1](11) \t\t# "n1 mlx5_0" lid 21 4xNDR
[2]\t"H-0000000000000021"[1](21) \t\t# "n2 mlx5_0" lid 22 4xNDR
[33]\t"S-00000000000000f1"[1]\t\t# "MF0;spine-1:MQM9700/U1" lid 1 4xNDR

switchguid=0xa2(a2)
Switch\t64 "S-00000000000000a2"\t\t# "MF0;leaf-a1:MQM9700/U1" enhanced port 0 lid 12 lmc 0
[1]\t"H-0000000000000012"[1](12) \t\t# "n1 mlx5_1" lid 23 4xNDR
[2]\t"H-0000000000000022"[1](22) \t\t# "n2 mlx5_1" lid 24 4xNDR
[33]\t"S-00000000000000f1"[2]\t\t# "MF0;spine-1:MQM9700/U1" lid 1 4xNDR

switchguid=0xb1(b1)
Switch\t64 "S-00000000000000b1"\t\t# "MF0;leaf-b:MQM9700/U1" enhanced port 0 lid 13 lmc 0
[1]\t"H-0000000000000031"[1](31) \t\t# "n3 mlx5_0" lid 25 4xNDR
[2]\t"H-0000000000000032"[1](32) \t\t# "n3 mlx5_1" lid 26 4xNDR
[33]\t"S-00000000000000f2"[1]\t\t# "MF0;spine-2:MQM9700/U1" lid 2 4xNDR

switchguid=0xf1(f1)
Switch\t64 "S-00000000000000f1"\t\t# "MF0;spine-1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"S-00000000000000a1"[33]\t\t# "MF0;leaf-a0:MQM9700/U1" lid 11 4xNDR

caguid=0x11
Ca\t1 "H-0000000000000011"\t\t# "n1 mlx5_0"
[1](11) \t"S-00000000000000a1"[1]\t\t# lid 21 lmc 0 "MF0;leaf-a0:MQM9700/U1" lid 11 4xNDR
"""


def test_ibnetdiscover_of_a_rail_optimised_fabric() -> None:
    topology = from_ibnetdiscover(IBNET, NODES)
    assert topology.rails == ("mlx5_0", "mlx5_1")
    found = places(topology)
    assert found["n1"] == found["n2"] == ("S-00000000000000a1 S-00000000000000a2", "S-00000000000000f1")
    assert found["n3"] == ("S-00000000000000b1", "S-00000000000000f2")


def test_the_outer_port_numbers_of_a_modular_switch_are_passed_over() -> None:
    """As `ibnetdiscover -g` prints them: rdma-core, infiniband-diags/ibnetdiscover.c, out_switch_port."""
    grouped = IBNET.replace('[33]\t"S-', '[33][ext 7]\t"S-').replace('[1]\t\t# "MF0;', '[1][ext 12]\t\t# "MF0;')
    assert grouped.count("[ext ") == 5
    assert from_ibnetdiscover(grouped, NODES) == from_ibnetdiscover(IBNET, NODES)


def test_ibnetdiscover_that_names_no_adapter_is_refused() -> None:
    with pytest.raises(BadTopology, match='"mlx5_0", not as'):
        from_ibnetdiscover(IBNET.replace("n1 mlx5_0", "mlx5_0"), NODES)
    with pytest.raises(BadTopology, match=r'line 9 .* as "n1", not as'):
        from_ibnetdiscover(IBNET.replace("n1 mlx5_0", "n1"), NODES)
    with pytest.raises(BadTopology, match="no switch with an adapter"):
        from_ibnetdiscover("ibwarn: mad_rpc_open_port failed", NODES)


def _with(line: str) -> str:
    return IBNET.replace('[33]\t"S-00000000000000f1"[1]', line + '\n[33]\t"S-00000000000000f1"[1]', 1)


def test_the_adapter_inside_a_switch_is_no_nodes() -> None:
    sharp = '[41]\t"H-00000000000000a9"[1](a9) \t\t# "Mellanox Technologies Aggregation Node" lid 31 4xNDR'
    assert from_ibnetdiscover(_with(sharp), NODES) == from_ibnetdiscover(IBNET, NODES)


VENDOR = "MT4129 ConnectX7   Mellanox Technologies"


@pytest.mark.parametrize("described", ["skyway01", VENDOR, "storage1 mlx5_0"])
def test_descriptions_of_other_adapters_are_ignored_whatever_they_are(described: str) -> None:
    twice = "\n".join(f'[4{at}]\t"H-00000000000000b{at}"[1](b{at}) \t\t# "{described}" lid 31 4xNDR' for at in range(2))
    assert from_ibnetdiscover(_with(twice), NODES) == from_ibnetdiscover(IBNET, NODES)


def test_an_adapter_that_may_be_of_a_node_of_the_block_that_lacks_one_is_refused() -> None:
    """Its node would be placed on a leaf of its own."""
    with pytest.raises(BadTopology, match=f"n2 lacks an adapter in the topology file, and line 10 .*{VENDOR}"):
        from_ibnetdiscover(IBNET.replace("n2 mlx5_0", VENDOR), NODES)
    assert from_ibnetdiscover(IBNET.replace("n2 mlx5_0", VENDOR), ["n1", "n3"]).nodes == ("n1", "n3")


def test_two_ports_of_an_adapter_are_two_rails_and_two_adapters_of_one_name_are_refused() -> None:
    second = '[3]\t"H-0000000000000011"[2](12) \t\t# "n1 mlx5_0" lid 27 4xNDR'
    assert from_ibnetdiscover(_with(second), NODES).rails == ("mlx5_0", "mlx5_0/2", "mlx5_1")
    twin = '[3]\t"H-0000000000000099"[1](99) \t\t# "n1 mlx5_0" lid 27 4xNDR'
    with pytest.raises(BadTopology, match="second adapter"):
        from_ibnetdiscover(_with(twin), NODES)


def test_two_neighbours_on_one_rail_are_refused() -> None:
    both = lldp("a", "b") + "\nlldp.eth0.chassis.name=bmc-7"
    with pytest.raises(BadTopology, match="two neighbours on eth0"):
        from_lldp({"n1": both, "n2": lldp("a", "b", port=2)}, {"n1": ETH, "n2": ETH})
    second = {"r1": "eth1"}
    assert from_lldp({"n1": both, "n2": lldp("a", "b", port=2)}, {"n1": second, "n2": second}).leaves == ("b",)


def lldp(*switches: str, port: int = 1) -> str:
    return "\n".join(
        f"lldp.eth{rail}.via=LLDP\nlldp.eth{rail}.chassis.name={switch}\nlldp.eth{rail}.port.ifname=swp{port}"
        for rail, switch in enumerate(switches)
    )


def test_lldp() -> None:
    topology = from_lldp(
        {"n1": lldp("a", "b"), "n2": lldp("a", "b", port=2), "n3": lldp("c", "d")}, dict.fromkeys(NODES, ETH)
    )
    assert {name: leaf for name, (leaf, _) in places(topology).items()} == {"n1": "a b", "n2": "a b", "n3": "c d"}
    with pytest.raises(BadTopology, match="n2 sees no switch on eth1"):
        from_lldp({"n1": lldp("a", "b"), "n2": lldp("a", port=2)}, {"n1": ETH, "n2": ETH})


def test_two_switches_of_one_name_are_refused_where_two_nodes_are_on_one_port_of_it() -> None:
    """Both would be one leaf, and the paths between them would be taken for those inside a switch."""
    with pytest.raises(BadTopology, match="n1 and n3 are both on port swp1 of b"):
        from_lldp({"n1": lldp("a", "b"), "n2": lldp("a", "b", port=2), "n3": lldp("c", "b")}, dict.fromkeys(NODES, ETH))


def test_a_switch_is_one_leaf_whatever_chassis_address_its_ports_show() -> None:
    """Cisco Nexus has another one on each port (https://github.com/skydive-project/skydive/issues/2146)."""
    given = {
        f"n{node}": lldp("a", "b", port=node)
        + "".join(f"\nlldp.eth0.chassis.mac=aa:{node}{port}" for port in range(node))
        for node in (1, 2, 3)
    }
    topology = from_lldp(given, dict.fromkeys(NODES, ETH))
    assert (topology.leaves, topology.miscabled) == (("a b",), ())


MANY = ["n1", "n2", "n3", "n4"]
FOUR = {f"r{rail}": f"eth{rail}" for rail in range(4)}


@pytest.mark.parametrize(
    ("own", "found"),
    [
        ("abcd", []),
        ("abxd", [("r2", "x (port swp4)", "c")]),
        ("bacd", [("r0", "b (port swp4)", "a"), ("r1", "a (port swp4)", "b")]),
        ("dcba", [(f"r{rail}", f"{'dcba'[rail]} (port swp4)", "abcd"[rail]) for rail in range(4)]),
        ("wxyz", []),
        ("abyz", []),
    ],
    ids=["as the others", "another switch", "two swapped", "reversed", "another leaf", "half of another leaf"],
)
def test_a_node_that_is_cabled_unlike_the_others_is_named_with_rail_and_switch(
    own: str, found: list[tuple[str, str, str]]
) -> None:
    outputs = {name: lldp(*(own if name == "n4" else "abcd"), port=int(name[1])) for name in MANY}
    topology = from_lldp(outputs, dict.fromkeys(MANY, FOUR))
    assert [(each.rail, each.seen, each.expected) for each in topology.miscabled] == found
    assert {each.node for each in topology.miscabled} <= {"n4"}
    assert from_records(json.loads(json.dumps(dataclasses.asdict(topology)))) == topology


def test_of_two_nodes_that_differ_neither_is_cabled_wrong() -> None:
    outputs = {"n1": lldp("a", "b"), "n2": lldp("b", "a", port=2)}
    assert from_lldp(outputs, dict.fromkeys(outputs, ETH)).miscabled == ()


_HEALTHY = {
    "rail-optimised": ["abcd", "efgh"],
    "one leaf a rack": ["aaaa", "bbbb"],
    "two leaves a rack, by rail": ["aabb", "ccdd"],
    "two leaves a rack, by node": ["aaaa", "bbbb", "cccc", "dddd"],
    "one port of bonds": ["abab", "cdcd"],
    "a rail down": ["abcd", "abc ", "a   ", " bcd", "efgh", "ef h"],
}  # fmt: skip


@pytest.mark.parametrize("leaves", _HEALTHY.values(), ids=_HEALTHY)
@hypothesis.given(data=st.data())
def test_no_part_of_a_healthy_fleet_is_warned_of(leaves: list[str], data: st.DataObject) -> None:
    """A block may hold any nodes of it."""
    counts = [data.draw(st.integers(0, 5)) for _ in leaves]
    groups = [each for each, count in zip(leaves, counts, strict=True) for _ in range(count)]
    rails = [f"r{rail}" for rail in range(4)]
    on = {
        f"n{at}": {rail: Link(switch) for rail, switch in zip(rails, group, strict=True) if switch != " "}
        for at, group in enumerate(groups)
    }
    assert miscabled_rails(on, rails) == ()


def test_rails_that_others_lack_too_are_no_switch_that_they_share() -> None:
    on = {f"n{at}": {"r0": Link("x" if at == 3 else "a")} for at in range(4)}
    assert miscabled_rails(on, ["r0", "r1", "r2"]) == ()


def test_a_rail_on_which_those_around_differ_expects_no_switch() -> None:
    on = {
        f"n{at}": {f"r{rail}": Link(switch) for rail, switch in enumerate(group)}
        for at, group in enumerate([*["abcx"] * 3, *["abcy"] * 3, "abcz", "abwx"])
    }
    assert [(each.node, each.rail) for each in miscabled_rails(on, ["r0", "r1", "r2", "r3"])] == [("n7", "r2")]


def test_an_adapter_on_another_switch_is_named_with_its_port() -> None:
    lines = []
    for rail in range(3):
        lines += [f'Switch\t64 "S-{rail}a"\t# "MF0;x" lid 1']
        nodes = [at for at in range(1, 5) if (at, rail) != (4, 0)] + [4] * (rail == 1)
        for port, node in enumerate(nodes, 1):
            adapter = 0 if (rail, port) == (1, 5) else rail
            lines.append(f'[{port}]\t"H-{node}{rail}{port}"[1]({node}{rail}) \t# "n{node} mlx5_{adapter}" lid 2 4xNDR')
    devices = {name: {f"r{rail}": f"mlx5_{rail}" for rail in range(3)} for name in MANY}
    found = from_ibnetdiscover("\n".join(lines), MANY, devices).miscabled
    assert [dataclasses.astuple(each) for each in found] == [("n4", "r0", "S-1a (port 5)", "S-0a")]


def test_a_file_that_lacks_an_enrolled_node_is_refused() -> None:
    with pytest.raises(BadTopology, match="gpu099 is enrolled"):
        from_slurm(SLURM, RAILS, ["gpu001", "gpu099"])
    with pytest.raises(BadTopology, match="n9 is enrolled"):
        from_ibnetdiscover(IBNET, ["n1", "n9"])


def test_names_twice_and_places_that_do_not_exist_are_refused() -> None:
    with pytest.raises(BadTopology, match="node a twice"):
        unknown(["a", "a"], RAILS)
    with pytest.raises(BadTopology, match="no rail"):
        unknown(["a"], [])
    with pytest.raises(BadTopology, match="the lists differ"):
        Topology(("a",), ("r",), (1,), ("l",), (0,), ("p",))
