"""The sweep: today's readings of a whole fleet against frozen references, in one vectorised pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pandas as pd

from muster_criteria.fleet.budget import STANDARD, Budget
from muster_criteria.fleet.comparisons import Comparison
from muster_criteria.fleet.history import History
from muster_criteria.fleet.snapshot import Snapshot

FINDINGS = (
    "node", "device", "metric", "labels", "unit", "rule", "breach", "value", "expected", "share", "threshold",
    "repeats",
)  # fmt: skip
"""``rule``: siblings, peers, drift, cusum, node_peers or node_drift. ``breach``: "fail" convicts, "retest" asks to
measure again, "warn" only tells. ``expected``: what the reference says, in unit. ``share``: distance from it, as a
share, adverse positive. ``threshold``: the share beyond which it fails (infinite: nothing convicts here)."""

VERDICTS = ("verdict", "held", "reason")
"""Per node (index): FAIL, RETEST, WARN or PASS ("NONE": nothing could be judged); ``held``: why conviction waits."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """What a sweep found: ``findings`` (columns FINDINGS), ``verdicts`` (indexed by node), and common causes."""

    findings: pd.DataFrame
    verdicts: pd.DataFrame
    causes: pd.DataFrame
    snapshot: str


def sweep(
    today: pd.DataFrame,
    snapshot: Snapshot,
    history: History | None,
    comparisons: Sequence[Comparison],
    budget: Budget = STANDARD,
    *,
    groupings: Mapping[str, Mapping[str, str]] | None = None,
) -> Sweep:
    """Judge today's readings of any number of nodes. Never raises on what was measured.

    Two or more runs of one visit in ``today`` are repeats: one reading beyond the single threshold convicts, and so do
    two beyond the (lower) threshold of two. ``groupings``: {"rack": {node: rack}, "image": {node: image}}, by which
    findings alike at once are looked for as a common cause.
    """
    raise NotImplementedError
