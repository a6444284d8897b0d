"""One node's weight in a fleet's statistics: no node gives more figures of a metric than several others do.

Labels and devices without a limit cost a node nothing: with thousands of them, one node's figures would be most of a
metric's tail, and their number would divide the budget of false alarms for all.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from muster_criteria.fleet.series.keyed import Codes, Keyed

AGREE = 3
"""Number of nodes that limits each node's number of figures; also the number of nodes that must agree on a golden."""


def within_weight(fleet: Keyed) -> Keyed:
    """The readings without a node's figures of a metric beyond the number that ``AGREE`` nodes of its SKU give.

    A figure is a device's series. Figures that the fewest nodes give are left out first. If all nodes give the same,
    nothing is left out.
    """
    if not len(fleet):
        return fleet
    owner = fleet.owner
    figures = pd.unique(owner)
    rest, series = np.divmod(figures, len(fleet.catalogue))
    node, device = np.divmod(rest, len(fleet.devices))
    names = {name: at for at, name in enumerate(dict.fromkeys(each.key[:2] for each in fleet.catalogue))}
    metric = np.array([names[each.key[:2]] for each in fleet.catalogue])[series]
    given = np.bincount(node * len(names) + metric, minlength=len(fleet.nodes) * len(names))
    given = given.reshape(len(fleet.nodes), len(names))
    sku_of = np.full(len(fleet.nodes), -1)
    sku_of[fleet.node] = fleet.sku
    allowed = np.zeros_like(given)
    for sku in np.unique(fleet.sku):
        of = sku_of == sku
        allowed[of] = -np.sort(-given[of], axis=0)[min(AGREE, int(of.sum())) - 1]
    if (given <= allowed).all():
        return fleet
    left_out = _beyond(node * len(names) + metric, device * len(fleet.catalogue) + series, allowed.ravel())
    return fleet.take(~np.isin(owner, figures[left_out]))


def _beyond(pool: Codes, which: Codes, allowed: Codes) -> Codes:
    """Positions of the figures beyond the ``allowed`` number of each pool; figures that most nodes give come first."""
    _, at, often = np.unique(which, return_inverse=True, return_counts=True)
    order = np.lexsort((which, -often[at], pool))
    starts = np.flatnonzero(np.diff(pool[order], prepend=-1))
    place = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return order[place >= allowed[pool[order]]]
