"""The training of a block as texts, for mail, page and the block's page."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

from muster_criteria.cluster.acceptance.values import Rank, Training
from muster_criteria.cluster.goodput import Forecast, Input, Inputs
from muster_criteria.words import duration, figure
from muster_reports.limits import Limits, cut


@dataclasses.dataclass(frozen=True)
class RankView:
    """One rank. ``bars``: what parts of the longest step are compute and exposed communication, in %."""

    name: str
    compute: str
    exposed: str
    input: str
    checkpoint: str
    bars: tuple[int, int]
    straggler: bool
    why: str


class ForecastView(NamedTuple):
    """One job."""

    gpus: str
    mttf: str
    interval: str
    ettr: str
    goodput: str


@dataclasses.dataclass(frozen=True)
class TrainingView:
    """The training with its lists cut, and what of it is shown as texts. ``more_ranks``: how many are not shown."""

    training: Training
    ranks: tuple[RankView, ...]
    more_ranks: int
    inputs: tuple[str, ...]
    forecast: tuple[ForecastView, ...]


def of(training: Training, limits: Limits) -> TrainingView:
    """The view, with as many ranks as the limits allow."""
    ranks, more = cut(training.ranks, limits.rows)
    longest = max((sum(_parts(each)) for each in training.ranks), default=0.0)
    shown = dataclasses.replace(
        training,
        stragglers=cut(training.stragglers, limits.items)[0],
        published=cut(training.published, limits.items)[0],
        not_covered=cut(training.not_covered, limits.items)[0],
        differences=cut(training.differences, limits.items)[0],
    )
    texts, forecast = inputs_text(training.inputs), tuple(map(forecast_view, training.forecast))
    return TrainingView(shown, tuple(_rank(each, longest) for each in ranks), more, texts, forecast)


def inputs_text(inputs: Inputs) -> tuple[str, ...]:
    """What a forecast is made from, a sentence each, and whether it was measured."""
    rate = inputs.rate
    between = "" if rate.low is None or rate.high is None else f" (90 %: {1e3 * rate.low:.2f} to {1e3 * rate.high:.2f})"
    return (
        _input("a save holds the training up for", inputs.save, figure(inputs.save.value, "s")),
        _input("from a failure to the next step", inputs.restart, duration(inputs.restart.value)),
        _input("failures of 1,000 nodes a day", rate, f"{1e3 * rate.value:.2f}{between}"),
    )


def _input(what: str, given: Input, value: str) -> str:
    return f"{what}: {value} – {'measured' if given.measured else 'not measured'}: {given.source}"


def forecast_view(each: Forecast) -> ForecastView:
    """One row of the table of jobs."""
    spread = f" ({100 * each.low:.1f}–{100 * each.high:.1f})" if each.high - each.low >= 0.0005 else ""
    return ForecastView(
        f"{each.gpus:,}",
        duration(each.mttf_s) if math.isfinite(each.mttf_s) else "no failure",
        duration(each.interval_s) if math.isfinite(each.interval_s) else "never",
        f"{100 * each.ettr:.1f} %{spread}",
        _tokens(each.goodput),
    )


def _tokens(rate: float | None) -> str:
    """ "1.18 M tokens/s"; "–": unknown."""
    if rate is None:
        return "–"
    for scale, unit in ((1e9, " G"), (1e6, " M")):
        if rate >= scale:
            return f"{rate / scale:.3g}{unit} tokens/s"
    return f"{rate:,.0f} tokens/s"


def _parts(rank: Rank) -> tuple[float, float]:
    return rank.compute or 0.0, rank.exposed or 0.0


def _rank(rank: Rank, longest: float) -> RankView:
    compute, exposed = (round(100 * part / longest) if longest else 0 for part in _parts(rank))
    return RankView(
        f"{rank.node} {rank.device}", _seconds(rank.compute), _seconds(rank.exposed), _seconds(rank.input),
        _seconds(rank.checkpoint), (compute, exposed), rank.straggler, rank.why,
    )  # fmt: skip


def _seconds(value: float | None) -> str:
    return "–" if value is None else figure(value, "s", digits=3)
