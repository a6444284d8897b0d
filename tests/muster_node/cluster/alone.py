"""A node whose block is itself: for what one node's ranks do."""

from __future__ import annotations

import dataclasses
from typing import Any

from muster_node.cluster.rendezvous.block import PARAMS, Block, block_of
from muster_node.cluster.rendezvous.member import PeerGroup
from tests.muster_node.cluster.blocks import rendezvous


class Alone(PeerGroup):
    """Every barrier is passed at once."""

    def __init__(self, block: Block) -> None:
        super().__init__(block, lambda text: None)
        self.names = (block.name,)
        self.states: set[str] = set()

    def gather(self, payload: Any = None) -> dict[str, Any]:
        return {self.block.name: payload}

    def arrive(self, payload: Any = None) -> None:
        self._payload = payload

    def answer(self, wait_s: float | None = None) -> dict[str, Any] | None:
        return {self.block.name: self._payload}

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "state" and hasattr(self, "states"):
            self.states.add(value)


def alone_block(progress_s: float = 60.0) -> Block:
    """The block of the first of two nodes; the other is never asked."""
    given = {**{name: each.default for name, each in PARAMS.items()}, **rendezvous(["n1", "n2"]), "rank": 0}
    block = block_of("cluster_training", given, 1)
    return dataclasses.replace(block, stall_timeout_s=60.0, progress_timeout_s=progress_s)
