"""Distances: how far each reading is from its peers, from its siblings, and from its device's own past.

A distance is a share, and positive where it is adverse: 0.05 is a rate 5 % too low, or a resistance 5 % too high.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.fleet.budget import SIBLINGS_MIN
from muster_criteria.fleet.peers.cells import Cells
from muster_criteria.fleet.peers.explained import Slopes, without_given
from muster_criteria.fleet.series.keyed import Codes, Keyed, Numbers, firsts, medians, together

MEMBERS_MIN = 2
"""Fewest readings of a family that make an index."""


@dataclasses.dataclass(frozen=True, eq=False)
class Distances:
    """One element per reading, family indices included; NaN where there is nothing to compare with.

    ``usual``: the peers' median, in unit, of ``peers_count`` peers; ``foreign``: most of them run another stack.
    ``relative``: the reading over its peers' median and then over its siblings' median (over the peers' alone with too
    few siblings); a device's history consists of these. ``level``: the siblings' median over the peers', the node's own
    level; ``own_level``: what the node's history consists of. How much of a distance from peers of another stack is due
    to the stack is unknown, so neither ``relative`` nor ``own_level`` uses such distances.
    """

    readings: Keyed
    usual: Numbers
    peers_count: Codes
    foreign: npt.NDArray[np.bool_]
    peers: Numbers
    siblings: Numbers
    relative: Numbers
    level: Numbers
    own_level: Numbers
    siblings_count: Codes


def distances(readings: Keyed, cells: Cells, slopes: Slopes) -> Distances:
    """Compares readings with their peers' cells and with each other; see ``Distances``.

    Indices are judged too; readings that only explain others are left out.
    """
    usual, count, foreign = cells.usual(readings)
    ratio = readings.value / usual
    indices = family_indices(readings, ratio)
    indices = together(indices, without_given(indices, readings, ratio, slopes))
    if not readings.judged.all():
        judged = np.flatnonzero(readings.judged)
        readings, usual, count, foreign = readings.take(judged), usual[judged], count[judged], foreign[judged]
    if len(indices):
        more, more_count, more_foreign = cells.usual(indices)
        readings = together(readings, indices)
        usual, count = np.concatenate([usual, more]), np.concatenate([count, more_count])
        foreign = np.concatenate([foreign, more_foreign])
    ratio = readings.value / usual
    all_foreign = _all_foreign(readings, foreign, np.isfinite(ratio))
    # Where all siblings are compared with another stack, the effect of the stack cancels between them.
    apart = foreign & ~all_foreign
    level, siblings_count = _levels(readings, np.where(apart, np.nan, ratio))
    enough = (siblings_count >= SIBLINGS_MIN) & (level > 0.0)
    base = np.where(enough, level, 1.0)
    relative = ratio / base
    relative[np.where(enough, apart, foreign)] = np.nan
    sign = readings.sign
    return Distances(
        readings=readings,
        usual=usual,
        peers_count=count,
        foreign=foreign,
        peers=sign * (ratio - 1.0),
        siblings=np.where(enough, sign * (relative - 1.0), np.nan),
        relative=relative,
        level=np.where(enough, level, np.nan),
        own_level=np.where(enough & ~all_foreign, level, np.nan),
        siblings_count=siblings_count,
    )


def _levels(readings: Keyed, ratio: Numbers) -> tuple[Numbers, Codes]:
    """(median ratio over the devices of the reading's node, number of these devices); repeats count once."""
    of, size = readings.siblings_of, readings.visits * len(readings.catalogue)
    if not readings.repeated:
        level, count = medians(ratio, of, size)
        return level[of], count[of]
    item, distinct = pd.factorize(readings.item)
    each, _ = medians(ratio, item.astype(np.int64), len(distinct))
    of_item = np.empty(len(distinct), dtype=np.int64)
    of_item[item] = of
    level, count = medians(each, of_item, size)
    return level[of], count[of]


def _all_foreign(
    readings: Keyed, foreign: npt.NDArray[np.bool_], known: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Whether all ``known`` readings of each reading's siblings have ``foreign`` peers."""
    of, size = readings.siblings_of, readings.visits * len(readings.catalogue)
    near = np.bincount(of[known & ~foreign], minlength=size)
    return np.asarray((near == 0)[of])


def own_changes(change: Numbers, siblings_of: Codes) -> tuple[Numbers, Numbers]:
    """Returns (each device's change since its past over its siblings' shared change; the shared one, 1 for too few).

    ``change``: today's relative reading over the past one. Where healthy devices differ widely, one that worsens moves
    the median of its node's readings by up to half of its own change; the median of their changes stays.
    """
    common, count = medians(change, siblings_of, int(siblings_of.max(initial=-1)) + 1)
    shared = np.where((count >= SIBLINGS_MIN) & (common > 0.0), common, 1.0)[siblings_of]
    return change / shared, shared


def family_indices(readings: Keyed, ratio: Numbers) -> Keyed:
    """A reading for each device, run and family: 1 − the median of its members' adverse distances from their peers."""
    number = {each.comparison.family: at for at, each in enumerate(readings.catalogue) if each.index and not each.given}
    family = np.array(
        [-1 if each.index else number.get(each.comparison.family, -1) for each in readings.catalogue] or [-1]
    )
    of = family[readings.series]
    members = np.flatnonzero((of >= 0) & np.isfinite(ratio))
    if not members.size:
        return readings.take(members)
    runs, families = int(readings.run.max()) + 1, len(readings.catalogue)
    group = (readings.visit[members] * len(readings.devices) + readings.device[members]) * runs + readings.run[members]
    which, distinct = pd.factorize(group * families + of[members])
    value, count = medians(1.0 - readings.sign[members] * (ratio[members] - 1.0), which, len(distinct))
    enough = count >= MEMBERS_MIN
    first = members[firsts(which)][enough]
    return readings.take(first).replace(
        row=np.full(len(first), -1, dtype=np.int64), series=of[first].astype(np.int64), value=value[enough]
    )
