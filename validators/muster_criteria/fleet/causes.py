"""Common causes: several devices that fail alike at once point at software, the golden reference or the facility first.

The node still fails, but none of its devices is suspected: one wrong driver is no reason to return eight GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from muster_criteria.fleet.budget import NODE_RULES
from muster_criteria.model import Action, FaultClass

CAUSES = ("by", "name", "metric", "devices", "of", "fault", "action", "sentence")
"""``by``: "node" or the grouping's name ("rack", "image"); ``name``: which one; ``devices`` failed alike ``of`` so many
(nodes, for a grouping)."""

DEVICE_SHARE = 0.75
"""From this share of a node's devices on, it is the node: two to four bad siblings of eight still fail."""
DEVICES_MIN = 4
GROUP_SHARE = 0.5
"""From this share of a group's nodes on, it is the group."""
NODES_MIN = 3

BLAME = {"rack": FaultClass.FACILITY, "zone": FaultClass.FACILITY}
REMEDY = {FaultClass.FACILITY: Action.ASK_FACILITY, FaultClass.SOFTWARE: Action.FIX_SOFTWARE}


def common_causes(
    findings: pd.DataFrame,
    present: pd.DataFrame,
    groupings: Mapping[str, Mapping[str, str]] | None = None,
) -> pd.DataFrame:
    """Common causes (columns ``CAUSES``) among failing findings.

    ``findings``: columns node, device, kind, metric, breach, rule. ``present``: columns node, kind and ``devices``, how
    many of the kind the node has. ``groupings``: {"rack": {node: rack}, "image": {node: image}}.
    """
    failing = findings.loc[findings["breach"] == "fail", ["node", "device", "kind", "metric", "rule"]].astype(str)
    found = [*_of_nodes(failing, present)]
    for by, group_of in (groupings or {}).items():
        found += _of_groups(failing, present, by, group_of)
    return pd.DataFrame(found, columns=list(CAUSES))


def cause_of_each(
    findings: pd.DataFrame, causes: pd.DataFrame, groupings: Mapping[str, Mapping[str, str]] | None
) -> pd.Series:
    """Returns for each finding its common cause's sentence; "" where it has none."""
    sentences = np.full(len(findings), "", dtype=object)
    node, metric = findings["node"].astype(str), findings["metric"].astype(str)
    for by, name, about, sentence in zip(
        causes["by"], causes["name"], causes["metric"], causes["sentence"], strict=True
    ):
        group = node if by == "node" else node.map(dict((groupings or {}).get(by, {})))
        alike = ((group == name) & (metric == about)).to_numpy() & (sentences == "")
        sentences[alike] = sentence
    return pd.Series(sentences, index=findings.index, dtype=object)


def _of_nodes(failing: pd.DataFrame, present: pd.DataFrame) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    devices = {(str(n), str(k)): int(c) for n, k, c in present[["node", "kind", "devices"]].itertuples(index=False)}
    own = failing[~failing["rule"].isin(NODE_RULES)]
    for node, kind, metric, of in _counted(own, ["node", "kind", "metric"], "device"):
        total = devices.get((node, kind), 0)
        if of >= DEVICES_MIN and of >= DEVICE_SHARE * total:
            sentence = f"{of} of {total} {kind}s of {node} fail alike in {metric}"
            found.append(_cause("node", node, metric, of, total, sentence))
    together = failing.loc[failing["rule"].isin(NODE_RULES), ["node", "metric"]]
    for node, metric in sorted(set(together.itertuples(index=False, name=None))):
        found.append(_cause("node", node, metric, 1, 1, f"all devices of {node} together are off in {metric}"))
    return found


def _of_groups(
    failing: pd.DataFrame, present: pd.DataFrame, by: str, group_of: Mapping[str, str]
) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    totals = pd.Series(present["node"].astype(str).unique()).map(dict(group_of)).value_counts()
    grouped = failing.assign(group=failing["node"].map(dict(group_of)))
    for name, metric, of in _counted(grouped, ["group", "metric"], "node"):
        total = int(totals.get(name, 0))
        if of >= NODES_MIN and of >= GROUP_SHARE * total:
            sentence = f"{of} of {total} nodes of {by} {name} fail alike in {metric}"
            found.append(_cause(by, name, metric, of, total, sentence))
    return found


def _counted(failing: pd.DataFrame, by: list[str], distinct: str) -> list[tuple[Any, ...]]:
    """Each combination of ``by`` with how many ``distinct`` there are of it, in order."""
    counts = failing.groupby(by, sort=True)[distinct].nunique().reset_index()
    return list(counts.itertuples(index=False, name=None))


def _cause(by: str, name: str, metric: str, devices: int, of: int, sentence: str) -> tuple[object, ...]:
    fault = BLAME.get(by, FaultClass.SOFTWARE)
    full = f"{sentence}: first of all a {fault} problem; replace no device until that is ruled out"
    return (by, name, metric, devices, of, fault.value, REMEDY[fault].value, full)
