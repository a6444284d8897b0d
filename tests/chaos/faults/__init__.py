"""Every kind of fault, by its class: one generator function each, which strikes, yields its victim, and lifts."""

from __future__ import annotations

import dataclasses
import importlib
import random
from collections.abc import Callable, Collection, Iterator

from tests.chaos.link import OPEN, Link
from tests.chaos.world import World

CLASSES = ("controller", "services", "nodes", "people")
"""The modules of this package, each a class of faults."""

Strike = Callable[[World, random.Random], Iterator[str]]


class NotNow(Exception):
    """There is nothing that this fault could strike at this moment."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of fault. ``seconds``: the shortest and the longest time until it is lifted."""

    name: str
    of: str
    strike: Strike
    seconds: tuple[float, float]


KINDS: dict[str, Kind] = {}


def fault(shortest: float, longest: float) -> Callable[[Strike], Strike]:
    """Register a kind of fault, named by its function, in the class of its module."""

    def enter(strike: Strike) -> Strike:
        name = str(strike.__name__)
        KINDS[name] = Kind(name, strike.__module__.rpartition(".")[2], strike, (shortest, longest))
        return strike

    return enter


def misbehaving(link: Link, mode: str | bytes, name: str) -> Iterator[str]:
    """What is behind this link behaves so, unless another fault has it. ``name``: the victim."""
    if link.mode != OPEN:
        raise NotNow
    link.set(mode)
    yield name
    link.set(OPEN)


def load(only: Collection[str] = ()) -> dict[str, list[Kind]]:
    """Returns all kinds by class, in the order in which they are written; or ``only`` these. Raises KeyError."""
    for each in CLASSES:
        importlib.import_module(f"{__name__}.{each}")
    kinds = [KINDS[name] for name in only] or KINDS.values()
    found = {each: [kind for kind in kinds if kind.of == each] for each in CLASSES}
    return {each: of_class for each, of_class in found.items() if of_class}
