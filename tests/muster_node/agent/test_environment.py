"""The firmware of a node's GPUs travels from the node to the name of its peer group."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from muster_criteria.fleet.series.readings import group_of
from muster_node.agent import facts
from muster_node.hardware.seam import Fact
from muster_simulator import create_machine, environment, open_simulated
from tests.muster_node.agent.harness import Node, plan

OLD, NEW = "96.00.74.00.01", "96.00.A5.00.01"


def test_a_simulated_nodes_peer_group_names_its_firmware(node: Node, tmp_path: Path) -> None:
    create_machine(tmp_path / "machine", "h100-sxm-8", 1, ())
    ended = node.run(plan(), command=[sys.executable, "-m", "muster_node"], env=environment(tmp_path / "machine"))

    assert ended.result.simulated, ended.err
    assert ended.result.environment["vbios"] == NEW
    named = group_of("h100-sxm-8", ended.result.environment, zone="z").split("|")
    assert (named[0], named[1], named[-1]) == ("h100-sxm-8", f"vbios={NEW}", "zone=z")


@pytest.mark.parametrize(
    ("versions", "named"),
    [
        ([NEW] * 8, NEW),
        ([NEW] * 7 + [OLD], f"{OLD}+{NEW}"),
        ([OLD] + [NEW] * 7, f"{OLD}+{NEW}"),
        ([NEW] * 7 + [None], NEW),
        ([None] * 8, None),
    ],
)
def test_gpus_of_one_node_that_differ_are_all_named_once(
    versions: Sequence[str | None], named: str | None, tmp_path: Path
) -> None:
    """The order does not matter; a GPU without a version (it is lost) forms no group of its own."""
    create_machine(tmp_path / "machine", "h100-sxm-8", 1, ())
    vbios = {f"gpu{slot}": text for slot, text in enumerate(versions)}
    inventory: list[Fact] = [
        dataclasses.replace(fact, text=vbios[fact.device]) if fact.name == "vbios" else fact
        for fact in open_simulated(tmp_path / "machine").inventory()
    ]

    assert facts.environment(inventory).get("vbios") == named


def test_no_version_of_many_devices_is_cut_off() -> None:
    versions = [f"28.{number}.{'0' * 30}" for number in range(10, 30)]
    inventory = [Fact("ib_firmware", f"nic:mlx5_{at}", "text", text=text) for at, text in enumerate(versions)]
    assert facts.environment(inventory)["nic"].split("+") == versions
