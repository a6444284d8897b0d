"""A stage's measurements as plain rows: each (probe, metric, device, labels) once, in a fixed order.

Contradictory measurements, texts in the unit of a number, and those of GPUs that the SKU does not count, become rows
without a value, which count as not measured. Each counted GPU, and each extra one, gets a row for whether it answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from muster_criteria.devices import kind_of, natural
from muster_criteria.kinds.kind import TEXT
from muster_criteria.labels import Labels, labelled
from muster_criteria.measured import Measured, StageResult
from muster_criteria.sku_files.model import Sku

PRESENCE_PROBE = "inventory"
"""The probe that lists every device; unless it completed, there are no rows of presence."""
PRESENCE = "device_present"
"""The metric of presence rows: 1 where the device answers, else 0."""
SLOT_KNOWN = "slot_known"
"""The metric of whether a GPU's name is that of its slot: 1, or 0 where it is a guess."""
COUNTED_BY = {"cpu": "cpu_threads", "core": "cpu_cores", "gpu": "gpu_count"}
"""{kind of device: the inventory metric with their number}, where the SKU leaves the number to the machine."""
DEVICES_MAX = 4096
"""A larger count of one kind of device is ignored as impossible."""
EXTRA_MAX = 8
"""So many GPUs beyond the SKU's count get a row of presence, and so a finding each."""
NOT_COUNTED = "not counted by the SKU"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One measurement as it is judged. ``note``: the reason where there is neither value nor text. ``refused``:
    reported, but not used: contradictory, a text for a number or the reverse, or of a GPU that the SKU does not count.
    """

    probe: str
    metric: str
    device: str
    labels: Labels
    unit: str
    value: float | None
    text: str | None
    samples: int
    spread: float | None
    note: str
    refused: bool = False

    @property
    def name(self) -> str:
        """The metric with its labels, as messages write it: gemm_rate[dtype=bf16]."""
        return labelled(self.metric, self.labels)

    @property
    def key(self) -> tuple[str, str, str, Labels]:
        """Identity of the row: there is one row per key."""
        return (self.probe, self.metric, self.device, self.labels)


def rows_of(result: StageResult, sku: Sku) -> list[Row]:
    """All rows of a result, presence included, sorted by probe, metric, labels and device."""
    by_key: dict[tuple[str, str, str, Labels], Row] = {}
    again: dict[tuple[str, str, str, Labels], list[Row]] = {}
    for row in map(_row, result.measurements):
        if (first := by_key.setdefault(row.key, row)) is not row:
            again.setdefault(row.key, [first]).append(row)
    by_key |= {key: _only(group) for key, group in again.items()}
    counted = counted_gpus(result, sku) if isinstance(sku.devices.get("gpu"), int) else None
    rows = [_known(row, counted) for row in by_key.values()] + _presence(result, counted)
    if _number_of_gpus(result, sku) == 1:  # where the only GPU sits is no question, whatever its module id
        rows = [row for row in rows if row.metric != SLOT_KNOWN]
    return sorted(rows, key=lambda row: (row.probe, row.metric, row.labels, natural(row.device)))


def _row(measured: Measured) -> Row:
    row = Row(
        probe=measured.probe,
        metric=measured.metric,
        device=measured.device,
        labels=tuple(sorted(measured.labels.items())),
        unit=measured.unit,
        value=measured.value,
        text=measured.text,
        samples=measured.samples,
        spread=measured.spread,
        note=measured.note,
    )
    if (row.text if row.unit != TEXT else row.value) is None:
        return row
    return _refused(row, f"reported as a {'number' if row.text is None else 'text'}, but its unit is {row.unit}")


def _refused(row: Row, why: str) -> Row:
    return dataclasses.replace(row, value=None, text=None, spread=None, samples=0, note=why, refused=True)


def _only(group: list[Row]) -> Row:
    values = {(row.unit, row.value, row.text, row.spread, row.refused) for row in group}
    if len(values) == 1:
        return min(group, key=lambda row: (row.samples, row.note))
    note = f"reported {len(group)} times, with different values"
    unit = min(row.unit for row in group)
    return dataclasses.replace(_refused(group[0], note), unit=unit)


def counted_gpus(result: StageResult, sku: Sku) -> frozenset[str] | None:
    """Names of the GPUs that the SKU counts, or the inventory for it; None where neither does.

    They are gpu0 and those that follow, unless others answer: a machine that has a part of a board names its GPUs by
    their places on the whole board. Then those that answer are counted, and others only as far as these are too few.
    """
    number = _number_of_gpus(result, sku)
    if number is None:
        return None
    first = first_gpus(number)
    answering = _answering(result) if _inventory_completed(result) else _gpus(result.measurements)
    if answering <= first:
        return first
    named = {found.device for found in result.measurements if kind_of(found.device) == "gpu"}
    order = sorted(
        first | named, key=lambda gpu: (gpu not in answering, gpu not in named, gpu not in first, natural(gpu))
    )
    return frozenset(order[:number])


def _number_of_gpus(result: StageResult, sku: Sku) -> int | None:
    number = sku.devices.get("gpu")
    if number != "inventory":
        return number
    counts = [
        found.value
        for found in result.measurements
        if (found.metric, found.device) == (COUNTED_BY["gpu"], "node") and found.value is not None
    ]
    return int(max(counts)) if counts and all(1 <= count <= DEVICES_MAX for count in counts) else None


def first_gpus(number: int) -> frozenset[str]:
    """Names of so many GPUs in the first slots."""
    return frozenset(f"gpu{slot}" for slot in range(number))


def _known(row: Row, counted: frozenset[str] | None) -> Row:
    """The row; without its value where it is of a GPU that the SKU does not count."""
    if counted is None or row.device in counted or kind_of(row.device) != "gpu":
        return row
    return _refused(row, NOT_COUNTED)


def _presence(result: StageResult, expected: frozenset[str] | None) -> list[Row]:
    if expected is None or not _inventory_completed(result):
        return []
    answering = _answering(result) & expected
    extra = _gpus(result.measurements) - expected
    shown = sorted(extra, key=natural)[:EXTRA_MAX]
    return [
        Row(
            probe=PRESENCE_PROBE,
            metric=PRESENCE,
            device=device,
            labels=(),
            unit="bool",
            value=0.0 if device in expected - answering else 1.0,
            text=None,
            samples=1,
            spread=None,
            note="" if device in expected else NOT_COUNTED,
        )
        for device in (*expected, *shown)
    ]


def _inventory_completed(result: StageResult) -> bool:
    return any(end.probe == PRESENCE_PROBE and end.status == "completed" for end in result.probes)


def _answering(result: StageResult) -> set[str]:
    """GPUs of which the inventory reports something."""
    return _gpus(found for found in result.measurements if found.probe == PRESENCE_PROBE)


def _gpus(measurements: Iterable[Measured]) -> set[str]:
    return {
        found.device
        for found in measurements
        if kind_of(found.device) == "gpu" and (found.value is not None or found.text is not None)
    }
