"""Collectives between simulated GPUs: a ring of copies whose parts really move, and whose time the links decide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from muster_node.cluster.collectives.exchange import OPS, busbw_factor
from muster_node.hardware.seam import Transfer
from muster_node.probe import Context, Skip, resolve_params
from muster_node.probes.collectives import Collectives
from muster_simulator import create_machine, open_simulated
from muster_simulator.compute import SimulatedCompute
from tests.support.injector import OneDevice

pytestmark = pytest.mark.needs_torch

SMALL, LARGE = 1024, 8 * 1024**3
NVLINK_GB_S = 18 * 26.562 * 0.8
Values = dict[tuple[str, str, str], Any]


def run(tmp_path: Path, *faults: dict[str, Any], **params: Any) -> Values:
    """(metric, operation, bytes or "") → value."""
    create_machine(tmp_path / "node", seed=4, faults=faults)
    values: Values = {}

    def emit(metric: str, device: str, **fields: Any) -> None:
        assert device == "node"
        labels = fields["labels"]
        assert labels["nvls"] == "off"
        values[metric, labels["op"], labels.get("bytes", "")] = fields.get("value")

    given = resolve_params(Collectives, {"sizes": [SMALL, LARGE], "repeats": 2, **params})
    hardware = open_simulated(tmp_path / "node")
    Collectives().run(Context(hardware, given, 11, tmp_path, emit, lambda sentence: None))
    return values


def wrong(values: Values) -> dict[str, int]:
    return {op: count for (metric, op, _), count in values.items() if metric == "collective_mismatches" and count}


def test_a_healthy_node_exchanges_everything_as_fast_as_its_links(tmp_path: Path) -> None:
    values = run(tmp_path)
    assert {op for metric, op, _ in values if metric == "collective_mismatches"} == set(OPS)
    assert not wrong(values)
    for op in OPS:
        assert values["collective_busbw", op, str(LARGE)] == pytest.approx(NVLINK_GB_S, rel=0.02)
        assert values["collective_busbw", op, str(SMALL)] < 1.0, "what is small waits for its copies to begin"


def test_the_slowest_link_paces_all(tmp_path: Path) -> None:
    values = run(tmp_path, {"kind": "nvlink_down", "gpu": 5, "links": 9}, sizes=[LARGE])
    for op in OPS:
        assert values["collective_busbw", op, str(LARGE)] == pytest.approx(NVLINK_GB_S / 2, rel=0.02)
    assert not wrong(values)


def test_memory_that_loses_what_it_was_sent_is_found(tmp_path: Path) -> None:
    assert wrong(run(tmp_path, {"kind": "stuck_bit", "gpu": 2}, sizes=[LARGE]))


@pytest.mark.parametrize("op", OPS)
def test_one_element_changed_on_the_way_is_found_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    import torch

    real, copies = SimulatedCompute.transfer, []

    def flips(self: SimulatedCompute, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        real(self, transfers, nominal_bytes=nominal_bytes)
        copies.append(self.device.id)
        if len(copies) == 3:
            transfers[0].target.view(torch.int32)[5] ^= 1 << 22  # a bit that no sum rounds away

    monkeypatch.setattr(SimulatedCompute, "transfer", flips)
    found = wrong(run(tmp_path, ops=[op], sizes=[LARGE], repeats=1))
    # What is passed on is wrong for all who get it later: seven of eight where it is summed first.
    assert 1 <= found[op] <= 8


def test_the_time_is_that_of_as_many_bytes_as_bus_bandwidth_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each GPU receives what nccl-tests' formulas say that each link must carry."""
    real, received = SimulatedCompute.transfer, []

    def counted(self: SimulatedCompute, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        real(self, transfers, nominal_bytes=nominal_bytes)
        received.append(nominal_bytes if self.device.id == "gpu0" else 0)

    monkeypatch.setattr(SimulatedCompute, "transfer", counted)
    for op in OPS:
        received.clear()
        run(tmp_path / op, ops=[op], sizes=[LARGE], repeats=1)
        assert sum(received) == pytest.approx(3 * LARGE * busbw_factor(op, 8)), "two of them to warm up"


def test_a_size_that_does_not_fit_has_no_value_and_one_beyond_all_memory_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimulatedCompute, "free_memory", lambda self: LARGE)
    values = run(tmp_path, ops=["all_gather"], sizes=[SMALL, LARGE, 2**50])
    rates = {size: value for (metric, _, size), value in values.items() if metric == "collective_busbw"}
    assert list(rates) == [str(SMALL), str(LARGE)]
    assert rates[str(LARGE)] is None


def test_one_gpu_has_no_peer_to_exchange_with(tmp_path: Path) -> None:
    create_machine(tmp_path / "node", seed=4)
    alone = OneDevice(open_simulated(tmp_path / "node"))
    context = Context(alone, resolve_params(Collectives, {}), 1, tmp_path, lambda *_, **__: None, lambda _: None)
    with pytest.raises(Skip):
        Collectives().run(context)
