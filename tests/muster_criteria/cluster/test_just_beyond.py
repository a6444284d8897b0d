"""A finding on a value just beyond its limit does not read as if the limit held: the two are different texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest

from muster_criteria.cluster.fabric.judging.verdict import judge_fabric
from muster_criteria.cluster.model import TRAINING, BlockFindings, Earlier
from muster_criteria.cluster.ports import judge_ports
from muster_criteria.model import Finding
from tests.muster_criteria.cluster.fabric.judging.test_floors import FLOOR, by_rdma
from tests.muster_criteria.cluster.fabric.worlds import Small, flat
from tests.muster_criteria.cluster.test_ports import LIMITS
from tests.muster_criteria.cluster.test_ports import row as port_row
from tests.muster_criteria.cluster.test_training import real
from tests.muster_criteria.cluster_results import Sent, block, row
from tests.muster_criteria.nodes import MakeCase

NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
BIT = 1e-6


def apart(findings: Iterable[Finding]) -> list[bool]:
    """Of each finding, whether the number that it expects is none of those that it observed."""
    return [numbers(each.expected)[0] not in numbers(each.observed) for each in findings]


def numbers(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in NUMBER.findall(text)]


def storage(sent: Sent, metric: str, value: float, **labels: str) -> None:
    unit = "s" if metric == "checkpoint_save" else "GB/s"
    sent.storage.append({**row(TRAINING, metric, value=value, labels=labels), "unit": unit})


def scaling(sent: dict[str, Sent]) -> None:
    for each in sent.values():
        each.training["scaling"] = 0.95 - BIT


def irregular(sent: dict[str, Sent]) -> None:
    for each in sent.values():
        each.training["step_p95_to_p50"] = 1.05 + BIT


def alone(sent: dict[str, Sent]) -> None:
    sent["n3"].alone *= 0.95 - BIT


def path(sent: dict[str, Sent]) -> None:
    sent["n3"].path_rate *= 0.7 - BIT


def straggler(sent: dict[str, Sent]) -> None:
    sent["n3"].compute["gpu0"] = sent["n3"].compute["gpu1"] = 1.04 + BIT


def late(sent: dict[str, Sent]) -> None:
    sent["n3"].lags = dict.fromkeys(sent["n3"].lags, 0.01 + BIT / 1e3)


def share(sent: dict[str, Sent]) -> None:
    for name, each in sent.items():
        storage(each, "shared_rate", 2.0 if name != "n3" else 1.0 - BIT, direction="write", nodes="all")


def saves(sent: dict[str, Sent]) -> None:
    for each in sent.values():
        storage(each, "checkpoint_save", 1.5 + BIT, stat="p95")


@pytest.mark.parametrize("alter", [scaling, irregular, alone, path, straggler, late, share, saves])
def test_a_training(alter: Callable[[dict[str, Sent]], None]) -> None:
    sent = block(4)
    alter(sent)
    earlier = Earlier(2000.0 / 2, 10, save_s=1.0, saves=10)
    found = [each for member in real(sent, earlier).members.values() for each in member.findings]
    assert found
    assert all(apart(found))


def test_a_block_slower_than_earlier_ones() -> None:
    found = real(block(4), Earlier(2000.0 / 2 / (0.9 - BIT), 10)).members["n0"].findings
    assert apart(found) == [True]


def test_a_rail() -> None:
    rounds, found = by_rdma(Small(flat(2, rails=1), {}), rate=0.9 - BIT), BlockFindings()
    judge_fabric(rounds, found, dict.fromkeys(rounds.topology.nodes, (FLOOR,)))
    assert apart(each for own in found.findings.values() for each in own) == [True, True]


def test_a_port() -> None:
    found = BlockFindings()
    errors = port_row("port_watched", 15.0978), port_row("port_errors", 40.0, counter="symbol_error")
    judge_ports({"n1": errors}, {"n1": LIMITS}, found)
    assert apart(found.findings["n1"]) == [True]


@pytest.mark.parametrize(
    ("stage", "metric", "labels", "limit"),
    [
        ("performance", "pcie_bandwidth", {"direction": "h2d"}, "siblings_at_least"),
        ("thermal", "thermal_resistance", {}, "siblings_at_most"),
    ],
)
def test_a_device_against_its_siblings(
    case: MakeCase, stage: str, metric: str, labels: dict[str, str], limit: str
) -> None:
    altered = case(stage)
    (at,) = (each for each in altered.sku.all_limits if each.metric == metric and each.key == limit)
    rows = [each for each in altered.raw["measurements"] if each["metric"] == metric and each["labels"] == labels]
    beyond = 1.0 + (BIT if limit == "siblings_at_most" else -BIT)
    altered.set(metric, "gpu2", value=(at.number or 0.0) * rows[0]["value"] * beyond, **labels)
    (finding,) = (each for each in altered.judge().findings if each.rule == limit)
    observed, expected = (numbers(text)[0] for text in (finding.observed, finding.expected))
    assert observed != expected
    assert (observed > expected) == (limit == "siblings_at_most")
