"""A node's telemetry file, thinned for charts. Seeds are files of a few devices; some inputs unpack to far more."""

from __future__ import annotations

import functools
import gzip
import json
import random

from muster.store.output.charts import CHARTED, DEVICES, POINTS, chart_series
from tests.bench.fuzz import mutate
from tests.bench.fuzz.edge import Edge, Sample, Taken

BOMB_BYTES = 64 * 2**20


def _rows(rng: random.Random) -> list[dict[str, object]]:
    return [
        {"t": 1e9 + second, "series": series, "device": f"gpu{gpu}", "value": 40.0 + rng.random()}
        for second in range(rng.choice((2, 40)))
        for gpu in range(4)
        for series in ("temperature", "power")
    ]


@functools.cache
def _bombs() -> tuple[bytes, ...]:
    """Files of some kilobytes: one endless line, millions of rows, and as many devices as lines."""
    row = b'{"t":1,"series":"power","device":"gpu0","value":1}\n'
    many = b"".join(b'{"t":1,"series":"power","device":"gpu%d","value":1}\n' % number for number in range(300_000))
    return gzip.compress(b"[" * BOMB_BYTES), gzip.compress(row * (BOMB_BYTES // 100 // len(row))), gzip.compress(many)


def _draw(rng: random.Random) -> Sample:
    if rng.random() < 0.002:
        return Sample(rng.choice(_bombs()), large=True)
    rows = mutate.document(rng, _rows(rng), times=6)
    lines = [json.dumps(row) for row in rows] if isinstance(rows, list) else [json.dumps(rows)]
    packed = gzip.compress("\n".join(lines).encode())
    return Sample(mutate.raw(rng, packed) if rng.random() < 0.3 else packed)


def _read(sample: Sample) -> Taken:
    charts = chart_series(sample.data)
    points = max((len(chart.values) for chart in charts), default=0)
    over = len(charts) > len(CHARTED) * DEVICES or points > POINTS
    return Taken([chart.device for chart in charts], oversize=f"{len(charts)} series, {points} points" if over else "")


EDGE = Edge(_draw, _read, (), peak_bytes=64 * 2**20)
