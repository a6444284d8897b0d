"""Fixtures of the criteria's tests: the shipped SKUs, and healthy results to spoil."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from muster_criteria.fleet.peers.history import build_history
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.peers.snapshot import build_snapshot
from muster_criteria.fleet.series.readings import DAY_S, as_readings, readings_of
from muster_criteria.rows import Row, rows_of
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku
from tests.muster_criteria.frozen_fleet import Frozen
from tests.muster_criteria.nodes import Case, MakeCase, healthy_raw

NODES = 60
DAY = 20_000
EARLIER = 4
"""Of the frozen references: how many peers, the day after which nothing is known, and visits before it."""


@pytest.fixture(scope="session")
def cpu_generic() -> Sku:
    return load_sku("cpu-generic")


@pytest.fixture(scope="session")
def h100() -> Sku:
    return load_sku("h100-sxm-8")


@pytest.fixture(scope="session")
def frozen() -> Frozen:
    """A made-up fleet's references, and what it measures today."""
    return Frozen()


@pytest.fixture(scope="session")
def case(cpu_generic: Sku, h100: Sku) -> MakeCase:
    """case("thermal", "h100-sxm-8") is a healthy result to spoil; every call gives a fresh one."""
    skus = {sku.name: sku for sku in (cpu_generic, h100)}
    made: dict[tuple[str, str, str], dict[str, Any]] = {}

    def make(stage: str, sku: str = "h100-sxm-8", level: str = "demo") -> Case:
        key = (sku, stage, level)
        if key not in made:
            made[key] = healthy_raw(skus[sku], stage, level)
        return Case(skus[sku], copy.deepcopy(made[key]))

    return make


@pytest.fixture(scope="session")
def make_limit() -> Callable[..., Limit]:
    """A limit with the keys that are not the point of a test filled in."""

    def make(**keys: Any) -> Limit:
        return Limit.model_validate({"unit": "count", "source": "for a test", "date": "2026-11-21"} | keys)

    return make


def _is_drawn(row: Row) -> bool:
    """Whether a healthy row differs from node to node: states and counters, which are watched, do not."""
    watched = row.probe in ("gpu_watch", "device_events") or row.metric == "device_present"
    return row.value is not None and row.device.startswith("gpu") and not watched


@pytest.fixture(scope="session")
def references(case: MakeCase, h100: Sku) -> References:
    """Peers and every node's own history, of healthy results that differ by noise (0.4 %) and variation (1.75 %)."""
    draws = {"performance": np.random.default_rng(11), "burn_in": np.random.default_rng(12)}
    results = {stage: case(stage).result() for stage in draws}
    variation = 1.0 + 0.0175 * draws["performance"].standard_normal((NODES, 8))
    variation[1] = 1.0  # of the node that cases are of, whose GPUs measure what is usual
    drawn = {each.metric for each in h100.programme.compare if (each.device, each.spread) == ("gpu", "varied")}
    kept = {stage: [row for row in rows_of(result, h100) if _is_drawn(row)] for stage, result in results.items()}
    rows, environment = [row for stage in kept for row in kept[stage]], results["performance"].environment
    usual = readings_of(rows, node="", at=0.0, run="", sku=h100.name, environment=environment)
    slots, varied = usual["slot"].to_numpy(), usual["metric"].isin(drawn).to_numpy()
    visits = [(visit, node) for visit in range(EARLIER) for node in range(NODES)]
    values = []
    for _, node in visits:
        noise = np.concatenate([draws[stage].standard_normal(len(kept[stage])) for stage in kept])
        own = np.where(varied, variation[node, slots], 1.0)
        values.append(usual["value"].to_numpy() * (1.0 + 0.004 * noise) * own)
    readings = as_readings(
        pd.concat([usual] * len(visits), ignore_index=True).assign(
            value=np.concatenate(values),
            node=np.repeat([f"node-{node}" for _, node in visits], len(usual)),
            at=np.repeat([float(DAY - 10 * (EARLIER - visit)) for visit, _ in visits], len(usual)),
            run=np.repeat([f"r{visit}" for visit, _ in visits], len(usual)),
        )
    )
    made_at = datetime.datetime.fromtimestamp(DAY * DAY_S, datetime.UTC)
    snapshot = build_snapshot(readings, made_at, h100.programme.compare)
    return References(snapshot, build_history(readings, snapshot, h100.programme.compare))
