"""Physical peaks of a SKU's metrics, derived from its file: ceilings beyond which a value is invalid.

They come from the peaks of its data sheet and its figures, the generation and width of its PCIe link, its NVLinks, and,
for rates per clock, the peaks of the formats (docs/science.md#physical-peaks).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence

from muster_criteria.model import Action, FaultClass
from muster_criteria.sku_files.figures import Figure, Peaks
from muster_criteria.sku_files.limits import Limit

MEANING = "is faster than it can be"
BURNT = "bf16"
"""The format of ``gpu_burn``, whose rate has no label for it."""
PCIE_LANE = {3: 8 * 128 / 130 / 8, 4: 16 * 128 / 130 / 8, 5: 32 * 128 / 130 / 8}
"""GB/s of one lane in one direction by generation: GT/s, less its 128b/130b coding (PCI Express base specification)."""
NVLINK_LINE = 26.562 / 25.0
"""Line rate of an NVLink as a multiple of its data-sheet rate: NVML reports 26,562 MB/s for H100's 25 GB/s and 53,125
for GB200's 50 (NVIDIA Health Validation). No copy exceeds the line rate."""
DIRECTIONS = {"h2d": 1, "d2h": 1, "both": 2}
"""{label: directions of the link that a copy uses}; both at once are reported as their sum."""


def peaks_of(
    peaks: Sequence[Peaks], figures: Sequence[Figure], inventory: Sequence[Limit], limits: Sequence[Limit]
) -> tuple[Limit, ...]:
    """The ceilings of kind ``invalid`` that follow from a SKU's entries, except those that it states itself."""
    written = [limit for limit in limits if limit.key == "ceiling" and limit.breach == "invalid"]
    rates = (*_of_data_sheet(peaks), *_of_figures(figures))
    found: list[Limit] = []
    for peak in (*rates, *_of_pcie(inventory), *_of_nvlink(inventory), *_of_clocks((*written, *rates))):
        if not any(_implies(other, peak) for other in (*written, *found)):
            found.append(peak)
    return tuple(found)


def _implies(one: Limit, other: Limit) -> bool:
    """Returns whether ``one`` covers all measurements of ``other`` with a bound at least as tight."""
    if one.number is None or other.number is None or one.unit != other.unit or one.stages:
        return False
    return one.applies_to(other.metric, other.device, other.labels) and one.number <= other.number


def _of_data_sheet(peaks: Sequence[Peaks]) -> Iterator[Limit]:
    for each in peaks:
        source = f"physical peak: {each.source}"
        for dtype, rate in each.gemm_rate.items():
            yield _ceiling("gemm_rate", "gpu", "TFLOPS", rate, source, each.date, {"dtype": dtype})
            if dtype == BURNT:
                yield _ceiling("burn_rate", "gpu", "TFLOPS", rate, source, each.date)
        if each.memory_bandwidth:
            yield _ceiling("memory_bandwidth", "gpu", "GB/s", each.memory_bandwidth, source, each.date)


def _of_figures(figures: Sequence[Figure]) -> Iterator[Limit]:
    for figure in figures:
        if figure.peak is not None:
            source = f"physical peak: {figure.source}"
            yield _ceiling(figure.metric, figure.device, figure.unit, figure.peak, source, figure.date, figure.labels)


def _of_pcie(inventory: Sequence[Limit]) -> Iterator[Limit]:
    generation, width = _counted(inventory, "pcie_generation_max"), _counted(inventory, "pcie_width")
    lane = PCIE_LANE.get(int(generation.number or 0)) if generation else None
    if generation is None or width is None or lane is None:
        return
    for metric in ("pcie_bandwidth", "pcie_bandwidth_together"):
        for direction, ways in DIRECTIONS.items():
            source = f"physical peak: PCIe generation {generation.number:g}, {width.number:g} lanes ({width.source})"
            most = ways * lane * float(width.number or 0)
            yield _ceiling(metric, "gpu", "GB/s", most, source, width.date, {"direction": direction})


def _of_nvlink(inventory: Sequence[Limit]) -> Iterator[Limit]:
    """A copy from one peer uses at most all of a GPU's links."""
    links = _counted(inventory, "nvlink_active")
    speed = next((each for each in inventory if (each.metric, each.key) == ("nvlink_speed", "at_least")), None)
    if links is None or speed is None or not links.number or not speed.number:
        return
    for metric in ("peer_bandwidth", "peer_pair_bandwidth"):
        line = NVLINK_LINE * speed.number
        source = f"physical peak: {links.number:g} NVLinks of {line:.4g} GB/s in each direction ({speed.source})"
        yield _ceiling(metric, "gpu", "GB/s", links.number * line, source, speed.date)


def _of_clocks(peaks: Sequence[Limit]) -> Iterator[Limit]:
    """Work per clock of each format from that of one: at the same clock, their ratio is that of their peak rates.

    If a format has several rates, the first counts.
    """
    formats = [each for each in peaks if set(each.labels) == {"dtype"}]
    rates = {each.labels["dtype"]: each for each in reversed(formats) if each.metric == "gemm_rate"}
    for known in (each for each in formats if each.metric == "gemm_rate_per_clock"):
        base = rates.get(known.labels["dtype"])
        if base is None or not base.number or not known.number:
            continue
        for dtype, rate in rates.items():
            if rate.number and rate.device == known.device:
                most = known.number * rate.number / base.number
                source = f"{known.source}; by the peak of {dtype}: {rate.source}"
                yield _ceiling(known.metric, known.device, known.unit, most, source, known.date, {"dtype": dtype})


def _counted(inventory: Sequence[Limit], metric: str) -> Limit | None:
    counts = (each for each in inventory if each.metric == metric and each.key in ("equals", "at_least"))
    return next((each for each in counts if each.number), None)


def _ceiling(
    metric: str, device: str, unit: str, most: float, source: str, date: datetime.date, labels: Mapping[str, str] = {}
) -> Limit:
    return Limit.model_validate({
        "metric": metric, "device": device, "labels": labels, "unit": unit, "ceiling": most, "breach": "invalid",
        "fault": FaultClass.SOFTWARE, "action": Action.FIX_SOFTWARE, "meaning": MEANING, "source": source, "date": date,
    })  # fmt: skip
