"""What a training will get of a cluster that fails now and then: MTTF, the best checkpoint interval, expected ETTR.

Pure. All times are in seconds, rates in failures a node and day. Sources: J. W. Young, CACM 17 (1974) 530; J. T. Daly,
Future Generation Computer Systems 22 (2006) 303; A. Kokolis et al., arXiv:2410.21680 (ETTR, and the published rates).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

DAY_S = 86_400.0
SIZES = (8, 64, 256, 512, 1024, 2048, 4096, 8192, 16_384)
"""GPUs of the jobs that are forecast."""

PUBLISHED_RATES = {
    "Meta RSC-1 (arXiv:2410.21680)": 6.50e-3,
    "Meta RSC-2 (arXiv:2410.21680)": 2.34e-3,
    "Llama 3 405B: 419 interruptions of 2,048 nodes in 54 days (arXiv:2407.21783)": 419 / (2048 * 54),
}
"""Failures a node and day of public clusters, to stand beside a fleet's own."""


@dataclasses.dataclass(frozen=True)
class Forecast:
    """A job of so many GPUs: time between its failures, the interval to save at, and the share of time that trains."""

    gpus: int
    mttf_s: float
    interval_s: float
    ettr: float


def mttf_s(nodes: float, rate: float) -> float:
    """Mean time to failure of a job on so many nodes: 1 / (nodes · rate). Infinite where nothing fails.

    Raises ValueError for a negative rate, or no node.
    """
    if nodes <= 0 or rate < 0:
        raise ValueError(f"a job has nodes and a rate of failures that is not negative, not {nodes!r} and {rate!r}")
    return DAY_S / (nodes * rate) if rate else math.inf


def best_interval_s(save_s: float, mttf: float) -> float:
    """The interval between saves that loses least, Young–Daly: √(2 · save · MTTF), at least one save long.

    ``save_s``: seconds for which a save holds the training up.
    """
    if save_s < 0 or mttf <= 0:
        raise ValueError(f"a save takes {save_s!r} s and a job fails every {mttf!r} s: neither can be negative")
    return max(save_s, math.sqrt(2.0 * save_s * mttf))


def ettr(save_s: float, interval_s: float, restart_s: float, mttf: float) -> float:
    """Expected share of a run's time that trains: what is neither saved, lost, nor spent on restarting.

    To first order in 1 / MTTF: each interval pays a save; each failure costs half an interval and a restart (detection,
    queue, start, load). 0 where a job cannot get ahead.
    """
    overhead = save_s / interval_s if interval_s > 0 else 0.0
    lost = (interval_s / 2.0 + restart_s) / mttf if math.isfinite(mttf) else 0.0
    return max(0.0, (1.0 - lost) / (1.0 + overhead))


def forecast(
    save_s: float, restart_s: float, rate: float, *, gpus_a_node: int = 8, sizes: Iterable[int] = SIZES
) -> Iterator[Forecast]:
    """One forecast for each size; where nothing fails, nothing has to be saved."""
    for gpus in sizes:
        mttf = mttf_s(max(1.0, gpus / gpus_a_node), rate)
        if not math.isfinite(mttf):
            yield Forecast(gpus, mttf, math.inf, 1.0)
            continue
        interval = best_interval_s(save_s, mttf)
        yield Forecast(gpus, mttf, interval, ettr(save_s, interval, restart_s, mttf))
