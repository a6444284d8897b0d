"""Common causes within a node: most of its devices fail alike, so software is the first suspect.

The node still fails, but none of its devices is suspected: one wrong driver is no reason to return eight GPUs. Common
causes among nodes are those of ``context.alike``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from muster_criteria.fleet.budget import NODE_RULES
from muster_criteria.model import Action, FaultClass

CAUSES = ("node", "metric", "devices", "of", "fault", "action", "sentence")
"""``devices`` of the node failed alike in ``metric``, ``of`` so many of that kind."""

DEVICE_SHARE = 0.75
"""From this share of a node's devices on, it is the node: two to four bad siblings of eight still fail."""
DEVICES_MIN = 4


def is_common(alike: int, total: int) -> bool:
    """Whether ``alike`` failing devices, of the ``total`` of their kind in the node, have a common cause."""
    return alike >= DEVICES_MIN and alike >= DEVICE_SHARE * total


def common_causes(findings: pd.DataFrame, present: pd.DataFrame) -> pd.DataFrame:
    """Common causes (columns ``CAUSES``) among failing findings.

    ``findings``: columns node, device, kind, metric, breach, rule. ``present``: columns node, kind and ``devices``, how
    many of the kind the node has.
    """
    failing = findings.loc[findings["breach"] == "fail", ["node", "device", "kind", "metric", "rule"]].astype(str)
    return pd.DataFrame(_of_nodes(failing, present), columns=list(CAUSES))


def cause_of_each(findings: pd.DataFrame, causes: pd.DataFrame) -> pd.Series:
    """Returns for each finding its common cause's sentence; "" where it has none."""
    sentences = np.full(len(findings), "", dtype=object)
    node, metric = findings["node"].astype(str), findings["metric"].astype(str)
    for name, about, sentence in zip(causes["node"], causes["metric"], causes["sentence"], strict=True):
        alike = ((node == name) & (metric == about)).to_numpy() & (sentences == "")
        sentences[alike] = sentence
    return pd.Series(sentences, index=findings.index, dtype=object)


def _of_nodes(failing: pd.DataFrame, present: pd.DataFrame) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    devices = {(str(n), str(k)): int(c) for n, k, c in present[["node", "kind", "devices"]].itertuples(index=False)}
    own = failing[~failing["rule"].isin(NODE_RULES)]
    for node, kind, metric, of in _counted(own, ["node", "kind", "metric"], "device"):
        total = devices.get((node, kind), 0)
        if is_common(of, total):
            sentence = f"{of} of {total} {kind}s of {node} fail alike in {metric}"
            found.append(_cause(node, metric, of, total, sentence))
    together = failing.loc[failing["rule"].isin(NODE_RULES), ["node", "metric"]]
    for node, metric in sorted(set(together.itertuples(index=False, name=None))):
        found.append(_cause(node, metric, 1, 1, f"all devices of {node} together are off in {metric}"))
    return found


def _counted(failing: pd.DataFrame, by: list[str], distinct: str) -> list[tuple[Any, ...]]:
    """Each combination of ``by`` with how many ``distinct`` there are of it, in order."""
    counts = failing.groupby(by, sort=True)[distinct].nunique().reset_index()
    return list(counts.itertuples(index=False, name=None))


def _cause(node: str, metric: str, devices: int, of: int, sentence: str) -> tuple[object, ...]:
    fault, action = FaultClass.SOFTWARE, Action.FIX_SOFTWARE
    full = f"{sentence}: first of all a {fault} problem; replace no device until that is ruled out"
    return (node, metric, devices, of, fault.value, action.value, full)
