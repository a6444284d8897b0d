"""The rounds that a block has made, and what each of its nodes missed of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from muster_criteria.cluster.fabric.observed import Place
from muster_criteria.cluster.fabric.rounds import Kind, RoundResult
from muster_criteria.cluster.fabric.topology import Topology


@dataclasses.dataclass(frozen=True)
class Missed:
    """A round in which a node's pair was not fully measured, and why; ``across``: the pair lay between leaves."""

    number: int
    why: str
    across: bool


@dataclasses.dataclass(frozen=True)
class Rounds:
    """The rounds of a block: its topology and places, and what each round measured.

    ``why_unmet``: by node, why its pair could not be measured in its last try. ``missed``: by node, the rounds in which
    its pair measured less than planned, for any reason.
    """

    topology: Topology
    places: Mapping[str, Place]
    results: tuple[RoundResult, ...]
    why_unmet: Mapping[str, str] = dataclasses.field(default_factory=dict)
    missed: Mapping[str, Sequence[Missed]] = dataclasses.field(default_factory=dict)


def unmade(rounds: Rounds, member: str) -> Sequence[Missed]:
    """The rounds that a member missed and no round of confirmation made up for. A missed pair between leaves must be
    made up for between leaves, since some faults show under such load alone."""
    missed, node = rounds.missed.get(member, ()), rounds.topology.index.get(member)
    numbers, leaf = {each.number for each in missed}, rounds.topology.leaf_of
    made_up = sorted(
        leaf[a] != leaf[b]
        for each in rounds.results
        if each.round.kind is Kind.CONFIRM and each.round.number not in numbers
        for a, b in each.round.pairs
        if node in (a, b)
    )
    left = []
    for each in sorted(missed, key=lambda each: (not each.across, each.number)):
        if made_up and (made_up[-1] or not each.across):
            made_up.remove(made_up[-1] if each.across else made_up[0])
        else:
            left.append(each)
    return left
