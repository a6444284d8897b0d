"""What a training run gets from a cluster with failures: MTTF, the best checkpoint interval, expected ETTR.

Pure, and the one place for these formulae: a block's report, its page, the digest and the bench use it. Times are in
seconds, rates in failures per node and day. Sources: J. W. Young, CACM 17 (1974) 530; J. T. Daly, Future Generation
Computer Systems 22 (2006) 303; A. Kokolis et al., arXiv:2410.21680 (ETTR).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

DAY_S = 86_400.0
SIZES = (8, 64, 256, 1024, 4096, 16_384)
"""GPUs of the jobs that are forecast."""

PUBLISHED = (
    "1,024 GPUs: MTTF 7.9 h measured; 16,384: 1.8 h projected (Meta RSC-1, arXiv:2410.21680)",
    "16,384 GPUs: MTTF 3.1 h, more than 90 % of the time effective (Llama 3 405B, arXiv:2407.21783)",
    "9,600 GPUs: ETTR 97 % (ByteRobust)",
)
"""Published figures for whole jobs; their causes of failure are not only nodes."""


@dataclasses.dataclass(frozen=True)
class Input:
    """One input of a forecast. ``measured``: by this system; else it is assumed, as ``source`` says.

    ``low``, ``high``: its interval, None if it has none.
    """

    value: float
    measured: bool
    source: str
    low: float | None = None
    high: float | None = None


ASSUMED_SAVE = Input(30.0, False, "assumed, since no checkpoint was measured: blocking saves of Megatron take 7 to 13")
ASSUMED_RESTART = Input(600.0, False, "assumed, since no rank was killed: ten minutes to detect, queue, start and load")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """``save``: seconds for which a save blocks training; ``restart``: seconds from a failure to the next step;
    ``rate``: failures per node and day; ``tokens_per_s``: of one GPU in the block, None if not measured."""

    save: Input
    restart: Input
    rate: Input
    gpus_a_node: int
    tokens_per_s: float | None = None

    @property
    def measured(self) -> bool:
        """Whether no input is assumed."""
        return self.save.measured and self.restart.measured and self.rate.measured


@dataclasses.dataclass(frozen=True)
class Forecast:
    """A job of so many GPUs: time between failures, the interval to save at, and the share of time spent training.

    ``low`` and ``high``: that share at the ends of the rate's interval. ``goodput``: useful tokens per second if the
    job scales as the block did; None if that was not measured.
    """

    gpus: int
    mttf_s: float
    interval_s: float
    ettr: float
    low: float
    high: float
    goodput: float | None = None


def mttf_s(nodes: float, rate: float) -> float:
    """Mean time to failure of a job on so many nodes: 1 / (nodes · rate). Infinite where nothing fails.

    Raises ValueError for a negative rate, or no node.
    """
    if nodes <= 0 or rate < 0:
        raise ValueError(f"a job has nodes and a rate of failures that is not negative, not {nodes!r} and {rate!r}")
    return DAY_S / (nodes * rate) if rate else math.inf


def best_interval_s(save_s: float, mttf: float) -> float:
    """The interval between saves that loses least, Young–Daly: √(2 · save · MTTF), at least as long as one save.

    ``save_s``: seconds for which a save blocks training.
    """
    if save_s < 0 or mttf <= 0:
        raise ValueError(f"a save takes {save_s!r} s and a job fails every {mttf!r} s: neither can be negative")
    return max(save_s, math.sqrt(2.0 * save_s * mttf))


def ettr(save_s: float, interval_s: float, restart_s: float, mttf: float) -> float:
    """Expected share of a run's time spent training: time not spent saving, repeating lost work, or restarting.

    To first order in 1 / MTTF: each interval pays a save; each failure costs half an interval and a restart (detection,
    queue, start, load). 0 if a job cannot make progress.
    """
    overhead = save_s / interval_s if interval_s > 0 else 0.0
    lost = (interval_s / 2.0 + restart_s) / mttf if math.isfinite(mttf) else 0.0
    return max(0.0, (1.0 - lost) / (1.0 + overhead))


def forecast(inputs: Inputs, sizes: Iterable[int] = SIZES) -> tuple[Forecast, ...]:
    """One forecast for each size; where nothing fails, nothing has to be saved."""
    return tuple(_forecast(inputs, gpus) for gpus in sizes)


def _forecast(inputs: Inputs, gpus: int) -> Forecast:
    nodes, rate = max(1.0, gpus / inputs.gpus_a_node), inputs.rate
    rates = (rate.value, rate.value if rate.high is None else rate.high, rate.value if rate.low is None else rate.low)
    share, low, high = (_share(inputs, mttf_s(nodes, each)) for each in rates)
    mttf = mttf_s(nodes, rate.value)
    interval = best_interval_s(inputs.save.value, mttf) if math.isfinite(mttf) else math.inf
    trained = None if inputs.tokens_per_s is None else share * gpus * inputs.tokens_per_s
    return Forecast(gpus, mttf, interval, share, low, high, trained)


def _share(inputs: Inputs, mttf: float) -> float:
    if not math.isfinite(mttf):
        return 1.0
    save = inputs.save.value
    return ettr(save, best_interval_s(save, mttf), inputs.restart.value, mttf)
