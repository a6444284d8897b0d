"""Output of ``fio --output-format=json``, version 3."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from muster_node.tools.output import BadOutput, plausible

_MOST = 1e13
"""Bytes a second, operations a second or ms: beyond what any device of today reaches."""


@dataclasses.dataclass(frozen=True)
class FioRun:
    """Bytes and operations a second, and the 99th percentile of the latency in ms (None if not printed)."""

    bytes_per_s: float
    iops: float
    p99_ms: float | None


def parse_fio(text: str, pattern: str) -> FioRun:
    """The first job's side that ``pattern`` ("read", "randwrite", …) uses. Raises BadOutput."""
    begin = text.find("{")  # warnings may stand before it
    try:
        job = json.loads(text[max(begin, 0) :])["jobs"][0]
        side: dict[str, Any] = job["write" if pattern.endswith("write") else "read"]
        error, rate, iops = int(job["error"]), float(side["bw_bytes"]), float(side["iops"])
        p99_ns = side.get("clat_ns", {}).get("percentile", {}).get("99.000000")
        p99_ms = None if p99_ns is None else float(p99_ns) / 1e6
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as wrong:
        raise BadOutput("no results", "printed no result of a job") from wrong
    if error:
        raise BadOutput("failed", f"failed: {os.strerror(error)}")
    if rate == 0 or iops == 0:
        raise BadOutput("idle", "moved nothing")
    return FioRun(plausible(rate, _MOST), plausible(iops, _MOST), None if p99_ms is None else plausible(p99_ms, _MOST))
