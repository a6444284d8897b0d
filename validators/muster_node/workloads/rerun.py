"""Repeats of a mismatch: on the same device, and on two of its siblings.

They are reported with the mismatches, one figure for each device that repeated it, and judged by the controller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from muster_node.hardware.seam import Device
from muster_node.probe import Context

PEERS = 2
DOC = "repeats of a mismatch that were wrong on the device that label `on` names"
"""The description of the metric that a probe declares for reruns."""


@dataclasses.dataclass
class Rerun:
    """Repeats of wrong work on one device: their number, and the number that were wrong there."""

    runs: int = 0
    wrong: int = 0

    def add(self, wrong: bool) -> None:
        """Count one more run."""
        self.runs += 1
        self.wrong += int(wrong)

    def join(self, other: Rerun) -> None:
        """Count another's runs too."""
        self.runs, self.wrong = self.runs + other.runs, self.wrong + other.wrong


def peers_of(wrong: str, suspects: Collection[str], devices: list[Device]) -> list[Device]:
    """The next two siblings in slot order that are not suspect themselves."""
    places = [device.id for device in devices]
    start = places.index(wrong) + 1
    around = devices[start:] + devices[: start - 1]
    return [device for device in around if device.id not in suspects][:PEERS]


def report_reruns(context: Context, metric: str, device: str, labels: dict[str, str], on: dict[str, Rerun]) -> None:
    """One figure for each device that repeated the wrong work of ``device``."""
    for name, rerun in on.items():
        if rerun.runs:
            context.emit(metric, device, value=rerun.wrong, labels={**labels, "on": name}, samples=rerun.runs)
