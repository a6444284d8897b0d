"""Verdicts on the members of a block, as tests look at them."""

from __future__ import annotations

from muster_criteria.cluster.model import ClusterJudgement
from muster_criteria.model import Verdict


def cleared(judgement: ClusterJudgement) -> tuple[str, ...]:
    """Members that passed."""
    return tuple(member.name for member in judgement.members if member.verdict is Verdict.PASS)


def inconclusive(judgement: ClusterJudgement) -> dict[str, str]:
    """Reasons of INCONCLUSIVE verdicts, by member."""
    return {member.name: member.reason for member in judgement.members if member.verdict is Verdict.INCONCLUSIVE}


def verdicts(judgement: ClusterJudgement) -> set[Verdict]:
    """The verdicts of all members."""
    return {member.verdict for member in judgement.members}
