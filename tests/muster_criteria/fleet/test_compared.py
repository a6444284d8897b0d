"""A node against its peers, by figures that the shipped programme compares: its host, its disk, exchanges, power."""

from __future__ import annotations

import dataclasses
import datetime
import random
from collections.abc import Sequence

import pytest

from muster_criteria.devices import kind_of
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.peers.snapshot import build_snapshot
from muster_criteria.fleet.series.readings import readings_of, together
from muster_criteria.fleet.single import derived
from muster_criteria.model import FaultClass
from muster_criteria.rows import Row, rows_of
from muster_criteria.sku_files.model import Sku
from tests.muster_criteria.nodes import Case, MakeCase

PEERS = 60
SPREAD = 0.02


def peers_of(rows: Sequence[Row], altered: Case) -> References:
    """Peers whose readings are these, but for their spread."""
    dice, sku = random.Random(5), altered.sku
    readings = together(
        readings_of(
            [dataclasses.replace(row, value=(row.value or 0.0) * dice.gauss(1.0, SPREAD)) for row in rows],
            at=0.0, run="", node=f"peer-{number}", sku=sku.name, environment=altered.result().environment,
        )
        for number in range(PEERS)
    )  # fmt: skip
    return References(build_snapshot(readings, datetime.datetime.now(datetime.UTC), sku.programme.compare), None)


@pytest.mark.parametrize("share", [0.3, 0.97])
@pytest.mark.parametrize(
    ("stage", "metric", "device", "fault"),
    [
        ("burn_in", "host_burn_rate", "node", FaultClass.CPU),
        ("performance", "memory_bandwidth", "memory", FaultClass.DIMM),
        ("performance", "disk_read_rate", "disk:scratch", FaultClass.DISK),
        ("performance", "disk_write_rate", "disk:scratch", FaultClass.DISK),
        ("performance", "pcie_bandwidth_together", "gpu3", FaultClass.PCIE),
        ("performance", "collective_busbw", "node", FaultClass.NVLINK),
    ],
)
def test_what_has_no_limit_is_compared_with_peers(
    case: MakeCase, h100: Sku, stage: str, metric: str, device: str, fault: FaultClass, share: float
) -> None:
    altered = case(stage, level="standard")
    units = {(each.metric, each.device): each.unit for each in h100.programme.compare}
    for row in altered.rows(metric, device):
        row["unit"] = units[metric, kind_of(device)]
    references = peers_of(
        [row for row in rows_of(altered.result(), h100) if (row.metric, row.device) == (metric, device)], altered
    )
    for row in altered.rows(metric, device):
        row["value"] *= share
    findings = altered.judge(references=references).findings
    assert {each.fault_class for each in findings} == ({fault} if share < 0.5 else set())


@pytest.mark.parametrize(("limit", "found"), [(700.0, {FaultClass.PSU}), (600.0, set())])
def test_a_node_whose_power_limit_was_lowered_lacks_no_power(
    case: MakeCase, h100: Sku, limit: float, found: set[FaultClass]
) -> None:
    altered = case("thermal")
    rows = derived(rows_of(altered.result(), h100), h100.programme.derive)
    references = peers_of([row for row in rows if row.metric == "power_share"], altered)
    altered.set("power_mean", value=590.0).set("power_limit", value=limit)
    by_fleet = [each for each in altered.judge(references=references).findings if each.rule == "peers"]
    assert {each.fault_class for each in by_fleet} == found
