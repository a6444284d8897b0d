"""A stage's measurements as plain rows: each (probe, metric, device, labels) once, in an order that is always the same.

What contradicts itself is kept as a row without a value, so that it counts as not measured; and each device that the
SKU counts gets a row that says whether it answers.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from muster_criteria.measured import Measured, StageResult
from muster_criteria.sku_files.limits import kind_of, labelled
from muster_criteria.sku_files.model import Sku

PRESENCE_PROBE = "inventory"
"""The probe that names every device that answers; where it did not complete, nothing is said of presence."""
PRESENCE = "device_present"
"""The metric of the rows that say whether a device answers: 1 or 0."""

Labels = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement as it is judged. ``note`` says why there is neither value nor text, where there is none."""

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
    """Reported, but not to be believed: it contradicts itself."""

    @property
    def name(self) -> str:
        """The metric with its labels, as messages write it: gemm_rate[dtype=bf16]."""
        return labelled(self.metric, dict(self.labels))

    @property
    def key(self) -> tuple[str, str, str, Labels]:
        """What there may be only one of."""
        return (self.probe, self.metric, self.device, self.labels)


def rows_of(result: StageResult, sku: Sku) -> list[Row]:
    """All rows of a result, presence included, sorted by probe, metric, labels and device."""
    by_key: dict[tuple[str, str, str, Labels], list[Row]] = {}
    for row in map(_row, result.measurements):
        by_key.setdefault(row.key, []).append(row)
    rows = [_only(group) for group in by_key.values()] + _presence(result, sku)
    return sorted(rows, key=lambda row: (row.probe, row.metric, row.labels, natural(row.device)))


def natural(device: str) -> tuple[str, int, str]:
    """Sort key that puts gpu2 before gpu10."""
    kind = kind_of(device)
    number = re.match(r"\d+", device[len(kind) :])
    return (kind, int(number.group()) if number else -1, device)


def _row(measured: Measured) -> Row:
    return Row(
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


def _only(group: list[Row]) -> Row:
    said = {(row.unit, row.value, row.text, row.spread) for row in group}
    if len(said) == 1:
        return min(group, key=lambda row: (row.samples, row.note))
    note = f"reported {len(group)} times, with different values"
    unit = min(row.unit for row in group)
    bare = dataclasses.replace(group[0], value=None, text=None, spread=None, samples=0)
    return dataclasses.replace(bare, unit=unit, note=note, refused=True)


def _presence(result: StageResult, sku: Sku) -> list[Row]:
    counted = sku.devices.get("gpu")
    completed = any(end.probe == PRESENCE_PROBE and end.status == "completed" for end in result.probes)
    if not isinstance(counted, int) or not completed:
        return []
    answering = _answering(result.measurements)
    expected = {f"gpu{slot}" for slot in range(counted)}
    return [
        Row(
            probe=PRESENCE_PROBE,
            metric=PRESENCE,
            device=device,
            labels=(),
            unit="bool",
            value=1.0 if device in answering else 0.0,
            text=None,
            samples=1,
            spread=None,
            note="" if device in expected else "not counted by the SKU",
        )
        for device in expected | answering
    ]


def _answering(measurements: Iterable[Measured]) -> set[str]:
    return {
        found.device
        for found in measurements
        if found.probe == PRESENCE_PROBE
        and kind_of(found.device) == "gpu"
        and (found.value is not None or found.text is not None)
    }
