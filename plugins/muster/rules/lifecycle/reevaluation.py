"""When a PROVISIONAL verdict may be replaced by a re-evaluation of the same result. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from muster.errors import IllegalMove, NodeLeased, Refusal
from muster.model.nodes import Lease, Node
from muster.model.runs import StageVerdict
from muster.model.stages import STAGES
from muster.model.states import State
from muster.rules.lifecycle.waivers import Standing
from muster_criteria.context.waivers import concerns
from muster_criteria.model import Verdict

STATES = frozenset({State.QUALIFIED, State.PRODUCTION})
"""States of nodes whose verdicts are re-evaluated; in all others a person or a run decides next."""


def waiting(
    nodes: Collection[Node], verdicts: Mapping[str, Sequence[StageVerdict]], leased: Collection[str]
) -> dict[str, list[StageVerdict]]:
    """Returns {node: its PROVISIONAL verdicts} of nodes that are qualified or serve, without those that a run holds and
    those in shadow mode.
    """
    free = [each for each in nodes if each.state in STATES and not each.shadow and each.name not in leased]
    found = {
        node.name: [
            each for each in verdicts.get(node.name, ()) if each.verdict is Verdict.PROVISIONAL and each.stage in STAGES
        ]
        for node in free
    }
    return {node: provisional for node, provisional in found.items() if provisional}


def check(node: Node, lease: Lease | None, run_id: str, provisional: Collection[str], stages: Collection[str]) -> None:
    """Raise NodeLeased or IllegalMove unless ``stages`` of the run may be replaced.

    ``provisional``: the stages of that run whose PROVISIONAL verdict is current.
    """
    if lease is not None:
        raise NodeLeased(f"{node.name} is leased by run {lease.run_id} of {lease.dag_id}")
    if node.state not in STATES:
        raise IllegalMove(f"{node.name} is in {node.state} now and is not re-evaluated", Refusal.STATE)
    for stage in stages:
        if stage not in provisional:
            sentence = f"{stage} of run {run_id} is not PROVISIONAL any more and is not re-evaluated"
            raise IllegalMove(sentence, Refusal.NOT_PROVISIONAL)


def check_waivers(applied: Standing, now: Standing) -> None:
    """Raise IllegalMove if other waivers hold for the machine ``now`` than were applied to a judgement."""
    then, still = ({each for each in one.waivers if concerns(each, now.machine)} for one in (applied, now))
    if then != still:
        sentence = f"a waiver of {now.machine.node} was given, revoked or has ended while it was re-evaluated"
        raise IllegalMove(sentence, Refusal.WAIVERS_CHANGED)
