"""Output of ``fio --output-format=json``, versions 2 and 3."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from muster_node.tools.output import BadOutput, plausible

_KIB = 1024
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
        error, rate, iops = int(job["error"]), _bytes_per_s(side), float(side["iops"])
        p99 = _p99_ms(side)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as wrong:
        raise BadOutput("no results", "printed no result of a job") from wrong
    if error:
        raise BadOutput("failed", f"failed: {os.strerror(error)}")
    if rate == 0 or iops == 0:
        raise BadOutput("idle", "moved nothing")
    return FioRun(plausible(rate, _MOST), plausible(iops, _MOST), None if p99 is None else plausible(p99, _MOST))


def _bytes_per_s(side: dict[str, Any]) -> float:
    """Version 3 prints bytes; version 2 has only ``bw``, in KiB a second."""
    return float(side["bw_bytes"]) if "bw_bytes" in side else _KIB * float(side["bw"])


def _p99_ms(side: dict[str, Any]) -> float | None:
    """Version 3 prints nanoseconds, version 2 microseconds."""
    for key, per_ms in (("clat_ns", 1e6), ("clat", 1e3)):
        p99 = side.get(key, {}).get("percentile", {}).get("99.000000")
        if p99 is not None:
            return float(p99) / per_ms
    return None
