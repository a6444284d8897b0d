"""Earlier failures of the same part, added to its present findings for people; they do not affect the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from muster_criteria.model import Finding, Severity


def with_past(findings: Iterable[Finding], past: Mapping[str, int]) -> list[Finding]:
    """The findings; those above severity ``info`` name the number of earlier runs in which their part failed.

    ``past``: {device: earlier runs in which the part that sits there failed}.
    """
    return [
        dataclasses.replace(
            each, summary=f"{each.summary} It failed in {count} {'run' if count == 1 else 'runs'} before."
        )
        if each.severity is not Severity.INFO and (count := past.get(each.device, 0))
        else each
        for each in findings
    ]
