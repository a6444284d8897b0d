"""What SuperBench's ``DataDiagnosis`` costs a node, on this machine: its way of judging, reproduced.

SuperBench (microsoft/superbenchmark, ``superbench/analyzer``) is on no package index and imports its whole suite of
benchmarks, so its steps are written down here again, not run. For each node it takes the row of a wide frame of pandas;
for each metric of each rule it looks the value up by name, computes ``x / baseline − 1``, keeps that in a series of
the node's own, and evaluates the rule's criterion from its text. The label of each node goes to a frame, node by node.
Reading the results from JSON Lines is not counted, as reading the records is not counted for Muster's judge.
"""

from __future__ import annotations

import time

import numpy as np
import pandas as pd

NODES = 300
RULES = 4
CRITERION = "lambda x: x < -0.05"


def seconds_a_node(metrics: int, seed: int) -> float:
    """CPU seconds a node for so many metrics, of healthy nodes; their labels are checked."""
    rng = np.random.default_rng(seed)
    names = [f"benchmark-{number // 8}/metric-{number}:0" for number in range(metrics)]
    wide = pd.DataFrame(
        rng.normal(100.0, 0.5, (NODES, metrics)), index=[f"node-{number:05d}" for number in range(NODES)], columns=names
    )
    rules = [dict.fromkeys(names[first::RULES], 100.0) for first in range(RULES)]
    began = time.process_time()
    labels = pd.DataFrame(columns=["label"])
    for node in wide.index:
        labels.loc[node] = int(_breaks(wide.loc[node], rules, names))
    seconds = time.process_time() - began
    assert not labels["label"].any(), "a healthy node was rejected"
    return seconds / NODES


def _breaks(row: pd.Series, rules: list[dict[str, float]], names: list[str]) -> int:
    """How many metrics of the node break their rule."""
    shares, broken = pd.Series(index=names, dtype=float), 0
    for baselines in rules:
        for metric, baseline in baselines.items():
            if metric not in row or pd.isna(row[metric]):
                broken += 1
                continue
            share = (row[metric] - baseline) / baseline
            shares[metric] = share
            broken += bool(eval(CRITERION)(share))
    return broken
