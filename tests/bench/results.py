"""What a node's result costs the controller: read at its largest, refused when it is hostile, stored.

Run as ``python -m tests.bench.results``. Each cost is a ratio within one run: to reading 43,000 measurements as plain
JSON, which is as many as a result of five megabytes holds. Nothing here is random.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import store
from muster_criteria.measured import BadResult, parse_result
from muster_node.contract import Measurement
from tests.muster import fleet
from tests.muster_criteria.stage.test_measured import largest

REPEATS = 5
STORED = 2_000
BARS = {"largest": 15.0, "two_million_numbers": 15.0, "a_million_empty_maps": 15.0, "stored_2000": 15.0}
HOSTILE = {
    "two_million_numbers": b'{"measurements":[' + b"1," * 2_000_000 + b"1]}",
    "a_million_empty_maps": b'{"measurements":[' + b"{}," * 1_500_000 + b"{}]}",
}


def best_of(work: Callable[[], object]) -> float:
    """CPU seconds of the quickest of five."""
    times = []
    for _ in range(REPEATS):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return min(times)


def refuse(raw: bytes) -> None:
    """Raises AssertionError if it is taken."""
    try:
        parse_result(raw)
    except BadResult:
        return
    raise AssertionError("a hostile result was taken")


def storing() -> float:
    """CPU seconds to read and record a stage of 2,000 measurements, new ones each time, on SQLite."""
    fresh = itertools.count()

    def record() -> None:
        figures = [Measurement("p", f"m{index}", f"gpu{index % 8}", "count", next(fresh)) for index in range(STORED)]
        parsed, raw = fleet.result(measurements=figures)
        fleet.record(lease.key, parsed, fleet.judgement(), raw)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_DATABASE_URL", f"sqlite:///{Path(folder) / 'muster.db'}")
        store.engine.upgrade()
        store.nodes.add(fleet.new_node())
        lease = fleet.begin()
        took = best_of(record)
        store.engine.dispose()
    return took


def main() -> int:
    """The table, and one JSON object on the last line; 1 where a bar is missed."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    plain = json.dumps([{"metric": f"m{n}", "value": n, "labels": {"dtype": "bf16"}} for n in range(43_000)])
    yardstick = best_of(lambda: json.loads(plain))
    seconds = {"largest": best_of(lambda: parse_result(largest()))}
    seconds |= {name: best_of(functools.partial(refuse, raw)) for name, raw in HOSTILE.items()}
    seconds["stored_2000"] = storing()
    print(f"Yardstick: {yardstick * 1000:.0f} ms\n\n| what | CPU s | times the yardstick | bar |\n|---|---|---|---|")
    for name, took in seconds.items():
        print(f"| {name} | {took:.2f} | {took / yardstick:.1f} | {BARS[name]:.0f} |")
    ratios = {name: round(took / yardstick, 2) for name, took in seconds.items()}
    print(json.dumps(ratios))
    return int(any(ratio > BARS[name] for name, ratio in ratios.items()))


if __name__ == "__main__":
    sys.exit(main())
