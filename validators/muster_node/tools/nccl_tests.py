"""Output of NVIDIA's nccl-tests (all_reduce_perf and its siblings).

A row is "size count type [redop [root]]", then time, algbw, busbw and errors, out of place and in place. Versions
before 2.12 have no root, and no redop where nothing is reduced; those of 2018 begin some comments without "#".
"""

from __future__ import annotations

import dataclasses
import re

from muster_node.tools.output import BadOutput, rate

_RANK = re.compile(r"^#?\s*Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device\s+(\d+)\s", re.MULTILINE)
_CHECKED = re.compile(r"^#?\s*Out of bounds values\s*:\s*(\d+)\s+(\w+)", re.MULTILINE)
_AVERAGE = re.compile(r"^#?\s*Avg bus bandwidth\s*:\s*([\d.]+)", re.MULTILINE)
_UNCHECKED = re.compile(r"^#? ?nThread.*\bvalidation: 0\b", re.MULTILINE)
_TIMINGS = 8
_HEADS = (3, 4, 5)
"""Columns before the timings: size, count, type, then redop and root where the version prints them."""


@dataclasses.dataclass(frozen=True)
class NcclRun:
    """Out-of-place bus bandwidth in GB/s by bytes, count of wrong values, and how many ranks (GPUs) took part."""

    busbw: dict[int, float]
    wrong: int
    ranks: int

    @property
    def largest(self) -> int:
        """The largest size, in bytes."""
        return max(self.busbw)


def parse_nccl_tests(text: str) -> NcclRun:
    """Raises BadOutput for output without results, cut short, without a checked payload or without a list of ranks."""
    rows = [row for row in map(_row, text.splitlines()) if row is not None]
    busbw = {size: rate for size, rate, _ in rows}
    if not busbw:
        raise BadOutput("no results", "printed no row of results")
    if _AVERAGE.search(text) is None:
        raise BadOutput("cut short", f"broke off after {len(busbw)} sizes")
    checked = _CHECKED.search(text)
    # The last line counts 0 values out of bounds also where none was checked.
    if checked is None or _UNCHECKED.search(text) or not all(was_checked for _, _, was_checked in rows):
        raise BadOutput("unchecked", "did not check its payload")
    ranks = len(set(_RANK.findall(text)))
    if not ranks:
        raise BadOutput("no ranks", "does not list the GPUs that took part")
    wrong = int(checked.group(1))
    return NcclRun(busbw, wrong if checked.group(2) == "OK" else max(wrong, 1), ranks)


def _row(line: str) -> tuple[int, float, bool] | None:
    """(bytes, GB/s, whether its values were checked), out of place; None for a line that is no row of results."""
    words = line.split()
    if len(words) - _TIMINGS not in _HEADS or not words[0].isdigit() or not words[1].isdigit():
        return None
    size, busbw = int(words[0]), rate(words[-_TIMINGS + 2])
    return (size, busbw, words[-_TIMINGS + 3] != "N/A") if size > 0 and busbw is not None else None
