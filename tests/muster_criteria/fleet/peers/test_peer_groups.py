"""Peer groups: firmware parts them, and a node whose group is small is judged by all of its SKU instead."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from muster_criteria.fleet.budget import OWN_PAST
from muster_criteria.fleet.budget import PEERS_MIN as PEERS
from muster_criteria.fleet.peers.bands import Band, bands_of, sku_wide
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.peers.snapshot import build_snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.readings import DAY_S, group_of, readings_of, together
from muster_criteria.labels import labels_of, labels_text
from muster_criteria.model import Action, Severity, Verdict
from muster_criteria.rows import rows_of
from muster_criteria.sku_files.model import Sku
from tests.muster_criteria.conftest import DAY
from tests.muster_criteria.nodes import MakeCase


def test_a_node_with_firmware_of_its_own_is_judged_by_its_sku(case: MakeCase, references: References) -> None:
    """No measurement may become unjudged, and no fault go unseen, because no other node has that firmware."""
    for share in (1.0, 0.955):
        usual, alone = case("performance"), case("performance")
        for each in (usual, alone):
            for row in each.rows("memory_bandwidth", "gpu3"):
                row["value"] *= share
        alone.raw["environment"]["vbios"] = "97"
        judged, expected = (each.judge(references=references) for each in (alone, usual))

        assert judged.verdict is expected.verdict
        assert judged.coverage == expected.coverage
        assert judged.coverage.judged == judged.coverage.required
        assert (judged.verdict is not Verdict.PASS) == (share < 1.0)


@pytest.mark.parametrize(
    ("environment", "zone", "verdict"),
    [
        ({"driver": "999"}, "", Verdict.WARN),
        ({"torch": "9.9"}, "", Verdict.WARN),
        ({"nccl": "9.9"}, "", Verdict.WARN),
        ({}, "row-9", Verdict.FAIL),
    ],
)
@pytest.mark.parametrize("metric", ["memory_bandwidth", "gemm_rate_per_clock"])
@pytest.mark.parametrize("twice", [False, True])
def test_peers_of_another_stack_do_not_fail_a_node(
    case: MakeCase, references: References, h100: Sku, metric: str, environment: dict[str, str], zone: str,
    verdict: Verdict, twice: bool,
) -> None:  # fmt: skip
    """The first nodes on a new driver may all be slower: that is no fault of theirs."""
    slow = case("performance")
    slow.raw["environment"].update(environment)
    for row in slow.rows(metric):
        row["value"] *= 0.95
    result = slow.result()
    known = {"node": "node-1", "sku": h100.name, "environment": result.environment, "zone": zone}
    first = readings_of(rows_of(result, h100), at=0.0, run="first", **known) if twice else None
    judgement = slow.judge(references=dataclasses.replace(references, zone=zone, repeats=first))

    assert judgement.verdict is verdict
    peers = [each for each in judgement.findings if each.rule in ("peers", "node_peers")]
    assert {each.action for each in peers if each.severity is Severity.WARNING} <= {Action.RETEST}
    assert all("another stack" in each.expected for each in peers) == (verdict is Verdict.WARN)
    assert bool({each.rule for each in judgement.findings} & {*OWN_PAST}) == (verdict is Verdict.FAIL)


@pytest.mark.parametrize("alike", [PEERS - 1, PEERS])
def test_firmware_makes_a_group_from_eight_peers_on(case: MakeCase, h100: Sku, alike: int) -> None:
    rows = [row for row in rows_of(case("performance").result(), h100) if row.metric == "memory_bandwidth"]
    environments = [{"driver": "570", "vbios": "97" if node < alike else "96"} for node in range(2 * PEERS + 1)]
    readings = together(
        readings_of(rows, node=f"n{node}", at=(DAY - 1) * DAY_S, run="r", sku=h100.name, environment=environment)
        for node, environment in enumerate(environments)
    )
    made_at = datetime.datetime.fromtimestamp(DAY * DAY_S, datetime.UTC)
    groups = set(build_snapshot(readings, made_at, h100.programme.compare).cells["group"])

    assert {sku_wide(h100.name), group_of(h100.name, environments[-1])} <= groups
    assert (group_of(h100.name, environments[0]) in groups) == (alike == PEERS)


@pytest.mark.parametrize(("nodes", "compared"), [(1, False), (2, False), (3, True)])
def test_a_node_is_not_its_own_eight_peers(case: MakeCase, h100: Sku, nodes: int, compared: bool) -> None:
    """A node whose GPUs are all slow alike would else find them usual, or half of what is usual."""
    rows = [row for row in rows_of(case("performance").result(), h100) if row.metric == "memory_bandwidth"]
    known = {"run": "r", "sku": h100.name, "environment": {}, "zone": ""}
    readings = [readings_of(rows, node=f"n{number}", at=DAY * DAY_S, **known) for number in range(nodes)]
    made_at = datetime.datetime.fromtimestamp((DAY + 1) * DAY_S, datetime.UTC)
    cells = build_snapshot(together(readings), made_at, h100.programme.compare).cells

    assert (len(cells) > 0) is compared


def test_the_peers_of_a_series_have_a_band(h100: Sku) -> None:
    rows = [Observed("gpu0", float(value)) for value in range(101)]
    known = {"at": DAY * DAY_S, "run": "r", "sku": h100.name, "environment": {}}
    readings = together(readings_of([row], node=f"n{number}", **known) for number, row in enumerate(rows))
    made_at = datetime.datetime.fromtimestamp((DAY + 1) * DAY_S, datetime.UTC)
    compared = [Comparison(metric="gemm_rate", device="gpu", unit="TFLOPS", worse="lower")]
    raw = build_snapshot(readings, made_at, compared).to_bytes()

    key = ("gpu", "gemm_rate", (("dtype", "bf16"),), "TFLOPS")
    assert bands_of(raw, h100.name) == {key: Band(5.0, 50.0, 95.0, 101)}
    assert bands_of(raw, "another") == {}
    with pytest.raises(ValueError):
        bands_of(raw[:-20], h100.name)


class Observed:
    def __init__(self, device: str, value: float | None) -> None:
        self.device, self.value, self.metric, self.unit = device, value, "gemm_rate", "TFLOPS"
        self.labels = (("dtype", "bf16"),)


def test_readings_of_a_result_know_slot_kind_and_group() -> None:
    rows = [Observed("gpu3", 700.0), Observed("node", 1.0), Observed("gpu4", None), Observed("gpu5", float("nan"))]
    versions = {"driver": "570", "vbios": "96"}
    found = readings_of(rows, node="n", at=DAY * DAY_S, run="r", sku="h100", environment=versions, zone="z")

    assert found[["device", "kind", "slot"]].to_numpy().tolist() == [["gpu3", "gpu", 3], ["node", "node", -1]]
    assert set(found["group"]) == {"h100|vbios=96|driver=570|cuda=|torch=|nccl=|zone=z"}
    assert set(found["at"]) == {DAY}
    assert labels_of(labels_text({"b": "2", "a": "1"})) == (("a", "1"), ("b", "2"))
