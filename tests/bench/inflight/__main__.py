"""``python -m tests.bench.inflight --nodes N``: N nodes in flight at once on PostgreSQL with Celery.

Real: Airflow's components, the DAG node_qualification, SSH to each node, judging, the records, mail. First half of the
nodes wait in the triggerers, then all; then they, or ``--ending`` of them, are released, and each of these ends with a
verdict. ``growth`` of a component is the exponent k of nodes**k between the two sizes: above 1 it grows faster than the
fleet. ``first_bend`` is the component that reaches its limit at the fewest nodes if it grows on like that
(``bends_at``: by CPU time where that is what it needs, so that other work on the machine does not bend it).

The nodes answer by themselves (``tests.bench.inflight.nodes``). Lower bounds for that reason: ``cpu_s_per_node`` and
``records_mb_per_life`` (an inventory's figures in each stage, but no telemetry and no log; the node side is there
already), and ``sweep_s`` (recording, without reading the nodes). ``statistics_s`` is `muster status`, the peers'
statistics and the fleet's numbers, asked for once after the end, when the records hold what was measured. Prints a
table and one JSON object as its last line; status 1 unless each node that ended has its due verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psycopg

from muster import store
from muster.cli.fleet.status import status
from muster.operators import statistics
from muster.web.fleet import PAGE
from muster_criteria.model import Verdict
from muster_demo import watchdog
from tests.bench import bars, fleet, fleet_page
from tests.bench.inflight.nodes import SKU, AnsweringFleet
from tests.bench.sweep.__main__ import swept
from tests.bench.sweep.year import SWEEP_S
from tests.support.servers.celery_airflow import TRIGGERERS
from tests.support.simulated_fleet import write_sku

HOLD_S = 20.0
BENCH_S = 8 * 3600
"""The time limit of the bench, and of a job that waits."""

LIMITS = {
    "triggerers, cores": float(len(TRIGGERERS)),  # an event loop has one core
    # All are in flight at once only if the last begins before the first ends: an 8-GPU node's load at level standard.
    "workers, s": 7 * 3600 + 23 * 60.0,
    "scheduler's loop, s": 30.0,  # Airflow's scheduler_health_check_threshold
    "page, CPU s": bars.FLEET_PAGE["server_p95_ms"].most / 1000,
    "sweep, CPU s": SWEEP_S,  # its interval
}
"""What each component can bear."""


class Bench:
    """The fleet on its Airflow. ``used``: by its life so far: "wall, s", "records, MB", and CPU seconds of each service
    without what this uses by itself.
    """

    def __init__(self, campaign: fleet.Campaign, meter: fleet.Meter, nodes: AnsweringFleet, records: str) -> None:
        self.campaign, self.meter, self.nodes, self.records = campaign, meter, nodes, records
        self.log = campaign.stack.supervisor.logs / "scheduler.log"
        self.used: Counter[str] = Counter()
        self.idle, self.base_mb = self._rates(), meter.triggerers_mb()

    def live(self, step: Callable[[], object], what: str, done: Callable[[], bool]) -> None:
        """Take a step of the fleet's life, wait until it is done, and count what it used."""
        before, size, began = self.meter.read(), self._records_mb(), time.monotonic()
        step()
        self.campaign.wait(what, done)
        wall = time.monotonic() - began
        used = self._since(before, wall)
        self.used.update({**used, "wall, s": wall, "records, MB": self._records_mb() - size})  # type: ignore[call-overload]

    def at(self, more: list[str]) -> dict[str, float]:
        """What all take once these too are in flight."""
        self.nodes.names = tuple(more)
        self.nodes.enrol(SKU)
        self.campaign.nodes = [*self.campaign.nodes, *more]
        read = self.log.stat().st_size
        self.live(lambda: self.campaign.trigger(more), "all nodes in flight", self.campaign.in_flight)
        with self.log.open("rb") as log:
            log.seek(read)
            loops = [float(ms) for ms in re.findall(rb"Ran scheduling loop in ([\d.]+) ms", log.read())]
        rates = self._rates()
        asked: list[float] = []
        _wall, page_cpu = self._cost(lambda: asked.append(self._page_ms()))
        sweep, sweep_cpu = self._cost(lambda: swept(store.nodes.find(), 1))
        return {
            "nodes": len(self.campaign.nodes),
            "triggerers, cores": sum(rates[name] for name in TRIGGERERS),
            "triggerers, MB": self.meter.triggerers_mb() - self.base_mb,
            "workers, s": self.used["wall, s"],
            "scheduler's loop, s": float(np.percentile(loops, 95)) / 1000,
            "page, ms": asked[-1],
            "page, CPU s": page_cpu / fleet_page.REQUESTS,
            "sweep, s": sweep,
            "sweep, CPU s": sweep_cpu,
            "CPU of lives, s": cpu_s(self.used),
            "records, MB": self.used["records, MB"],
        }

    def end(self, nodes: list[str]) -> Counter[str]:
        """From now on only these live on, and what the others use while they wait is not theirs. Returns what the
        begin of all used.
        """
        self.campaign.endless = len(self.campaign.nodes) - len(nodes)
        self.campaign.nodes, self.idle = nodes, self._rates()
        begun, self.used = self.used, Counter()
        return begun

    def _since(self, before: Mapping[str, float], wall: float) -> dict[str, float]:
        """CPU seconds of each service since, without what it uses by itself."""
        now = self.meter.read()
        return {name: max(0.0, value - before[name] - self.idle[name] * wall) for name, value in now.items()}

    def _cost(self, ask: Callable[[], object]) -> tuple[float, float]:
        """(seconds, CPU seconds here, in the API server and in PostgreSQL) of asking again what was asked before."""
        ask()
        before, began, own = self.meter.read(), time.monotonic(), time.process_time()
        ask()
        wall = time.monotonic() - began
        used = self._since(before, wall)
        return wall, time.process_time() - own + used["api-server"] + used["postgresql"]

    def _rates(self) -> dict[str, float]:
        """Cores that each service uses while nothing begins."""
        before = self.meter.read()
        time.sleep(HOLD_S)
        return {name: (value - before[name]) / HOLD_S for name, value in self.meter.read().items()}

    def _page_ms(self) -> float:
        stack = self.campaign.stack
        headers = {"Authorization": f"Bearer {stack.token()}"}
        with httpx.Client(base_url=stack.login.url, headers=headers, timeout=60) as client:
            return fleet_page.served(client, self.campaign.dice, len(self.campaign.nodes))

    def _records_mb(self) -> float:
        with psycopg.connect(self.records) as connection:
            size = connection.execute("SELECT pg_database_size(current_database())").fetchone()
        return float(size[0]) / 1e6 if size else math.nan


def _statistics() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        status(json=True)
    statistics.recompute()
    statistics.count()


def cpu_s(used: Mapping[str, float]) -> float:
    """CPU seconds of all services."""
    return sum(value for name, value in used.items() if "," not in name)


def measure(folder: Path, nodes: int, seed: int, ending: int) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """(the figures by their keys, what was measured at each size), in a new folder. Raises ServiceFailed.

    ``ending``: how many of the nodes come to an end; the others wait on.
    """
    dice = random.Random(seed)
    names, warm = [f"n{number:05d}" for number in range(nodes)], ["warm-0", "warm-1"]
    ends = dice.sample(names, ending)
    due = dict.fromkeys(ends, Verdict.PASS) | dict.fromkeys(dice.sample(ends, max(1, ending // 10)), Verdict.FAIL)
    faulty = {name for name, verdict in due.items() if verdict is Verdict.FAIL}
    answering = AnsweringFleet(folder / "fleet", [*warm, *names], seed, faulty, [*warm, *ends])
    answering.names = tuple(warm)
    settings = {
        "MUSTER_SKU_PATH": str(write_sku(folder / "skus", BENCH_S)),
        "MUSTER_POLL_SECONDS": "5",
        "AIRFLOW__TRIGGERER__CAPACITY": str(max(1000, nodes)),
        # Nothing is killed here: Airflow's own patience.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "300",
        "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "600",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "30",
        "AIRFLOW__LOGGING__NAMESPACE_LEVELS": "airflow.jobs.scheduler_job_runner=DEBUG",
    }
    with fleet.running(folder, answering, warm, settings) as (stack, database):
        login = {"URL": stack.login.url, "USERNAME": stack.login.username, "PASSWORD": stack.login.password}
        os.environ.update(settings, **{f"MUSTER_AIRFLOW_{name}": value for name, value in login.items()})
        campaign = fleet.Campaign(stack, answering, [], dice, BENCH_S)
        bench = Bench(campaign, fleet.Meter(stack, database.pid), answering, database.url("muster"))
        answering.gate.shut()
        sizes = []
        for some in (names[: nodes // 2], names[nodes // 2 :]):
            sizes.append(bench.at(some))
            print(sizes[-1], flush=True)  # of a run that does not come to its end, too
        begun = bench.end(ends)
        bench.live(answering.gate.open, "the end", campaign.settled)
        began = time.monotonic()
        _statistics()
        counting = time.monotonic() - began
        life = {name: value / nodes + bench.used[name] / ending for name, value in begun.items()}
        finished = sum(fleet.verdict_of(name) is verdict for name, verdict in due.items())
    half, full = sizes
    counted = {"statistics_s": round(counting, 2), "ending": ending, "finished": finished, "seed": seed}
    return {**figures(half, full, life), **counted}, sizes


def figures(half: Mapping[str, float], full: Mapping[str, float], life: Mapping[str, float]) -> dict[str, Any]:
    """The figures by their keys, of what was measured at two sizes and what one node's life used."""
    nodes = full["nodes"]
    grown = {name: growth(half, full, name) for name in full if name != "nodes"}
    bends = {name: bends_at(half, full, name, grown[name]) for name in LIMITS}
    return {
        "nodes": nodes,
        "waiting_mb_per_node": round((full["triggerers, MB"] - half["triggerers, MB"]) / (nodes - half["nodes"]), 3),
        "waiting_cores": round(full["triggerers, cores"], 3),
        "scheduler_loop_s": round(full["scheduler's loop, s"], 3),
        "cpu_s_per_node": round(cpu_s(life), 2),
        "records_mb_per_life": round(life["records, MB"], 3),
        "sweep_s": round(full["sweep, s"], 2),
        "page_p95_ms": round(full["page, ms"], 1),
        "first_bend": min(bends, key=lambda name: bends[name]),
        "bends_at": {name: round(value) if math.isfinite(value) else None for name, value in bends.items()},
        "growth": {name: round(value, 2) for name, value in grown.items()},
        "cpu_s": {name: round(value, 2) for name, value in life.items() if "," not in name},
    }


def growth(half: Mapping[str, float], full: Mapping[str, float], name: str) -> float:
    """The exponent k of nodes**k by which a value grew between the two sizes; 0 for one that was not above 0."""
    if min(half[name], full[name]) <= 0:
        return 0.0
    return math.log(full[name] / half[name]) / math.log(full["nodes"] / half["nodes"])


def bends_at(half: Mapping[str, float], full: Mapping[str, float], name: str, exponent: float) -> float:
    """Nodes at which a value reaches its limit, if it grows on by a power above 1 or else by as much for each node."""
    nodes, slope = full["nodes"], (full[name] - half[name]) / (full["nodes"] - half["nodes"])
    filling = name == "page, CPU s" and half["nodes"] < PAGE  # it grows with each row, up to so many
    if slope <= 0 or filling:
        return math.inf
    if exponent > 1:
        return nodes * float((LIMITS[name] / full[name]) ** (1 / exponent))
    return nodes + (LIMITS[name] - full[name]) / slope


def bench(nodes: int, seed: int, ending: int) -> int:
    """Print the table and, last, one JSON line; 1 if a node has another verdict than its machine deserves."""
    with tempfile.TemporaryDirectory(prefix="muster-inflight-", ignore_cleanup_errors=True) as name:
        found, (half, full) = measure(Path(name), nodes, seed, ending)
    print(f"{'of nodes in flight':<22}{half['nodes']:>9}{full['nodes']:>9}{'growth':>8}{'limit':>9}{'bends at':>10}")
    for what, grown in found["growth"].items():
        limit, bend = LIMITS.get(what, ""), found["bends_at"].get(what) or ""
        print(f"{what:<22}{half[what]:>9.3f}{full[what]:>9.3f}{grown:>8}{limit:>9}{bend:>10}")
    for service, seconds in found["cpu_s"].items():
        print(f"{'CPU s a node: ' + service:<31}{seconds:>9}")
    print(json.dumps(found))
    return int(found["finished"] < ending)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100, help="nodes in flight at once, 4 or more")
    parser.add_argument("--seed", type=int, default=0, help="which nodes are faulty")
    parser.add_argument("--ending", type=int, help="how many of them come to an end; without it all do")
    chosen = parser.parse_args()
    ending = chosen.nodes if chosen.ending is None else chosen.ending
    if not 0 < ending <= chosen.nodes or chosen.nodes < 4:
        parser.error(f"{ending} of {chosen.nodes} nodes cannot end: there are at least 4, and at least one ends")
    return bench(chosen.nodes, chosen.seed, ending)


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
