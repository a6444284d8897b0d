"""Earlier convictions of the same part, told with what is found on it now: they decide nothing, and a person much."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import pandas as pd

from muster_criteria.model import Finding, Severity


def with_past(findings: Iterable[Finding], frame: pd.DataFrame) -> list[Finding]:
    """The findings; those that ask for something say how many earlier runs convicted their part.

    ``frame``: the judged one, for its column ``previous_faults``.
    """
    past = dict(zip(frame["device"], frame["previous_faults"], strict=True))
    return [
        dataclasses.replace(
            each, summary=f"{each.summary} It failed in {count} {'run' if count == 1 else 'runs'} before."
        )
        if each.severity is not Severity.INFO and (count := past.get(each.device, 0))
        else each
        for each in findings
    ]
