"""A node's references in addition to its SKU: frozen, versioned, supplied by the caller."""

from __future__ import annotations

import dataclasses

import pandas as pd

from muster_criteria.fleet.peers.history import History
from muster_criteria.fleet.peers.snapshot import Snapshot


@dataclasses.dataclass(frozen=True, eq=False)
class References:
    """The peers' snapshot, the nodes' own history, and the node's place.

    ``zone``: the node's cooling zone (part of its peer group). ``history`` None: no earlier visits are known.
    ``repeats``: readings (see ``readings``) of earlier runs of this same visit, where a repeat was requested: two
    readings fail a device sooner than one. ``node``: its name in ``history`` and ``repeats``; empty: as in the result.
    """

    snapshot: Snapshot
    history: History | None = None
    repeats: pd.DataFrame | None = None
    node: str = ""
    zone: str = ""
