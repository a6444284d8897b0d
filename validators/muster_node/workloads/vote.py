"""Majority votes, for results that must be equal and whose correct value is unknown."""

from __future__ import annotations

import collections
from collections.abc import Sequence


def dissenters(answers: Sequence[str], voters: str) -> dict[int, str]:
    """Reasons by index of the answers that are not the majority's; all of them, where there is no majority.

    ``voters``: the plural noun for the voters.
    """
    votes = collections.Counter(answers)
    if len(votes) < 2:
        return {}
    answer, most = votes.most_common(1)[0]
    if 2 * most <= len(answers):
        return dict.fromkeys(range(len(answers)), f"{voters} disagree and no answer has a majority")
    reason = f"differs from {most} of {len(answers)} {voters}"
    return {index: reason for index, own in enumerate(answers) if own != answer}
