"""Charts: small, honest about gaps, and with the faulty device standing out."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import subprocess
import sys

import pytest
from PIL import Image

from muster_reports import charts
from muster_reports.model import RunReport, Series

Samples = dict[str, RunReport]


def with_telemetry(report: RunReport, lines: tuple[Series, ...]) -> RunReport:
    return dataclasses.replace(report, stages=(dataclasses.replace(report.stages[1], telemetry=lines),))


def ramp(series: str, device: str, unit: str, length: int, offset: float = 0.0) -> Series:
    return Series(series, device, unit, tuple(map(float, range(length))), tuple(offset + n % 50 for n in range(length)))


@pytest.fixture(scope="module")
def hot(samples: Samples) -> tuple[charts.Chart, ...]:
    return charts.draw_charts(samples["hot_gpu"])


def test_temperature_clock_and_power_are_drawn_small_and_sharp(hot: tuple[charts.Chart, ...]) -> None:
    assert [chart.title for chart in hot] == ["Temperature (°C)", "Clock (MHz)", "Power (W)"]
    for chart in hot:
        assert len(chart.png) <= 60_000
        image = Image.open(io.BytesIO(chart.png))
        assert image.size == (2 * chart.width, 2 * chart.height)


def test_the_alt_text_says_what_the_picture_shows(hot: tuple[charts.Chart, ...]) -> None:
    assert hot[0].summary.startswith("Temperature: median ")
    assert "highest 87" in hot[0].summary
    assert hot[0].summary.endswith("(gpu3); with findings: gpu3")


def panels(report: RunReport, series: str) -> list[charts.Panel]:
    return charts._panels([(stage, charts._usable(stage)) for stage in report.stages], series)


def drawn(report: RunReport, series: str, at_fault: set[str]) -> tuple[dict[str, float], list[str]]:
    """Line widths by colour of the first panel, and the legend's texts."""
    figure = charts._figure(panels(report, series), at_fault)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    return {str(line.get_color()): line.get_linewidth() for line in figure.axes[0].get_lines()}, legend


def test_the_device_with_findings_is_bold_among_grey_ones(samples: Samples) -> None:
    widths, legend = drawn(samples["hot_gpu"], "temperature", {"gpu3"})
    assert legend == ["gpu3", "7 others"]
    assert widths[charts.FAULT_COLOURS[0]] > 2 * widths[charts.GREY]


def test_without_findings_all_eight_are_distinguished(samples: Samples) -> None:
    widths, legend = drawn(samples["long_lists"], "temperature", {f"gpu{n}" for n in range(8)})
    assert legend == [f"gpu{n}" for n in range(8)]
    assert len(widths) == 8


def test_a_hundred_cores_become_a_band_with_the_faulty_one_over_it(samples: Samples) -> None:
    lines = tuple(ramp("temperature", f"cpu{n}", "°C", 60, n / 10) for n in range(128))
    report = with_telemetry(samples["cpu_pass"], lines)
    assert drawn(report, "temperature", {"cpu7"})[1] == ["cpu7", "median and range of 127"]
    assert len(charts.draw_charts(report)[0].png) <= 60_000


def test_the_limit_is_drawn_where_all_devices_share_it(samples: Samples) -> None:
    limits = {panel.stage: panel.limit for panel in panels(samples["hot_gpu"], "temperature")}
    assert limits == {"burn_in": None, "performance": None, "thermal": ("≤", 80.0)}


def test_no_telemetry_no_chart(samples: Samples) -> None:
    assert charts.draw_charts(samples["empty"]) == ()
    assert charts.draw_charts(samples["missing_gpu"]) == ()


def test_what_a_node_makes_up_neither_breaks_nor_enters_a_chart(samples: Samples) -> None:
    drawn_charts = charts.draw_charts(samples["hostile"])
    assert [chart.series for chart in drawn_charts] == ["temperature", "clock", "power"]
    huge = Series("temperature", "gpu0", "°C", (0.0, 1.0, 2.0), (1e308, -1e308, 50.0))
    assert charts.draw_charts(with_telemetry(samples["cpu_pass"], (huge,))) == ()
    formula = Series("temperature", "_$\\frac{", "$^", (0.0, 1.0), (50.0, 51.0))
    assert drawn(with_telemetry(samples["cpu_pass"], (formula,)), "temperature", set())[1] == ["$\\frac{"]
    assert len(charts.draw_charts(with_telemetry(samples["cpu_pass"], (formula,)))) == 1


def test_a_chart_that_cannot_be_drawn_is_left_out(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(figure: object) -> bytes:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(charts, "png_of", refuse)
    assert charts.draw_charts(samples["hot_gpu"]) == ()


def test_threads_draw_the_same_pictures(samples: Samples, hot: tuple[charts.Chart, ...]) -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for again in pool.map(charts.draw_charts, [samples["hot_gpu"]] * 3):
            assert [chart.png for chart in again] == [chart.png for chart in hot]


def test_importing_the_reports_imports_no_plotting_library() -> None:
    code = (
        "import sys, muster_reports.mail, muster_reports.page;"
        "print(sorted({'matplotlib', 'numpy', 'PIL'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_gui_side_of_the_plotting_library_stays_out(samples: Samples, hot: tuple[charts.Chart, ...]) -> None:
    assert hot
    assert "matplotlib.pyplot" not in sys.modules


def test_an_idle_machines_curves_are_not_drawn(samples: Samples) -> None:
    report = samples["cpu_pass"]
    intake = next(stage for stage in report.stages if stage.judgement.stage == "intake")
    lines = (ramp("temperature", "cpu0", "°C", 60),)
    only_intake = dataclasses.replace(report, stages=(dataclasses.replace(intake, telemetry=lines),))
    assert charts.draw_charts(only_intake) == ()
