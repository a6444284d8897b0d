"""Majority votes, for results that must be equal and whose correct value is unknown."""

from __future__ import annotations

import collections
from typing import Dict, Sequence


def dissenters(answers: Sequence[str], voters: str) -> Dict[int, str]:
    """Reasons by index of the answers that are not the majority's; all of them, where there is no majority.

    ``voters``: the plural noun for the voters.
    """
    votes = collections.Counter(answers)
    if len(votes) < 2:
        return {}
    answer, most = votes.most_common(1)[0]
    if 2 * most <= len(answers):
        return dict.fromkeys(range(len(answers)), "%s disagree and no answer has a majority" % voters)
    reason = "differs from %d of %d %s" % (most, len(answers), voters)
    return {index: reason for index, own in enumerate(answers) if own != answer}
