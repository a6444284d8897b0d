"""Verdicts on the members of a block, as tests look at them."""

from __future__ import annotations

from muster_criteria.cluster.model import ClusterJudgement
from muster_criteria.model import Lack, Verdict


def cleared(judgement: ClusterJudgement) -> tuple[str, ...]:
    """Members that passed."""
    return tuple(name for name, member in judgement.members.items() if member.verdict is Verdict.PASS)


def inconclusive(judgement: ClusterJudgement) -> dict[str, set[Lack]]:
    """The codes of what is missing, by member with an INCONCLUSIVE verdict."""
    return {
        name: {gap.code for gap in member.coverage.missing}
        for name, member in judgement.members.items()
        if member.verdict is Verdict.INCONCLUSIVE
    }


def reason(judgement: ClusterJudgement, name: str) -> str:
    """The reason of one member's verdict."""
    return judgement.members[name].reason


def verdicts(judgement: ClusterJudgement) -> set[Verdict]:
    """The verdicts of all members."""
    return {member.verdict for member in judgement.members.values()}
