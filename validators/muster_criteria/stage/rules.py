"""The rules: which column of the frame each one looks at. A rule holds where its margin is not negative.

A rule is one question asked of every row at once ("does anything lie below its floor?"), so that cost grows with the
number of rules and not with metrics or devices. Where a rule says nothing of a row, the margin is missing (NaN).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import pandas as pd

from muster_criteria.model import Severity
from muster_criteria.sku_files.limits import Breach

SEVERITY = {"fail": Severity.CRITICAL, "warn": Severity.WARNING, "void": Severity.WARNING}
"""What a breach of each kind makes of the finding. A void measurement is told as a warning, and counts as missing."""

BREACHES: tuple[Breach, ...] = get_args(Breach)

KINDS = {
    "expected_devices": "Every device that the SKU counts answers, and no other",
    "expected": "Every item of the inventory is as the SKU says",
    "exactly": "What must be an exact number is that number",
    "floor": "No measurement lies below its floor",
    "ceiling": "No measurement lies above its ceiling",
    "siblings_at_least": "No device lies below its share of its siblings' median",
    "siblings_at_most": "No device lies above its share of its siblings' median",
    "spread_at_most": "No measurement's repeats spread wider than they may",
    "peers": "No device is further from its peers than healthy ones are",
    "siblings": "No device is further from its siblings than healthy ones are",
    "drift": "No device is further from its own past than healthy ones are",
    "cusum": "No device moves away from its own past, visit by visit",
    "node_peers": "All devices of a node together are like their peers",
    "node_drift": "All devices of a node together are like at its earlier visits",
    "plausible": "No figure is better than a part of its kind can be",
}
"""Each kind of rule with what it claims. Order is the order in which findings of one device are told."""


FLEET_KINDS = ("peers", "siblings", "drift", "cusum", "node_peers", "node_drift")
"""Rules by which the fleet judges (see ``fleet``): their ``_by`` is the comparison in the programme, not a limit."""

VOID_KINDS = ("plausible",)
"""Rules that convict nobody and only void; their ``_by`` is the comparison in the programme too."""

AMONG_ITSELF = ("siblings_at_least", "siblings_at_most", "spread_at_most", "siblings")
"""Rules by which a node is compared with nothing but itself. They convict, but all parts slow alike satisfy them, so a
figure that nothing else looks at is not judged."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """One kind of rule at one gravity: "floor_fail"."""

    kind: str
    breach: Breach

    @property
    def column(self) -> str:
        """The frame's column that holds the rule's margins."""
        return f"{self.kind}_{self.breach}"

    @property
    def judges(self) -> bool:
        """Whether a figure that satisfies the rule has been judged: held against something outside its own node."""
        return self.breach != "void" and self.kind not in AMONG_ITSELF

    @property
    def claim(self) -> str:
        """What the rule says of a healthy node."""
        return KINDS[self.kind]


RULES = tuple(
    Rule(kind, breach)
    for breach in BREACHES
    for kind in KINDS
    if (kind not in FLEET_KINDS if breach == "void" else kind not in VOID_KINDS)
)

Violations = Mapping[str, Sequence[int]]
"""Column of a rule → labels of the rows that break it."""

Evaluate = Callable[[pd.DataFrame, Sequence[Rule]], Violations]


def applicable(frame: pd.DataFrame) -> tuple[Rule, ...]:
    """The rules that have something to say of this frame."""
    return tuple(rule for rule in RULES if rule.column in frame.columns and frame[rule.column].notna().any())


def violations(frame: pd.DataFrame, rules: Sequence[Rule]) -> dict[str, list[int]]:
    """Rows that break each rule, computed directly: what Great Expectations must find too."""
    return {rule.column: frame.index[frame[rule.column] < 0].tolist() for rule in rules}
