"""How much counters rose between two sweeps, even if they were reset meanwhile. Pure.

A counter that was reset counts from zero, so its value is its rise. A counter was reset if it went back, or at a boot;
the counters of a GPU's driver also if any one of them went back, or if the driver logged that it was loaded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

OF_THE_PART = frozenset({"row_remap_corrected", "row_remap_uncorrected", "nvme_media_errors"})
"""Kept by the part itself through any restart. If one went back, it is another part's."""
OF_THE_DRIVER = frozenset({"ecc_corrected", "ecc_uncorrected", "nvlink_errors", "throttle_time"})
"""Kept by the GPU's driver while it is loaded."""
NONE_AT_BOOT = frozenset({"ecc_corrected", "ecc_uncorrected", "edac_corrected", "edac_uncorrected"})
"""Start at zero with each boot, and are not raised by the boot itself, unlike counters of links, which are trained."""


@dataclasses.dataclass(frozen=True)
class Count:
    """A counter as it was read. ``labels``: what else distinguishes it, such as a link."""

    name: str
    device: str
    labels: Mapping[str, str]
    value: float

    @property
    def key(self) -> str:
        """The key under which it is remembered."""
        return "|".join((self.name, self.device, *(each for _, each in sorted(self.labels.items()))))

    @property
    def of_the_part(self) -> bool:
        """Whether neither a boot nor a driver resets it."""
        return self.name in OF_THE_PART or self.labels.get("scope") == "aggregate"

    @property
    def of_the_driver(self) -> bool:
        """Whether the driver of the GPU resets it when it is loaded."""
        return self.device.startswith("gpu") and self.name in OF_THE_DRIVER and not self.of_the_part


LEAP = 2.0**31
"""No counter rises so much between two sweeps: one that does was misread, unless it goes on counting from there."""
LEAPT = "leapt|"
"""Prefix in the remembered counters: the value to which a counter leapt."""


def believable(counts: Sequence[Count], known: Mapping[str, float]) -> list[Count]:
    """The counters; one that leapt keeps its value of the last sweep (``known``), since its own is not trusted."""
    leapt = {each.key for each in counts if each.value - known.get(each.key, each.value) >= LEAP}
    return [dataclasses.replace(each, value=known[each.key]) if each.key in leapt else each for each in counts]


def gone_on(counts: Sequence[Count], known: Mapping[str, float]) -> dict[str, float]:
    """Returns ``known``, with the value to which a counter leapt if it has counted on from there: that leap was real.

    A counter that shows the same value again may have been misread again.
    """
    leapt = {each.key: known.get(f"{LEAPT}{each.key}", math.inf) for each in counts}
    return {**known, **{each.key: leapt[each.key] for each in counts if 0 < each.value - leapt[each.key] < LEAP}}


def leaps(counts: Sequence[Count], believed: Sequence[Count]) -> dict[str, float]:
    """What is to be remembered of the counters that leapt."""
    both = zip(counts, believed, strict=True)
    return {f"{LEAPT}{now.key}": now.value for now, kept in both if now.value != kept.value}


def rises(
    counts: Sequence[Count], known: Mapping[str, float], *, same_boot: bool, loaded: bool
) -> Iterator[tuple[Count, float]]:
    """Yields counters with their rise since the last sweep, never below 0; none whose rise cannot be known.

    ``known``: by key, the values of the last sweep; ``loaded``: whether a GPU's driver was loaded since then.
    """
    went_back = {each.device for each in counts if each.of_the_driver and each.value < known.get(each.key, 0.0)}
    for each in counts:
        before = known.get(each.key)
        if before is None:
            continue
        reset = each.value < before or (each.of_the_driver and (loaded or each.device in went_back))
        if same_boot and not each.of_the_part:
            yield each, each.value if reset else each.value - before
        elif same_boot and not reset:
            yield each, each.value - before
        elif not same_boot and each.name in NONE_AT_BOOT and not each.of_the_part:
            yield each, each.value
