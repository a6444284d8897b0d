"""``python -m tests.bench.sweep [--nodes 10000] [--ssh 60] [--days 365] [--seed 7]``.

Measured here: real SSH round trips with the real node side over one sshd on this machine, and recording and acting for
the whole fleet on SQLite. ``nodes_per_minute`` is what one worker's CPU allows: 60 s by the controller's CPU time a
node; ``nodes_per_minute_here`` is by the wall, with the nodes' own work on the same machine. SIMULATED: the nodes'
answers of the fleet and its year (``tests.bench.sweep.year``).
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from sqlalchemy import insert

from muster import store
from muster.model.health import Cursor
from muster.model.nodes import Node
from muster.model.states import State
from muster.operators.lifecycle import sweep
from muster.remote import sweeping
from muster.remote.connection.login import Credentials
from muster.remote.job.zipapp import build_agent
from muster.remote.sweeping import Answer
from muster.store.database.engine import writing
from muster.store.database.models import NodeRow
from muster_demo import watchdog
from tests.bench.sweep import year
from tests.support.servers import sshd

BUDGET = 0.01
SKU = "h100-sxm-8"
NOW = datetime.datetime.now(datetime.UTC)


def main() -> int:
    """Prints a table and, last, one JSON object. Status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--ssh", type=int, default=60, help="real round trips")
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    rng = np.random.default_rng(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MUSTER_HOME"], os.environ["MUSTER_DATABASE_URL"] = f"{folder}/home", ""
        Path(folder, "home").mkdir()
        store.engine.upgrade()
        read_cpu, read_wall = round_trips(Path(folder), args.ssh)
        recorded = whole_fleet(args.nodes)
        store.engine.dispose()
    alarms, by_check = year.false_alarms(args.nodes, args.days, rng)
    found = year.detected(200, rng)
    cpu = read_cpu + recorded
    result = {
        "nodes_per_minute": round(60 / cpu), "cpu_s_per_node": round(cpu, 4),
        "false_alarms_per_node_day": round(alarms / (args.nodes * args.days), 6),
        "detected": round(float(np.mean(list(found.values()))), 4),
        "nodes_per_minute_here": round(60 / read_wall), "read_cpu_s_per_node": round(read_cpu, 4),
        "record_cpu_s_per_node": round(recorded, 4), "nodes": args.nodes, "days": args.days, "seed": args.seed,
        "simulated": ["answers of the fleet", "false_alarms_per_node_day", "detected"],
    }  # fmt: skip
    print(f"{args.ssh} real round trips: {read_cpu * 1000:.1f} ms of the controller's CPU a node, here "
          f"{60 / read_wall:.0f} nodes a minute by the wall, with the nodes' own work on this machine")  # fmt: skip
    print(f"recording {args.nodes} nodes: {recorded * 1000:.1f} ms of CPU a node")
    print(f"one worker: {60 / cpu:.0f} nodes a minute (bar: 1,000)")
    print(f"SIMULATED year: {alarms} of {args.nodes * args.days} healthy node-days had more than a note "
          f"({alarms / (args.nodes * args.days):.4%}; budget {BUDGET:.0%}): {by_check}")  # fmt: skip
    for name, share in found.items():
        print(f"SIMULATED fault {name}: {share:.0%} led to more than a note")
    print(json.dumps(result))
    bars = 60 / cpu >= 1000 and alarms <= BUDGET * args.nodes * args.days
    return 0 if bars else 1


def round_trips(folder: Path, count: int) -> tuple[float, float]:
    """(CPU of this process, wall) in seconds a node, of real round trips to one sshd as if it were many nodes."""
    agent = build_agent(folder / "agents")
    with sshd.running(folder / "node") as server:
        at = server.node()
        key = " ".join(at.host_key.split()[:2])
        nodes = [
            Node(
                name=f"n{each}", host=at.host, port=at.port, user=at.user or "", host_key=key, sku="cpu-generic",
                state=State.PRODUCTION, launch={"kind": "python", "python": sys.executable}, work_dir=at.work_dir,
                rack="", pool="", labels={}, simulated=False, added_at=NOW,
            )
            for each in range(count + 1)
        ]  # fmt: skip

        async def read(some: list[Node]) -> list[Answer]:
            pairs = [(node, Cursor(node.name)) for node in some]
            who = Credentials(key_file=str(server.key_file))
            return [each async for each in sweeping.read_all(pairs, who, agent, parallel=8, limit_s=120)]

        asyncio.run(read(nodes[:1]))  # sends the node side
        cpu, wall = time.process_time(), time.monotonic()
        answers = asyncio.run(read(nodes[1:]))
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    troubles = [each.trouble for each in answers if each.trouble]
    if troubles:
        raise SystemExit(f"{len(troubles)} of {count} round trips failed: {troubles[0]}")
    return cpu / count, wall / count


def answer(number: int, boot: str = "b1") -> bytes:
    """What an 8-GPU node answers: 30 facts a GPU, as NVML's backend gives them."""
    at_rest = ("gpu_lost", "row_remap_pending", "row_remap_failed", "retired_pages_pending")
    facts: list[dict[str, object]] = [{"name": "gpus", "device": "node", "value": 8}]
    for gpu in (f"gpu{each}" for each in range(8)):
        facts += [{"name": flag, "device": gpu, "value": 0} for flag in at_rest]
        facts += [
            {"name": kind, "device": gpu, "value": number, "labels": {"scope": scope}}
            for scope in ("volatile", "aggregate")
            for kind in ("ecc_corrected", "row_remap_corrected")
        ]
        facts += [
            {"name": "nvlink_errors", "device": gpu, "value": 0, "labels": {"link": str(link)}} for link in range(18)
        ]
        facts += [{"name": name, "device": gpu, "value": 16} for name in ("nvlink_active", "pcie_width")]
    plain = {"schema": 1, "boot_id": boot, "uptime_s": 90_000, "wall": time.time(), "simulated": True, "facts": facts}
    return json.dumps({**plain, "kernel": {"first": 0.0, "last": 100.0, "events": []}}).encode()


def whole_fleet(count: int) -> float:
    """CPU seconds a node of recording the second sweep of a fleet, and of acting upon it."""
    rows = [
        {
            "name": f"n{each:05}", "host": "h", "port": 22, "user": "", "host_key": f"ssh-ed25519 {each:044}",
            "sku": SKU,
            "state": "production", "launch": {}, "work_dir": "", "rack": f"r{each // 32}", "pool": "", "labels": {},
            "simulated": True, "added_at": NOW, "machine_since": NOW,
        }
        for each in range(count)
    ]  # fmt: skip
    with writing() as session:
        session.execute(insert(NodeRow), rows)
    nodes = store.nodes.find()
    for errors in (0, 1):
        cpu = time.process_time()
        swept(nodes, errors)
        cpu = time.process_time() - cpu
    began = time.process_time()
    sweep.act()
    return (cpu + time.process_time() - began) / count


def swept(nodes: Sequence[Node], errors: int) -> None:
    """Record a sweep in which one node in 50 shows so many corrected errors on all of its GPUs."""
    cursors = store.health.cursors(node.name for node in nodes)
    quiet, shows, tally = answer(0), answer(errors), sweep.Tally()
    for start in range(0, len(nodes), sweep.BATCH):
        some = nodes[start : start + sweep.BATCH]
        sweep.record([Answer(node, quiet if number else shows) for number, node in enumerate(some)], cursors, tally)
    if tally.unreachable:
        raise SystemExit("the fleet's own answers could not be read")


if __name__ == "__main__":
    sys.exit(watchdog.run(main))
