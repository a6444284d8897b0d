"""Heat map of one rail (sender × receiver) as geometry for inline SVG. Pure."""

from __future__ import annotations

import dataclasses
import statistics

from muster_criteria.cluster.fabric.judging.found import Fabric, RailMatrix
from muster_criteria.words import figure, number

SIDE = 480
"""Width and height of a map in its own units; the page scales it."""
LOW = 0.9
"""A cell below this share of the usual rate is drawn as out of limits (``cluster.fabric.decoding.levels``)."""
NAMED_MAX = 24
"""With more nodes the rows and columns have no names; a cell's title has them."""


@dataclasses.dataclass(frozen=True)
class Square:
    """One measured cell: where it is, its class in the style sheet, and its words."""

    x: float
    y: float
    css: str
    title: str


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """One rail, or all at once. ``size``: of a cell.

    ``names``: of rows and columns with their middle, empty where there are too many. ``low``: the words of the cells
    that are drawn as low. ``delay``: the round trips of small messages in words, "" without any.
    """

    title: str
    size: float
    squares: tuple[Square, ...]
    names: tuple[tuple[str, float], ...]
    nodes: int
    low: tuple[str, ...]
    delay: str


def of(fabric: Fabric) -> tuple[HeatMap, ...]:
    """The maps, those with the most low cells first."""
    return tuple(sorted(map(_map, fabric.matrices), key=lambda each: (-len(each.low), each.title)))


def _map(matrix: RailMatrix) -> HeatMap:
    at = {name: place for place, name in enumerate(matrix.nodes)}
    size = SIDE / max(1, len(matrix.nodes))
    squares = tuple(
        Square(
            round(at[cell.receiver] * size, 2), round(at[cell.sender] * size, 2), _shade(cell.share, cell.wrong),
            f"{cell.sender} → {cell.receiver}: {number(cell.rate)} Gb/s, {_percent(cell.share)} of the usual"
            f"{', wrong bytes' if cell.wrong else ''}"
            f"{'' if cell.delay_us is None else f', {_delay(cell.delay_us)} there and back'}",
        )
        for cell in matrix.cells
    )  # fmt: skip
    names = tuple((name, round((place + 0.5) * size, 2)) for name, place in at.items()) if len(at) <= NAMED_MAX else ()
    low = tuple(each.title for each in squares if each.css == "bad")
    return HeatMap(matrix.title, round(size, 3), squares, names, len(at), low, _delays(matrix))


def _delays(matrix: RailMatrix) -> str:
    measured = [(cell.delay_us, cell) for cell in matrix.cells if cell.delay_us is not None]
    if not measured:
        return ""
    usual = statistics.median(delay for delay, _ in measured)
    longest, cell = max(measured, key=lambda each: each[0])
    return (
        f"64 bytes there and back: median {_delay(usual)}, longest {_delay(longest)} ({cell.sender} – {cell.receiver})"
    )


def _delay(us: float) -> str:
    return figure(round(us, 1), "µs")


def _percent(share: float) -> str:
    """In whole percent, or with the digits needed to tell it from the share below which a cell is low."""
    return figure(100 * share, "%", unlike=100 * LOW, digits=2)


def _shade(share: float, wrong: bool) -> str:
    if wrong or share < LOW:
        return "bad"
    return "shade2" if share < 0.95 else "shade3" if share < 1.05 else "shade5"
