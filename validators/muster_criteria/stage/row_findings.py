"""A finding about one row of the frame: what all kinds have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster_criteria.labels import labelled
from muster_criteria.model import Action, Extent, FaultClass, Finding, measurement_reference
from muster_criteria.stage.rules import SEVERITY, Rule


def row_finding(
    row: Mapping[str, Any],
    rule: Rule,
    *,
    fault_class: FaultClass,
    action: Action,
    lead: str,
    observed: str,
    expected: str,
    source: str,
    detail: str = "",
    extent: Extent | None = None,
) -> Finding:
    """The finding of a row that breaks ``rule``. ``lead``: subject and verb ("gpu3 multiplies too slowly"); ``detail``:
    text added to ``observed`` only.
    """
    name = labelled(row["metric"], row["labels"])
    return Finding(
        rule=rule.kind,
        metric=row["metric"],
        device=row["device"],
        severity=SEVERITY[rule.breach],
        fault_class=fault_class,
        action=action,
        observed=f"{observed}{detail}",
        expected=expected,
        source=source,
        summary=f"{lead}: {name} is {observed}, expected {expected}.",
        labels=row["labels"],
        measurements=(measurement_reference(row["probe"], row["metric"], row["device"], row["labels"]),),
        extent=extent,
    )
