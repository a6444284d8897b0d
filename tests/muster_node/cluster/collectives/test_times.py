"""Times of collectives: summarised by node, so that what all nodes tell each other of them fits in one message."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster_node.cluster.collectives.exchange import OPS
from muster_node.cluster.rendezvous.rank import RankGroup
from muster_node.cluster.rendezvous.ranks import Ranks
from muster_node.cluster.rendezvous.wire import LINE_MAX
from muster_node.hardware import open_hardware
from muster_node.hardware.seam import Device
from muster_node.probe import Context
from muster_node.probes import cluster_collectives
from muster_node.probes.cluster_collectives import _Rank
from tests.muster_criteria.cluster_results import PROGRAMME
from tests.muster_node.cluster.alone import Alone, alone_block

NODES_MAX, PER_NODE = 256, 8
"""As DAG cluster_qualification takes."""


class Gathering:
    """A rank of the largest block, in which all ranks say the same. ``bytes_max``: the longest payload to all nodes."""

    def __init__(self, local: int) -> None:
        self.rank = self.local = local
        self.world, self.per_node = NODES_MAX * PER_NODE, PER_NODE
        self.device = SimpleNamespace(kind="cpu", id="cpu0")
        self.bytes_max = 0
        self.emitted: dict[str, Any] = {}

    def gather(self, payload: Any = None, here: bool = False) -> list[Any]:
        if here:
            return [payload] * self.per_node
        self.bytes_max = max(self.bytes_max, len(json.dumps(payload)))
        return [payload] * self.world

    def emit(self, metric: str, device: str, **fields: Any) -> None:
        self.emitted[metric] = fields

    def begin(self, phase: str) -> None: ...


@contextlib.contextmanager
def no_fabric(*given: Any) -> Iterator[Any]:
    yield SimpleNamespace(backend="gloo")


def reported(local: int, monkeypatch: pytest.MonkeyPatch) -> Gathering:
    """What one rank of the largest block tells all nodes after the collectives of the longest level."""
    repeats, mib = (PROGRAMME.probes["cluster_collectives"].params[name]["long"] for name in ("repeats", "mib"))
    seconds = [round(0.00123456789 + number * 1.1e-7, 9) for number in range(repeats)]

    def operation(self: Any, torch: Any, fabric: Any, group: Any, op: str) -> None:
        self._times.update({f"{op}/{size}": {"waits": seconds, "seconds": seconds} for size in mib})

    torch = SimpleNamespace(device=str, __version__="2")
    monkeypatch.setattr(cluster_collectives, "require_torch", lambda: torch)
    monkeypatch.setattr(cluster_collectives, "open_fabric", no_fabric)
    monkeypatch.setattr(_Rank, "_operation", operation)
    group = Gathering(local)
    _Rank({"ops": OPS, "soak_minutes": 0}, 1)(cast("RankGroup", group))
    return group


def test_the_times_of_the_largest_block_are_no_longer_than_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = (reported(local, monkeypatch) for local in (0, 1))
    assert NODES_MAX * (first.bytes_max + (PER_NODE - 1) * other.bytes_max) < LINE_MAX / 10
    assert first.emitted["arrival_lag"]["value"] == 0.0
    assert first.emitted["collective_time"]["value"] == pytest.approx(0.00123726, rel=1e-3)
    assert set(other.emitted) == set()


def test_ranks_of_one_node_meet_without_the_others() -> None:
    def work(group: RankGroup) -> None:
        mine = group.gather({"rank": group.rank}, here=True)
        both = group.gather([each["rank"] for each in mine])
        group.emit("found", "node", text=both)

    class Counted(Alone):
        arrivals = 0

        def arrive(self, payload: Any = None) -> None:
            self.arrivals += 1
            super().arrive(payload)

    emitted: list[Any] = []
    context = Context(open_hardware(), {}, 1, Path(os.devnull), lambda *given, **fields: emitted.append(fields), print)
    alone = Counted(alone_block())
    Ranks(alone, [Device(f"core{number}", "core", number) for number in range(2)], context).run(work)
    assert [fields["text"] for fields in emitted] == [[[0, 1], [0, 1]]] * 2
    assert alone.arrivals == 1
