"""Calibrated floors as files: ``learned/SKU-0001.yaml``, each calibration under the next number.

A revision applies to nodes with the stack and test level that it was learned at. For each stack and level the highest
number is in force, except for floors of a probe whose parameters have changed since. Its floors are added to the SKU's
own; where two meet, the higher one counts, so no calibration lowers a floor that a person set.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field

from muster_criteria.labels import labelled
from muster_criteria.model import FaultClass
from muster_criteria.sku_files.figures import NOT_STATED
from muster_criteria.sku_files.limits import Breach, Limit
from muster_criteria.stages import Level
from muster_criteria.written import Written, read

FOLDER = "learned"
LEARNED_BYTES_MAX = 500_000
_HOLDS_FOR = re.compile(rb"^level:.*?^nodes:", re.MULTILINE | re.DOTALL)
"""The level and the stack of a revision as ``as_file`` writes them, with the key that follows."""
TOO_SLOW = "is slower than any healthy one of this fleet"
SLOW = "is slower than healthy ones of this fleet usually are"
"""Meanings of the two floors of a metric; a canary has the first only, and only warns by it."""


class BadCalibration(Exception):
    """A file of learned floors that cannot be used; the message is one sentence."""


class Basis(Written):
    """The data behind a floor: the median in the floor's unit, sigma as a share of it, devices and nodes counted."""

    median: float
    spread: float
    devices: int
    nodes: int


@dataclasses.dataclass(frozen=True)
class LearnedFloor:
    """The floors of one metric in ``unit``, and the readings behind them."""

    metric: str
    kind: str
    labels: tuple[tuple[str, str], ...]
    unit: str
    fail: float
    warn: float
    basis: Basis

    @property
    def name(self) -> str:
        """ "gemm_rate[dtype=bf16]"."""
        return labelled(self.metric, self.labels)


class Remark(enum.StrEnum):
    """What a person has to know about one metric's floors."""

    TOO_FEW_NODES = "too_few_nodes"
    TOO_WIDE = "too_wide"
    FLOOR_KEPT = "floor_kept"
    FLOOR_LOWERED = "floor_lowered"


@dataclasses.dataclass(frozen=True)
class Note:
    """A remark on a metric ("gemm_rate[dtype=bf16]"), and its sentence."""

    code: Remark
    metric: str
    text: str

    def __str__(self) -> str:
        return f"{self.metric}: {self.text}"


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Floors from a fleet's healthy nodes. ``canary``: few nodes run this stack so far, so its floors only warn.

    ``needed``: how many nodes are required. ``refused``: one sentence on why there are too few nodes; empty otherwise.
    """

    stack: str
    nodes: int
    needed: int
    canary: bool
    learned: tuple[LearnedFloor, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[Note, ...] = ()
    refused: str = ""


class LearnedFile(Written):
    """One revision. ``limits`` are the SKU file's, ``basis`` has an entry for each ``fail`` floor, in order.

    ``work``: what the probes had to do (``work.work_of``).
    """

    learned: str
    revision: Annotated[int, Field(ge=1)]
    date: datetime.date
    level: Level
    stack: str
    nodes: Annotated[int, Field(ge=1)]
    canary: bool
    left_out: tuple[str, ...] = ()
    work: Annotated[dict[str, str], Field(min_length=1)]
    limits: tuple[Limit, ...]
    basis: tuple[Basis, ...]


def in_force(folders: Iterable[Path], sku: str) -> tuple[bytes, tuple[LearnedFile, ...]]:
    """The newest revision of each stack and level, the newest first, and the bytes of all. Raises BadCalibration.

    Only the first folder that has any revision counts.
    """
    found: dict[tuple[str, str], LearnedFile] = {}
    texts, known = b"", set[bytes]()
    for path in _revisions(folders, sku):
        text = path.read_bytes()
        holds_for = _HOLDS_FOR.search(text)
        if holds_for and holds_for[0] in known:
            continue  # most files of an old fleet: parsing them all would cost each task seconds
        file = _parsed(text, f"{FOLDER}/{path.name}", sku)
        if found.setdefault((file.stack, file.level), file) is file:
            texts += text
            known |= {holds_for[0]} if holds_for else set()
    return texts, tuple(found.values())


def _revisions(folders: Iterable[Path], sku: str) -> list[Path]:
    """The revisions in the first folder that has any, the newest first."""
    for folder in folders:
        numbered = sorted((_number(path, sku), path) for path in (Path(folder) / FOLDER).glob(f"{sku}-*.yaml"))
        if found := [path for number, path in numbered if number]:
            return found[::-1]
    return []


def _number(path: Path, sku: str) -> int:
    found = re.fullmatch(rf"{re.escape(sku)}-(\d{{4}})", path.stem)
    return int(found[1]) if found else 0


@functools.lru_cache(maxsize=32)
def _parsed(text: bytes, where: str, sku: str) -> LearnedFile:
    file = read(LearnedFile, text, LEARNED_BYTES_MAX, where, BadCalibration)
    if file.learned != sku:
        raise BadCalibration(f"{where} was learned for {file.learned}, not for {sku}.")
    return file


def floors_of(file: LearnedFile) -> list[LearnedFloor]:
    """The floors of a revision; a canary has no second floor and warns below the first."""
    floors = [limit for limit in file.limits if limit.meaning == TOO_SLOW]
    warns = {_key(limit): limit.number or 0.0 for limit in file.limits if limit.meaning == SLOW}
    return [
        LearnedFloor(
            metric=limit.metric, kind=limit.device, labels=tuple(sorted(limit.labels.items())), unit=limit.unit,
            fail=limit.number or 0.0, warn=warns.get(_key(limit), limit.number or 0.0), basis=basis,
        )
        for limit, basis in zip(floors, file.basis, strict=False)
    ]  # fmt: skip


def without(file: LearnedFile, metrics: Collection[str]) -> LearnedFile:
    """The revision without the floors of these metrics."""
    floors = [limit for limit in file.limits if limit.meaning == TOO_SLOW]
    basis = tuple(each for limit, each in zip(floors, file.basis, strict=False) if limit.metric not in metrics)
    limits = tuple(limit for limit in file.limits if limit.metric not in metrics)
    return file.model_copy(update={"limits": limits, "basis": basis})


def with_learned(limits: Sequence[Limit], file: LearnedFile) -> tuple[Limit, ...]:
    """A SKU's limits and the learned floors. Where two floors with one breach meet, a frame judges by the higher one.

    Nodes that do not report their stack use the floors of stack "not stated".
    """
    learned = (limit.model_copy(update={"stack": limit.stack or NOT_STATED}) for limit in file.limits)
    return (*limits, *learned)


def _key(limit: Limit) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    return (limit.metric, limit.device, tuple(sorted(limit.labels.items())))


def breaches(found: LearnedFloor, canary: bool) -> Iterator[tuple[Breach, float, str]]:
    """Yields (breach, floor in the metric's unit, meaning) of each limit that a revision has for the metric."""
    yield "warn" if canary else "fail", found.fail, TOO_SLOW
    if not canary:
        yield "warn", found.warn, SLOW


def as_file(
    sku: str,
    calibration: Calibration,
    level: str,
    revision: int,
    today: datetime.date,
    like: Sequence[Limit],
    work: Mapping[str, str],
) -> str:
    """Returns a calibration as the YAML of a revision.

    ``like``: the SKU's limits, for the floors' fault and action. ``work``: as in ``LearnedFile``.
    """
    limits: list[dict[str, Any]] = []
    for found in calibration.learned:
        for breach, floor, meaning in breaches(found, calibration.canary):
            kin = _kin(found, like)
            limits.append(
                {
                    "metric": found.metric, "device": found.kind,
                    **({"labels": dict(found.labels)} if found.labels else {}),
                    "unit": found.unit, "floor": floor, "breach": breach,
                    "fault": str(kin.fault if kin else _suspect(found.kind)),
                    "action": str(kin.action) if kin else "retest",
                    "meaning": meaning, "source": _source(found, calibration.canary), "date": today,
                    "stack": calibration.stack,
                }
            )  # fmt: skip
    content = {
        "learned": sku, "revision": revision, "date": today, "level": level, "stack": calibration.stack,
        "nodes": calibration.nodes, "canary": calibration.canary, "left_out": list(calibration.left_out),
        "work": dict(work), "limits": limits,
        "basis": [each.basis.model_dump() for each in calibration.learned],
    }  # fmt: skip
    head = "# Floors learned from this fleet's healthy nodes by `muster sku learn`; each calibration is a new file.\n"
    return head + yaml.safe_dump(content, allow_unicode=True, sort_keys=False, width=120)


def _kin(found: LearnedFloor, like: Sequence[Limit]) -> Limit | None:
    """The limit whose fault and action a slow device gets: a floor, or else another that fails or warns."""
    alike = [limit for limit in like if (limit.metric, limit.device) == (found.metric, found.kind)]
    return min((each for each in alike if each.breach != "invalid"), key=lambda each: each.key != "floor", default=None)


def _suspect(kind: str) -> FaultClass:
    """The part suspected of being slow, if no limit names one."""
    return FaultClass(kind) if kind in list(FaultClass) else FaultClass.NODE


def _source(found: LearnedFloor, canary: bool) -> str:
    first, basis = "as a canary " if canary else "", found.basis
    return (
        f"learned {first}from {basis.devices} devices in {basis.nodes} healthy nodes: median {basis.median:.5g} "
        f"{found.unit}, robust spread {100 * basis.spread:.2g} %"
    )
