"""The heat map of a block's rails, sender × receiver, as one small PNG; drawn once for all members of a block."""

from __future__ import annotations

import functools
import logging
import math
from typing import TYPE_CHECKING

from muster_criteria.cluster.fabric.judging.found import Fabric, RailMatrix
from muster_reports.charts import INK, WIDTH_PX, Chart, png_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

SERIES = "fabric"
MAPS_MAX = 9
"""Maps that are drawn: all rails at once, then the rails with the lowest cells."""
NAMED_MAX = 12
"""With more nodes than this, rows and columns have no names, and cells no figures."""
COLUMNS = 4
DARK = 0.4
"""A cell with less luminance (0 to 1) has a white figure: both ends of the colour scale are dark."""
LOWEST, HIGHEST = 0.5, 1.1
"""The shares of the usual rate at which the colour scale ends."""


@functools.lru_cache(maxsize=4)
def draw(fabric: Fabric) -> Chart | None:
    """The map; None where nothing was measured, or where it cannot be drawn, which is logged."""
    matrices = sorted((each for each in fabric.matrices if each.cells), key=_order)[:MAPS_MAX]
    if not matrices:
        return None
    columns = min(COLUMNS, len(matrices))
    rows = math.ceil(len(matrices) / columns)
    height = round(min(420, WIDTH_PX / columns) * rows) + 50
    try:
        png = png_of(_figure(matrices, rows, columns, height))
    except Exception:  # no figures may prevent the report
        log.exception("the heat map could not be drawn")
        return None
    left = sum(bool(each.cells) for each in fabric.matrices) - len(matrices)
    more = f"; {left} more rails are on the block's page" if left else ""
    return Chart(
        SERIES, "Rails, from sender (row) to receiver (column)", _summary(matrices) + more, png, WIDTH_PX, height
    )


def _order(matrix: RailMatrix) -> tuple[bool, float, str]:
    return bool(matrix.rail), min((0.0 if cell.wrong else cell.share) for cell in matrix.cells), matrix.rail


def _summary(matrices: list[RailMatrix]) -> str:
    said = []
    for each in matrices:
        worst = min(each.cells, key=lambda cell: (not cell.wrong, cell.share))
        what = "wrong bytes" if worst.wrong else f"{100 * worst.share:.0f} % of the usual rate"
        said.append(f"{each.title}: {len(each.cells)} cells, the worst {worst.sender} to {worst.receiver} with {what}")
    return "; ".join(said)


def _figure(matrices: list[RailMatrix], rows: int, columns: int, height: int) -> Figure:
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_PX / 100, height / 100), dpi=100, layout="constrained", facecolor="white")
    for place, matrix in enumerate(matrices, start=1):
        axes = figure.add_subplot(rows, columns, place)
        at = {name: index for index, name in enumerate(matrix.nodes)}
        shares = np.full((len(at), len(at)), np.nan)
        for cell in matrix.cells:
            shares[at[cell.sender], at[cell.receiver]] = 0.0 if cell.wrong else cell.share
        image = axes.imshow(shares, vmin=LOWEST, vmax=HIGHEST, cmap="RdYlBu", interpolation="nearest")
        axes.set_facecolor("#e4e7eb")
        axes.set_title(matrix.title, fontsize=9)
        if len(at) <= NAMED_MAX:
            axes.set_xticks(range(len(at)), matrix.nodes, rotation=60, ha="right", fontsize=7)
            axes.set_yticks(range(len(at)), matrix.nodes, fontsize=7)
            for cell in matrix.cells:
                words = "wrong" if cell.wrong else f"{100 * cell.share:.0f}"
                row, column = at[cell.sender], at[cell.receiver]
                red, green, blue, _ = image.cmap(image.norm(shares[row, column]))
                # The weights of ITU-R BT.601.
                colour = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < DARK else INK
                axes.text(column, row, words, ha="center", va="center", fontsize=7, color=colour)
        else:
            axes.set_xticks([])
            axes.set_yticks([])
    figure.colorbar(image, ax=figure.axes, shrink=0.8, label="share of the usual rate", extend="min")
    return figure
