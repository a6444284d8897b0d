"""Readings as integers for the vectorised judge, with the names kept separately.

Only readings that match a comparison are kept: its metric on its kind of device, in its unit, and finite.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from muster_criteria.fleet.series.comparisons import Comparison

Numbers = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

SeriesKey = tuple[str, str, str, str]
"""(kind, metric, labels, unit): readings with equal keys are compared with each other."""
SERIES = ("kind", "metric", "labels", "unit")
"""The columns of readings that make a ``SeriesKey``."""

Name = TypeVar("Name", str, SeriesKey)

INDEX_UNIT = "1"
LOW_INDEX_WEIGHT = 0.1
MEMBER_WEIGHT, INDEX_WEIGHT, GIVEN_WEIGHT, ALONE_WEIGHT = 0.1, 1.0, 12.0, 4.5
"""Weights of series that vary from part to part."""


@dataclasses.dataclass(frozen=True)
class Series:
    """One kind of number: its key, its comparison, and whether it is a family's index.

    ``given``: an index without the part that another metric explains (see ``comparisons.Comparison``).
    """

    key: SeriesKey
    comparison: Comparison
    index: bool = False
    given: bool = False

    @property
    def sign(self) -> float:
        """+1 where more is worse, −1 where less is. An index falls where its members get worse."""
        return 1.0 if self.comparison.worse == "higher" and not self.index else -1.0

    @property
    def weight(self) -> float:
        """Its weight among the series of its spread, by which the budget is divided.

        Each series of low spread may show a defect that no other does; an index shows little that its members do not.
        In a varied family members and index vary together, so most weight is on the index, or on the index without the
        explained part if there is one.
        """
        if not self.comparison.judged:
            return 0.0
        if self.comparison.spread == "low":
            return LOW_INDEX_WEIGHT if self.index else self.comparison.weight
        if self.index:
            return GIVEN_WEIGHT if self.given else INDEX_WEIGHT
        return self.comparison.weight * (MEMBER_WEIGHT if self.comparison.family else ALONE_WEIGHT)


@dataclasses.dataclass(frozen=True, eq=False)
class Keyed:
    """Compared readings, one element each. ``row``: position in the frame they came from, −1 for a family's index.

    ``visit``: number of the group within which siblings are compared: the node or, where days matter, the node's day
    (``day``: whole days since 1970). ``nodes``, ``devices``, ``groups`` and ``skus`` are the names of the codes.
    """

    row: Codes
    visit: Codes
    node: Codes
    device: Codes
    slot: Codes
    group: Codes
    sku: Codes
    run: Codes
    series: Codes
    day: Codes
    value: Numbers
    catalogue: tuple[Series, ...]
    nodes: Sequence[str]
    devices: Sequence[str]
    groups: Sequence[str]
    skus: Sequence[str]
    visits: int

    def __len__(self) -> int:
        return len(self.value)

    @functools.cached_property
    def sign(self) -> Numbers:
        """The sign of each reading's series."""
        return np.array([series.sign for series in self.catalogue] or [0.0])[self.series]

    @functools.cached_property
    def siblings_of(self) -> Codes:
        """Number of the (visit, series) that each reading belongs to."""
        return self.visit * len(self.catalogue) + self.series

    @property
    def owner(self) -> Codes:
        """Number of each reading's (node, device, series), over all visits."""
        return (self.node * len(self.devices) + self.device) * len(self.catalogue) + self.series

    @property
    def of_node(self) -> Codes:
        """Number of each reading's (node, series), over all visits."""
        return self.node * len(self.catalogue) + self.series

    @property
    def item(self) -> Codes:
        """Number of each reading's (visit, device, series); repeats share it."""
        return (self.visit * len(self.devices) + self.device) * len(self.catalogue) + self.series

    @functools.cached_property
    def repeated(self) -> bool:
        """Whether any item was measured twice."""
        item = self.item
        return len(numbered(item, int(item.max(initial=-1)) + 1)[1]) < len(item)

    def replace(self, **columns: object) -> Keyed:
        """A copy with other columns."""
        return dataclasses.replace(self, **columns)  # type: ignore[arg-type]

    def take(self, chosen: npt.NDArray[np.generic]) -> Keyed:
        """The chosen readings (a mask or positions)."""
        return self.replace(**{name: getattr(self, name)[chosen] for name in PER_READING})

    @property
    def judged(self) -> npt.NDArray[np.bool_]:
        """Which readings are judged; the others only explain."""
        return np.array([each.comparison.judged for each in self.catalogue] or [True])[self.series]


PER_READING = ("row", "visit", "node", "device", "slot", "group", "sku", "run", "series", "day", "value")


def keyed(readings: pd.DataFrame, comparisons: Sequence[Comparison], *, by_day: bool = False) -> Keyed:
    """The readings (see ``readings.as_readings``) that match these comparisons.

    ``by_day``: siblings are those of one day; otherwise all readings of a node count as one visit.
    """
    catalogue, series = _catalogue(readings, comparisons)
    value = readings["value"].to_numpy()
    kept = np.flatnonzero((series >= 0) & np.isfinite(value))
    if not readings["node"].cat.codes.to_numpy().size:
        kept = np.empty(0, dtype=np.int64)

    def codes(name: str) -> Codes:
        return readings[name].cat.codes.to_numpy()[kept].astype(np.int64)

    at = readings["at"].to_numpy()[kept]
    day = np.floor(np.where(np.isfinite(at), at, 0.0)).astype(np.int64)
    node = codes("node")
    if by_day:
        visit, visits = pd.factorize(node * 1_000_000 + day)
        visit, count = visit.astype(np.int64), len(visits)
    else:
        visit, count = node, len(readings["node"].cat.categories)
    return Keyed(
        row=kept,
        visit=visit,
        node=node,
        device=codes("device"),
        slot=readings["slot"].to_numpy()[kept].astype(np.int64),
        group=codes("group"),
        sku=codes("sku"),
        run=codes("run"),
        series=series[kept].astype(np.int64),
        day=day,
        value=value[kept],
        catalogue=catalogue,
        nodes=readings["node"].cat.categories.tolist(),
        devices=readings["device"].cat.categories.tolist(),
        groups=readings["group"].cat.categories.tolist(),
        skus=readings["sku"].cat.categories.tolist(),
        visits=count,
    )


def _catalogue(
    readings: pd.DataFrame, comparisons: Sequence[Comparison]
) -> tuple[tuple[Series, ...], npt.NDArray[np.int32]]:
    """The series there are, family indices last, and the number of each reading's series (−1: not compared)."""
    about: dict[tuple[str, str, str], Comparison] = {}
    for each in comparisons:
        about.setdefault((each.device, each.metric, each.unit), each)
    numbers, present = series_of([readings[name].cat for name in SERIES], len(readings))
    catalogue: list[Series] = []
    number_of = np.full(len(present) + 1, -1, dtype=np.int32)
    for position, key in enumerate(present):
        kind, metric, _, unit = key
        comparison = about.get((kind, metric, unit))
        if comparison is not None:
            number_of[position] = len(catalogue)
            catalogue.append(Series(key, comparison))
    families = {each.family: each for each in reversed(comparisons) if each.family}
    present_families = {each.comparison.family for each in catalogue}
    for family, comparison in sorted(families.items()):
        if family in present_families:
            key_of = (comparison.device, f"{family}_index", "", INDEX_UNIT)
            catalogue.append(Series(key_of, comparison, index=True))
            if comparison.given:
                key_of = (comparison.device, given_name(comparison), "", INDEX_UNIT)
                catalogue.append(Series(key_of, comparison, index=True, given=True))
    return tuple(catalogue), number_of[numbers]


def series_of(columns: Sequence[Any], rows: int) -> tuple[Codes, list[SeriesKey]]:
    """The number of each row's series, and what each number stands for. ``columns``: ``SERIES``, as categories."""
    sizes = [max(len(each.categories), 1) for each in columns]
    combined = np.zeros(rows, dtype=np.int64)
    for each, size in zip(columns, sizes, strict=True):
        if size > 1:
            combined = combined * size + each.codes.to_numpy()
    which, distinct = numbered(combined, math.prod(sizes))
    names = [each.categories.astype(str).tolist() for each in columns]
    parts = np.unravel_index(distinct, sizes)
    return which, [
        (names[0][kind], names[1][metric], names[2][labels], names[3][unit])
        for kind, metric, labels, unit in zip(*(part.tolist() for part in parts), strict=True)
    ]


def given_name(comparison: Comparison) -> str:
    """Returns the name of this family's index less the part that ``given`` explains."""
    return f"{comparison.family}_given_{comparison.given}"


def together(one: Keyed, other: Keyed) -> Keyed:
    """Concatenates readings with the same names and series."""
    return one.replace(
        **{name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in PER_READING},
    )


def numbered(codes: Codes, size: int) -> tuple[Codes, Codes]:
    """(number of each code, from 0 in ascending order of codes; code of each number). ``size``: codes are less."""
    if size > 4 * len(codes) + 1_000_000:
        distinct, numbers = np.unique(codes, return_inverse=True)
        return numbers.astype(np.int64), distinct.astype(np.int64)
    known = np.zeros(size, dtype=np.bool_)  # a table of all codes is faster than sorting
    known[codes] = True
    return (np.cumsum(known) - 1)[codes], np.flatnonzero(known)


def firsts(codes: Codes) -> Codes:
    """The position of each code's first occurrence, in ascending order of positions."""
    size = int(codes.max(initial=-1)) + 1
    if size > 4 * len(codes) + 1_000_000:
        return np.sort(np.unique(codes, return_index=True)[1])
    table = np.full(size, -1, dtype=np.int64)  # faster than sorting all codes
    table[codes[::-1]] = np.arange(len(codes))[::-1]
    return np.sort(table[table >= 0])


@dataclasses.dataclass(frozen=True, eq=False)
class Places:
    """Looks up the position of keys in a list of keys (0 ≤ key < ``size``). ``_order``: positions by ascending key;
    None if ``_keys`` is a table of the position of every possible key, with −1 at its end."""

    _keys: Codes
    _order: Codes | None

    @classmethod
    def of(cls, keys: Codes, size: int) -> Places:
        """The places of these keys; for a repeated key, its first place."""
        if size > 4 * len(keys) + 1_000_000:
            order = np.argsort(keys, kind="stable")
            return cls(keys[order], order)
        table = np.full(size + 1, -1, dtype=np.int64)  # faster than sorting
        table[keys[::-1]] = np.arange(len(keys))[::-1]
        return cls(table, None)

    def find(self, wanted: Codes) -> Codes:
        """The position of each wanted key; −1 where there is none, and for the key −1."""
        if self._order is None:
            return self._keys[wanted]
        if not len(self._keys):
            return np.full(len(wanted), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return np.where(self._keys[at] == wanted, self._order[at], -1)


def mapping(names: Sequence[Name], known: Mapping[Name, int]) -> Codes:
    """The number of each name in ``known``, −1 if it has none."""
    return np.array([known.get(name, -1) for name in names] or [-1], dtype=np.int64)


def by_group(groups: npt.NDArray[np.integer[Any]], size: int) -> tuple[Codes, Codes]:
    """Positions by group (0…size−1), in order within each; and where each group starts, with the end of the last."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(groups, minlength=size))])
    return np.argsort(groups.astype(np.min_scalar_type(size)), kind="stable"), starts  # 16 bits are sorted by radix


def medians(values: Numbers, groups: Codes, size: int) -> tuple[Numbers, Codes]:
    """Median (NaN for an empty group) and number of the values of each of the groups 0…size−1, without NaN values."""
    values = np.where(np.isfinite(values), values, np.nan)
    order, starts = by_group(groups, size)
    among = np.diff(starts)
    count = among - np.bincount(groups[np.isnan(values)], minlength=size)
    found = np.full(size, np.nan)
    for each in np.flatnonzero(np.bincount(among)[1:]) + 1:  # groups of one size at a time: most fleets have few sizes
        of = np.flatnonzero(among == each)
        rows = np.sort(values[order[starts[of][:, None] + np.arange(each)]], axis=1)  # NaN last
        at = np.arange(len(of))
        found[of] = (rows[at, (count[of] - 1) // 2] + rows[at, count[of] // 2]) / 2.0
    return found, count


def others_medians(values: Numbers, groups: Codes, size: int) -> tuple[Numbers, Codes]:
    """For each value the median of the others of its group (0…size−1), and how many the group has; NaN is no value.

    Of two middle values the nearer is used, or the value itself between them: an outlier is compared with what more
    than half of the others reach, and of three, one bad value moves no reference. NaN for a group without values.
    """
    values = np.where(np.isfinite(values), values, np.nan)
    count, all_of = (np.bincount(of, minlength=size) for of in (groups[~np.isnan(values)], groups))
    order = np.lexsort((values, groups))  # NaN last in each group
    start, counted = (np.cumsum(all_of) - all_of)[groups], count[groups]
    rank = np.empty(len(values), dtype=np.int64)
    rank[order] = np.arange(len(values))
    # The group's middle value; in a group of even size, the middle value nearest to it in the other half.
    middle = np.where(2 * (rank - start) < counted, counted, np.maximum(counted - 1, 0)) // 2
    return values[order][start + middle], counted


def quantiles(values: Numbers, groups: Codes, of: Codes, shares: Sequence[float]) -> Numbers:
    """The quantiles ``shares`` (rows) of the groups ``of`` (columns), each with a value, without NaN values."""
    if not of.size:
        return np.empty((len(shares), 0))
    known = np.isfinite(values) & np.isin(groups, of)
    found = pd.Series(values[known]).groupby(groups[known]).quantile(np.array(shares)).unstack()
    return found.loc[of].to_numpy().T
