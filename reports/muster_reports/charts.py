"""Charts of telemetry under load, as small PNG images that mail clients show.

One chart per quantity, one panel per stage, one line per device; devices with findings are drawn bold over the others.
matplotlib is imported when the first chart is drawn, and only through Figure objects, so that threads may draw at once.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from muster_criteria.devices import natural
from muster_criteria.words import number
from muster_reports.model import RunReport, Series, StageReport
from muster_reports.text import clean
from muster_reports.view import devices_at_fault

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

StageLines = tuple[StageReport, list[Series]]

log = logging.getLogger(__name__)

WIDTH_PX, HEIGHT_PX = 632, 270
FONT_PT = 10.5
"""At 100 dots per inch; a phone shows the chart at half its size: 8 pixels."""
PNG_BYTES_MAX = 60_000
LEFT_PX, RIGHT_PX, TITLE_PX, AXIS_PX, LEGEND_ROW_PX = 82, 8, 26, 60, 22
"""Room around the panels: for the vertical axis, the last label, a title, the axis below, and a row of the legend."""
LINES_MAX = 10
"""With more devices than this, the ones without findings become a band (lowest to highest) and their median."""
ABSURD = 1e12
"""Points with a larger absolute value, NaN and infinities are not drawn."""
FAULTS_MAX = 5
"""With more devices at fault than this, all are drawn alike."""

# Okabe and Ito's colours, distinct under the common colour blindnesses; dashes distinguish them without colour.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#3d3d3d")
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
FAULT_COLOURS = ("#b42318", "#0b4fa8", "#7a4b00", "#6b21a8", "#0f6b3a")
GREY, INK, FAINT = "#9aa3ad", "#1f2933", "#e4e7eb"

TITLES = {
    "temperature": "Temperature",
    "clock": "Clock",
    "power": "Power",
    "utilisation": "Utilisation",
    "load": "Load average",
    "hbm_temperature": "HBM temperature",
    "fan": "Fan",
    "inlet_temperature": "Inlet air temperature",
}
# Each tuple is one chart: the first of its series that was recorded is drawn.
CHOICES = (("temperature", "inlet_temperature"), ("clock",), ("power", "utilisation", "load"))
# Series → the metric whose limit is drawn across it.
LIMIT_METRIC = {"temperature": "temperature_max", "hbm_temperature": "hbm_temperature_max", "clock": "clock_median"}


@dataclasses.dataclass(frozen=True)
class Chart:
    """One image, its size on screen in CSS pixels, and a sentence that describes it (also its alt text)."""

    series: str
    title: str
    summary: str
    png: bytes
    width: int = WIDTH_PX
    height: int = HEIGHT_PX


@dataclasses.dataclass(frozen=True)
class Panel:
    """One stage's share of a chart. ``limit``: ("≤" or "≥", the limit in the chart's unit)."""

    stage: str
    series: tuple[Series, ...]
    limit: tuple[str, float] | None

    @property
    def length_s(self) -> float:
        """From the first to the last point of any line, in seconds."""
        return max(line.seconds[-1] for line in self.series) - min(line.seconds[0] for line in self.series)


def draw_charts(report: RunReport) -> tuple[Chart, ...]:
    """The charts of a run, temperature first; empty where no telemetry was recorded.

    A chart that cannot be drawn is logged and left out: a report without a picture is better than none.
    """
    at_fault = {clean(device, 16) for device in devices_at_fault(report)}
    # Intake's curves show an idle machine.
    loaded = [stage for stage in report.stages if stage.judgement.stage != "intake"]
    stages = [(stage, _usable(stage)) for stage in loaded]
    charts = []
    for series in _chosen(stages, report):
        panels = _panels(stages, series)
        try:
            png = png_of(_figure(panels, at_fault))
        except Exception:  # no telemetry may prevent the report
            log.exception("the %s chart of %s could not be drawn", series, clean(report.run_id))
            continue
        charts.append(Chart(series, _title(panels), _summary(panels, at_fault), png))
    return tuple(charts)


def _chosen(stages: Sequence[StageLines], report: RunReport) -> list[str]:
    recorded = {line.series for _, lines in stages for line in lines}
    chosen = [next((name for name in choice if name in recorded), None) for choice in CHOICES]
    metrics = {finding.metric for finding in report.findings}
    wanted = [("hbm_temperature", "hbm_temperature_max"), ("fan", "fan_max")]
    extra = [name for name, metric in wanted if name in recorded and metric in metrics]
    return [name for name in chosen if name] + extra


def _usable(stage: StageReport) -> list[Series]:
    """The stage's known series with plausible points only, in the order of their devices."""
    lines = [line for line in map(_plausible, (s for s in stage.telemetry if s.series in TITLES)) if line]
    return sorted(lines, key=lambda line: natural(line.device))


def _plausible(line: Series) -> Series | None:
    """The points that can be drawn, in order of time; None if fewer than two are left."""
    points = zip(line.seconds, line.values, strict=False)
    kept = sorted((each for each in points if all(abs(number) < ABSURD for number in each)), key=lambda each: each[0])
    if len(kept) < 2:
        return None
    seconds, values = zip(*kept, strict=True)
    device = clean(line.device, 16).lstrip("_") or "?"  # matplotlib hides legend entries that open with "_"
    return Series(line.series, device, clean(line.unit, 16), seconds, values)


def _panels(stages: Sequence[StageLines], series: str) -> list[Panel]:
    panels = []
    for stage, usable in stages:
        lines = tuple(line for line in usable if line.series == series)
        if lines:
            panels.append(Panel(clean(stage.judgement.stage, 24), lines, _limit(stage, series)))
    return panels


def _limit(stage: StageReport, series: str) -> tuple[str, float] | None:
    """The limit that all devices of the stage share for this series, if there is one."""
    rows = [row for row in stage.judgement.observations if row.metric == LIMIT_METRIC.get(series)]
    for sign, limits in (("≤", {row.ceiling for row in rows}), ("≥", {row.floor for row in rows})):
        if len(limits) == 1 and (limit := limits.pop()) is not None:
            return sign, limit
    return None


def _title(panels: list[Panel]) -> str:
    line = panels[0].series[0]
    return f"{TITLES[line.series]} ({line.unit})" if line.unit not in ("", "count") else TITLES[line.series]


def _summary(panels: list[Panel], at_fault: set[str]) -> str:
    """Returns the chart's content as text, for readers who do not see it."""
    lines = [line for panel in panels for line in panel.series]
    unit = "" if lines[0].unit == "count" else f" {lines[0].unit}"
    lowest = min((min(line.values), line.device) for line in lines)
    highest = max((max(line.values), line.device) for line in lines)
    middle = statistics.median(statistics.median(line.values) for line in lines)
    text = f"{TITLES[lines[0].series]}: median {number(round(middle, 1))}{unit}, "
    text += f"lowest {number(round(lowest[0], 1))} ({lowest[1]}), highest {number(round(highest[0], 1))} ({highest[1]})"
    marked = sorted({line.device for line in lines} & at_fault, key=natural)
    return f"{text}; with findings: {', '.join(marked[:FAULTS_MAX])}" if marked else text


def _figure(panels: list[Panel], at_fault: set[str]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_PX / 100, HEIGHT_PX / 100), dpi=100, facecolor="white")
    longest = sum(math.sqrt(panel.length_s) for panel in panels) or 1.0
    ratios = [max(math.sqrt(panel.length_s) / longest, 0.2) for panel in panels]
    # Placed by hand: a layout engine measures every label twice, which takes longer than drawing them.
    grid = figure.subplots(1, len(panels), sharey=True, squeeze=False, gridspec_kw={"width_ratios": ratios})
    handles: dict[str, Any] = {}
    faults = at_fault & {line.device for panel in panels for line in panel.series}
    marked = sorted(faults, key=natural) if len(faults) <= FAULTS_MAX else []
    for axes, panel in zip(grid[0], panels, strict=True):
        handles.update(_draw_panel(axes, panel, marked))
    unit = panels[0].series[0].unit
    grid[0][0].set_ylabel("" if unit == "count" else unit, fontsize=FONT_PT, color=INK, parse_math=False)
    _draw_limits(grid[0], panels)
    ordered = sorted(handles, key=lambda name: (name not in marked, natural(name)))
    columns = min(len(ordered), 5 if len(ordered) <= 5 else 4)
    legend = figure.legend([handles[name] for name in ordered], ordered, loc="lower center", frameon=False,
                           ncols=columns, fontsize=FONT_PT, handlelength=1.9, columnspacing=1.1, handletextpad=0.5,
                           labelcolor=INK)  # fmt: skip
    for label in legend.get_texts():
        label.set_parse_math(False)
    rows = -(-len(ordered) // columns)
    bottom = min((AXIS_PX + rows * LEGEND_ROW_PX) / HEIGHT_PX, 0.7)  # a long legend covers the axis, not the lines
    right, top = 1 - RIGHT_PX / WIDTH_PX, 1 - TITLE_PX / HEIGHT_PX
    figure.subplots_adjust(LEFT_PX / WIDTH_PX, bottom, right, top, wspace=0.08)
    return figure


def _draw_panel(axes: Axes, panel: Panel, marked: list[str]) -> dict[str, Line2D]:
    """Draw one stage; returns the legend's handles by label."""
    divisor, unit = _time_unit(panel.length_s)
    axes.set_title(panel.stage, fontsize=FONT_PT, color=INK, loc="left", parse_math=False)
    axes.set_xlabel(unit, fontsize=FONT_PT, color=INK)
    axes.tick_params(labelsize=FONT_PT, colors=INK, length=3)
    axes.grid(True, color=FAINT, linewidth=0.8)
    axes.locator_params(axis="x", nbins=4)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(GREY)
    plain = [line for line in panel.series if line.device not in marked]
    handles: dict[str, Line2D] = {}
    if len(plain) > LINES_MAX:
        handles |= _draw_band(axes, plain, divisor)
    elif marked:
        for line in plain:
            (drawn,) = axes.plot([s / divisor for s in line.seconds], line.values, color=GREY, linewidth=1.0, alpha=0.8)
            handles[f"{len(plain)} others"] = drawn
    else:
        for place, line in enumerate(plain):
            colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
            x = [s / divisor for s in line.seconds]
            (drawn,) = axes.plot(x, line.values, linewidth=1.2, color=colour, linestyle=dash)
            handles[line.device] = drawn
    for line in panel.series:
        if line.device in marked:
            place = marked.index(line.device)
            (drawn,) = axes.plot([s / divisor for s in line.seconds], line.values, linewidth=2.4, zorder=5,
                                 color=FAULT_COLOURS[place], linestyle=DASHES[place % len(DASHES)])  # fmt: skip
            handles[line.device] = drawn
    return handles


def _draw_band(axes: Axes, lines: list[Series], divisor: float) -> dict[str, Line2D]:
    """Lowest, median and highest of many devices over time, in as many steps as the shortest of them has points."""
    start, end = min(line.seconds[0] for line in lines), max(line.seconds[-1] for line in lines)
    steps = max(2, min(60, min(len(line.seconds) for line in lines)))
    width = (end - start) / steps or 1.0
    bins: list[list[float]] = [[] for _ in range(steps)]
    for line in lines:
        for second, value in zip(line.seconds, line.values, strict=True):
            bins[min(int((second - start) / width), steps - 1)].append(value)
    filled = [((start + (place + 0.5) * width) / divisor, values) for place, values in enumerate(bins) if values]
    x = [middle for middle, _ in filled]
    axes.fill_between(x, [min(v) for _, v in filled], [max(v) for _, v in filled], color=GREY, alpha=0.35, linewidth=0)
    (drawn,) = axes.plot(x, [statistics.median(v) for _, v in filled], color="#52606d", linewidth=1.5)
    return {f"median and range of {len(lines)}": drawn}


def _draw_limits(row: Sequence[Axes], panels: list[Panel]) -> None:
    """A dashed line at each stage's limit, unless it lies so far off that it would flatten the curves."""
    values = [value for panel in panels for line in panel.series for value in line.values]
    low, high = min(values), max(values)
    room = max(high - low, 0.1 * abs(high))
    for axes, panel in zip(row, panels, strict=True):
        if panel.limit and low - room <= panel.limit[1] <= high + room:
            sign, limit = panel.limit
            axes.axhline(limit, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
            axes.annotate(f"{sign} {number(limit)}", (0.99, limit), xycoords=("axes fraction", "data"), ha="right",
                          va="center", fontsize=FONT_PT, color=INK, annotation_clip=False, zorder=6,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip


def _time_unit(length_s: float) -> tuple[float, str]:
    """Returns (divisor of seconds, axis label)."""
    if length_s < 180:
        return 1.0, "seconds"
    return (60.0, "minutes") if length_s < 3 * 3600 else (3600.0, "hours")


def png_of(figure: Figure) -> bytes:
    """The figure as PNG of at most PNG_BYTES_MAX, at twice the screen's density if that fits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    for dpi in (200, 150, 100):
        # Not by savefig, which lays out and draws the figure twice, and packs a picture that is unpacked again here.
        figure.set_dpi(dpi)
        canvas.draw()  # type: ignore[no-untyped-call]
        pixels: memoryview = canvas.buffer_rgba()  # type: ignore[no-untyped-call]
        drawn = Image.frombytes("RGBA", canvas.get_width_height(), pixels)
        small = io.BytesIO()
        # Sixty-four colours are enough for lines on white and halve the size; other methods take ten times as long.
        drawn.convert("RGB").quantize(64, method=Image.Quantize.FASTOCTREE).save(small, format="PNG", optimize=True)
        if small.tell() <= PNG_BYTES_MAX:
            return small.getvalue()
    raise ValueError(f"the chart takes {small.tell()} bytes even at screen density")
