"""How long judging a fleet takes: N nodes × 8 GPUs × 60 metrics against frozen references, and one node against them.

Run as ``python -m tests.bench.judge [--nodes N] [--seed S]``. The fleet's numbers are made up (no physics), with one
reading in a thousand slowed by 10 %; every metric has a floor and a ceiling besides peers, siblings and history. Each
size is judged in a process of its own, so that its peak memory is that of judging: the day's readings, the snapshot and
four earlier visits of every device are read from files. Seconds are CPU seconds of all its threads together, which on
one idle core is what a clock on the wall would show.
"""

from __future__ import annotations

import argparse
import datetime
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from muster_criteria.fleet.peers.history import History, build_history
from muster_criteria.fleet.peers.snapshot import Snapshot, build_snapshot
from muster_criteria.fleet.series.readings import DAY_S, together
from muster_criteria.fleet.sweep import sweep
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku
from tests.muster_criteria.fleet_readings import DAY, Fleet

METRICS = 60
EARLIER = (DAY - 40, DAY - 30, DAY - 20, DAY - 10)
BLOCK = 500
"""Nodes whose earlier visits are made at a time; the snapshot estimates by the first block how devices stray from
themselves, and from the last visit of all nodes what is usual."""
SLOWED = 1000
BAR_S, BAR_MB, BAR_ONE_S = 10.0, 2000.0, 0.5


def prepare(folder: Path, nodes: int, seed: int) -> None:
    """Write what judging needs: today.feather, snapshot, history.feather."""
    blocks = [
        (number, Fleet(min(BLOCK, nodes - number), METRICS, seed=seed + number, zones=4))
        for number in range(0, nodes, BLOCK)
    ]
    at = datetime.datetime.fromtimestamp((DAY - 1) * DAY_S, datetime.UTC)
    made = [_named(fleet.visits(*EARLIER, DAY), number) for number, fleet in blocks]
    usual = [each[each["at"] == EARLIER[-1]] for each in made[1:]]
    snapshot = build_snapshot(together([made[0], *usual]), at, blocks[0][1].comparisons)
    (folder / "snapshot").write_bytes(snapshot.to_bytes())
    before = [build_history(each[each["at"] < DAY], snapshot, blocks[0][1].comparisons).series for each in made]
    together_of_names(before).to_feather(folder / "history.feather")
    today = together([each[each["at"] == DAY] for each in made])
    slowed = np.random.default_rng(seed).random(len(today)) < 1.0 / SLOWED
    today.assign(value=np.where(slowed, 0.9, 1.0) * today["value"]).to_feather(folder / "today.feather")


def _named(readings: pd.DataFrame, first: int) -> pd.DataFrame:
    names = [f"node-{first + number:05d}" for number in range(len(readings["node"].cat.categories))]
    return readings.assign(node=readings["node"].cat.rename_categories(names))


def together_of_names(parts: list[pd.DataFrame]) -> pd.DataFrame:
    """Frames of the same columns as one, still with categories."""
    joined: dict[str, object] = {}
    for name in parts[0].columns:
        columns = [part[name] for part in parts]
        if isinstance(columns[0].dtype, pd.CategoricalDtype):
            joined[name] = pd.api.types.union_categoricals([each.array for each in columns], sort_categories=True)
        else:
            joined[name] = np.concatenate([each.to_numpy() for each in columns])
    return pd.DataFrame(joined)


def sku_of(fleet: Fleet) -> Sku:
    """The fleet's SKU: a floor at half, and a ceiling at twice, of what is usual for each metric."""
    limits = [
        Limit.model_validate(
            {"metric": each.metric, "device": "gpu", "unit": each.unit, key: number, "breach": breach,
             "meaning": "is far off", "source": "made up for this benchmark", "date": "2026-01-01"}
        )
        for each in fleet.comparisons
        for key, number, breach in (("floor", 50.0, "fail"), ("ceiling", 200.0, "invalid"))
    ]  # fmt: skip
    return load_sku("h100-sxm-8").model_copy(update={"inventory": (), "limits": tuple(limits)})


def measure(folder: Path) -> dict[str, float]:
    """Judge what ``prepare`` wrote: CPU seconds, peak memory in MB, and CPU seconds for one node."""
    fleet = Fleet(1, METRICS)
    comparisons, skus = fleet.comparisons, {"sku": sku_of(fleet)}
    today = pd.read_feather(folder / "today.feather")
    history = History(pd.read_feather(folder / "history.feather"))
    raw = (folder / "snapshot").read_bytes()
    began = time.process_time()
    found = sweep(today, Snapshot.from_bytes(raw), history, comparisons, skus=skus)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    verdicts = found.verdicts["verdict"].value_counts()
    name = str(today["node"].iloc[len(today) // 2])
    one = today[today["node"] == name].reset_index(drop=True)
    one = one.assign(**{each: one[each].cat.remove_unused_categories() for each in ("node", "run")})
    of_one = History(history.of(name).series.assign(node=lambda rows: rows["node"].cat.remove_unused_categories()))
    began = time.process_time()
    alone = sweep(one, Snapshot.from_bytes(raw), of_one, comparisons, skus=skus)
    one_s = time.process_time() - began
    assert alone.verdicts["verdict"].loc[name] == found.verdicts["verdict"].loc[name], "alone and in the fleet differ"
    return {
        "rows": float(len(today)),
        "seconds": seconds,
        "peak_mb": peak,
        "one_node_seconds": one_s,
        "failed": float(verdicts.get("FAIL", 0)),
        "findings": float(len(found.findings)),
    }


def of_size(nodes: int, seed: int) -> dict[str, float]:
    """Prepare and measure in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        for step in ("prepare", "measure"):
            arguments = ["--step", step, "--folder", folder, "--nodes", str(nodes), "--seed", str(seed)]
            done = subprocess.run([sys.executable, "-m", __spec__.name, *arguments], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{step} of {nodes} nodes failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """The table, and one JSON object on the last line; 1 where a bar for 10,000 nodes is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--step", choices=("prepare", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step == "prepare":
        prepare(given.folder, given.nodes, given.seed)
        return 0
    if given.step == "measure":
        print(json.dumps(measure(given.folder)))
        return 0
    print("| nodes | readings | CPU seconds | µs per device | peak MB | one node, s | findings | failed |")
    print("|---|---|---|---|---|---|---|---|")
    for nodes in sorted({max(given.nodes // 10, 1), max(given.nodes * 3 // 10, 1), given.nodes}):
        found = of_size(nodes, given.seed)
        each = 1e6 * found["seconds"] / nodes / 8
        print(
            f"| {nodes:,} | {found['rows']:,.0f} | {found['seconds']:.2f} | {each:.0f} | {found['peak_mb']:.0f} "
            f"| {found['one_node_seconds']:.3f} | {found['findings']:,.0f} | {found['failed']:,.0f} |"
        )
    kept = {name: round(found[name], 3) for name in ("seconds", "peak_mb", "one_node_seconds")}
    print(json.dumps({"nodes": given.nodes, "seed": given.seed, **kept}))
    return int(found["seconds"] > BAR_S or found["peak_mb"] > BAR_MB or found["one_node_seconds"] > BAR_ONE_S)


if __name__ == "__main__":
    sys.exit(main())
