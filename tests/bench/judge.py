"""How long judging a fleet takes: N nodes × 8 GPUs × 60 metrics against frozen references, and one node against them.

Run as ``python -m tests.bench.judge [--nodes N] [--seed S]``. The fleet's numbers are made up (no physics). One node in
a hundred has a GPU of which one reading is slowed by 10 %; every metric has a floor and a ceiling besides peers,
siblings and history. As in `muster judge --fleet`, the prefilter finds the nodes with any small margin, and the judge
judges those, here in one frame; the command judges them one by one, and also reads each one's records, which is not
measured here. Each size is judged in a process of its own, so that its peak memory is that of judging: the day's
readings, the snapshot and four earlier visits of every device are read from files. Seconds are CPU seconds of all its
threads together, which on one idle core is what a clock on the wall would show. The steps of SuperBench's
`DataDiagnosis` (``data_diagnosis``) are timed in the same process, so that the ratio is of one run on one machine.
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
import pyarrow as pa

from muster_criteria.fleet.peers.history import History, build_history
from muster_criteria.fleet.peers.references import References
from muster_criteria.fleet.peers.snapshot import Snapshot, build_snapshot
from muster_criteria.fleet.series.readings import DAY_S, group_of, together
from muster_criteria.model import Judgement, Verdict
from muster_criteria.sku_files.limits import Limit
from muster_criteria.sku_files.model import Sku
from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stage.case import Case
from muster_criteria.stage.judge import judge_all
from muster_criteria.stage.prefilter import small_margins
from muster_criteria.stage.rules import RULES
from muster_criteria.stage.suite import unexpected_rows
from muster_demo import watchdog
from tests.bench import bars
from tests.bench.data_diagnosis import seconds_a_node
from tests.bench.sent import results_of
from tests.muster_criteria.fleet_readings import DAY, GPUS, Fleet

METRICS = 60
EARLIER = (DAY - 40, DAY - 30, DAY - 20, DAY - 10)
BLOCK = 500
"""Nodes whose earlier visits are made at a time; the snapshot estimates by the first block how devices stray from
themselves, and from the last visit of all nodes what is usual."""
SLOWED = 100
"""One node in so many has a slow reading."""
SKU, STAGE, LEVEL, PROBE = "h100-sxm-8", "performance", "short", "gemm_rate"
DATA_DIAGNOSIS_METRICS = 49
"""Metrics of a node for which SuperBench's ``DataDiagnosis`` is timed for the bar."""


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
    rng, each = np.random.default_rng(seed), METRICS * GPUS
    slow = np.flatnonzero(rng.random(nodes) < 1.0 / SLOWED)
    value = today["value"].to_numpy().copy()
    value[slow * each + rng.integers(each, size=len(slow))] *= 0.9  # a node's readings stand together
    today.assign(value=value).to_feather(folder / "today.feather")


def _named(readings: pd.DataFrame, first: int) -> pd.DataFrame:
    names = [f"node-{first + number:05d}" for number in range(len(readings["node"].cat.categories))]
    groups = [group_of(SKU, {}, each.rpartition("=")[2]) for each in readings["group"].cat.categories]
    return readings.assign(
        node=readings["node"].cat.rename_categories(names),
        group=readings["group"].cat.rename_categories(groups),
        sku=readings["sku"].cat.rename_categories([SKU]),
    )


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
    sku = load_sku(SKU)
    programme = sku.programme.model_copy(update={"compare": fleet.comparisons, "derive": ()})
    return sku.model_copy(update={"inventory": (), "limits": tuple(limits), "programme": programme})


def judged(today: pd.DataFrame, sku: Sku, snapshot: Snapshot, history: History) -> dict[str, Judgement]:
    """What production's judge says of the nodes that the prefilter names."""
    named = small_margins(today, sku, STAGE, LEVEL, snapshot, history)
    rows = today["node"].cat.categories.isin(named)[today["node"].cat.codes.to_numpy()]
    groups = today["group"].cat
    first = np.flatnonzero(rows & (np.diff(today["node"].cat.codes.to_numpy(), prepend=-1) != 0))
    zones = {
        str(today["node"].iat[at]): str(groups.categories[int(groups.codes.iat[at])]).rpartition("=")[2] for at in first
    }
    own = history.of_nodes(sorted(named))
    cases = [
        Case(sku, STAGE, LEVEL, result, references=References(snapshot, own, zone=zones[result.node]))
        for result in results_of(today[rows], STAGE, LEVEL, {each.metric: PROBE for each in sku.programme.compare})
    ]
    return {case.result.node: found for case, found in zip(cases, judge_all(cases), strict=True) if case.result}


def measure(folder: Path, seed: int) -> dict[str, float]:
    """Judge what ``prepare`` wrote: CPU seconds, peak memory in MB, and CPU seconds for one node."""
    warm_up()
    sku = sku_of(Fleet(1, METRICS))
    today = pd.read_feather(folder / "today.feather")
    pa.default_memory_pool().release_unused()
    history = History(pd.read_feather(folder / "history.feather"))
    pa.default_memory_pool().release_unused()  # what only reading the files needed
    raw = (folder / "snapshot").read_bytes()
    began = time.process_time()
    found = judged(today, sku, Snapshot.from_bytes(raw), history)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    failed = [name for name, judgement in found.items() if judgement.verdict is Verdict.FAIL]
    name = (failed or [str(today["node"].iloc[len(today) // 2])])[0]
    one = today[today["node"] == name].reset_index(drop=True)
    one = one.assign(**{each: one[each].cat.remove_unused_categories() for each in ("node", "run")})
    of_one = History(history.of(name).series.assign(node=lambda rows: rows["node"].cat.remove_unused_categories()))
    began = time.process_time()
    alone = judged(one, sku, Snapshot.from_bytes(raw), of_one)
    one_s = time.process_time() - began
    assert alone.get(name) == found.get(name), "alone and in the fleet differ"
    others = {metrics: seconds_a_node(metrics, seed) for metrics in (DATA_DIAGNOSIS_METRICS, METRICS * GPUS)}
    return {
        "rows": float(len(today)),
        "seconds": seconds,
        "peak_mb": peak,
        "one_node_seconds": one_s,
        "judged": float(len(found)),
        "failed": float(len(failed)),
        "findings": float(sum(len(judgement.findings) for judgement in found.values())),
        "data_diagnosis": others[DATA_DIAGNOSIS_METRICS],
        "data_diagnosis_as_many": others[METRICS * GPUS],
    }


def warm_up() -> None:
    """Import what the judge imports where it needs it: Great Expectations alone takes seconds, once a process."""
    unexpected_rows(pd.DataFrame({rule.column: [1.0] for rule in RULES[:1]}), RULES[:1])


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
        print(json.dumps(measure(given.folder, given.seed)))
        return 0
    print("| nodes | readings | CPU seconds | µs per device | peak MB | one node, s | judged | findings | failed |")
    print("|---|---|---|---|---|---|---|---|---|")
    for nodes in sorted({max(given.nodes // 10, 1), max(given.nodes * 3 // 10, 1), given.nodes}):
        found = of_size(nodes, given.seed)
        each = 1e6 * found["seconds"] / nodes / 8
        print(
            f"| {nodes:,} | {found['rows']:,.0f} | {found['seconds']:.2f} | {each:.0f} | {found['peak_mb']:.0f} "
            f"| {found['one_node_seconds']:.3f} | {found['judged']:,.0f} | {found['findings']:,.0f} "
            f"| {found['failed']:,.0f} |"
        )
    each = found["seconds"] / given.nodes
    times, as_many = found["data_diagnosis"] / each, found["data_diagnosis_as_many"] / each
    print(
        f"\nPer node {times:.1f} times as fast as SuperBench's DataDiagnosis with {DATA_DIAGNOSIS_METRICS} metrics, "
        f"{as_many:.0f} times as fast as with as many readings ({METRICS * GPUS})."
    )
    kept = {name: round(found[name], 3) for name in ("seconds", "peak_mb", "one_node_seconds")}
    ratios = {"times_data_diagnosis": round(times, 2), "times_data_diagnosis_as_many": round(as_many, 1)}
    figures = {"nodes": given.nodes, "seed": given.seed, **kept, **ratios}
    print(json.dumps(figures))
    return bars.status(figures, bars.JUDGE)


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
