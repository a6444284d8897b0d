"""A pair of nodes in one process: both sides of the probe pair_rails, each in a thread, on loopback addresses."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from muster_demo.services import free_port
from muster_node.hardware.host.machine import HostHardware
from muster_node.probe import Context, resolve_params
from muster_node.probes.pair_rails import PairRails

Row = dict[str, Any]
QUICK = {"seconds": 0.2, "warmup_s": 0.05, "streams": 2, "connect_s": 1.0, "join_timeout_s": 10.0}


def rails(count: int, side: int) -> list[dict[str, str]]:
    """Rail r between 127.(10 + r).0.1 and 127.(10 + r).0.2: loopback has them all."""
    ends = [(f"127.{10 + rail}.0.1", f"127.{10 + rail}.0.2") for rail in range(count)]
    return [{"name": f"r{at}", "own": pair[side], "other": pair[1 - side]} for at, pair in enumerate(ends)]


def sides(count: int = 2, **changed: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of both nodes."""
    shared = {"address": "127.0.0.1", "ports": [free_port()], "session": "a secret of the test", **QUICK, **changed}
    return (
        {**shared, "role": "serve", "partner": "b", "rails": rails(count, 0)},
        {**shared, "role": "join", "partner": "a", "rails": rails(count, 1)},
    )


def run(params: dict[str, Any], scratch: Path, rows: list[Row]) -> None:
    def emit(metric: str, device: str, **fields: Any) -> None:
        assert metric in PairRails.metrics
        rows.append({"metric": metric, "device": device, **fields})

    scratch.mkdir(parents=True, exist_ok=True)
    context = Context(HostHardware(), resolve_params(PairRails, params), 5, scratch, emit, lambda sentence: None)
    PairRails().run(context)


def both(given: tuple[dict[str, Any], dict[str, Any]], folder: Path) -> tuple[list[Row], list[Row]]:
    """What both nodes measured."""
    found: tuple[list[Row], list[Row]] = ([], [])
    trouble: list[BaseException] = []

    def one(side: int) -> None:
        try:
            run(given[side], folder / str(side), found[side])
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=one, args=(side,)) for side in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert trouble == []
    return found


def figures(rows: list[Row], metric: str, mode: str = "alone") -> dict[tuple[str, int], Any]:
    """(Rail, variant) → value."""
    return {
        (row["labels"]["rail"], row["labels"].get("variant", 0)): row.get("value")
        for row in rows
        if row["metric"] == metric and row["labels"].get("mode", mode) == mode
    }
