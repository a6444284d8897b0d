"""The rules: which column of the frame each one evaluates. A rule holds where its margin is not negative.

A rule applies to all rows at once, so cost grows with the number of rules and not with metrics or devices. Where a rule
does not apply to a row, the margin is missing (NaN).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import pandas as pd

from muster_criteria.kinds import LIMIT_KINDS
from muster_criteria.model import Severity
from muster_criteria.sku_files.limits import Breach

SEVERITY = {"fail": Severity.CRITICAL, "warn": Severity.WARNING, "invalid": Severity.WARNING}
"""Severity of the finding by kind of breach. An invalid measurement is a warning, and counts as missing."""

BREACHES: tuple[Breach, ...] = get_args(Breach)

KINDS = {
    "expected_devices": "Every device that the SKU counts answers, and no other",
    **{kind.rule: kind.claim for kind in LIMIT_KINDS.values()},
    "peers": "No device is further from its peers than healthy ones are",
    "siblings": "No device is further from its siblings than healthy ones are",
    "drift": "No device is further from its own past than healthy ones are",
    "node_peers": "All devices of a node together are like their peers",
    "node_drift": "All devices of a node together are like at its earlier visits",
    "plausible": "No figure is better than a part of its kind can be",
}
"""{kind of rule: its claim}. Findings of one device are listed in this order."""


FLEET_KINDS = ("peers", "siblings", "drift", "node_peers", "node_drift")
"""Rules that compare with the fleet (see ``fleet``): their ``_by`` is the programme's comparison, not a limit."""

INVALID_KINDS = ("plausible",)
"""Rules that only make a row invalid; their ``_by`` is the programme's comparison."""

AMONG_ITSELF = (*(key for key, kind in LIMIT_KINDS.items() if kind.among_itself), "siblings")
"""Rules that compare a node with itself only. They can fail a device, but a node whose devices are all slow satisfies
them, so a measurement that no other rule covers is not judged."""


OF_PARAMETERS = (
    *(kind.rule for kind in LIMIT_KINDS.values() if kind.side != "exact" and kind.section != "inventory"),
    *FLEET_KINDS,
)
"""Rules whose limits hold only for the SKU file's parameters: they say nothing of measurements with other ones."""


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
        """Whether satisfying the rule judges a measurement: it is compared with something outside its own node."""
        return self.breach != "invalid" and self.kind not in AMONG_ITSELF

    @property
    def claim(self) -> str:
        """The condition that a healthy node satisfies."""
        return KINDS[self.kind]


RULES = tuple(
    Rule(kind, breach)
    for breach in BREACHES
    for kind in KINDS
    if (kind not in FLEET_KINDS if breach == "invalid" else kind not in INVALID_KINDS)
)

Violations = Mapping[str, Sequence[int]]
"""Column of a rule → labels of the rows that break it."""

Evaluate = Callable[[pd.DataFrame, Sequence[Rule]], Violations]
"""The frame of the rules' margins, and the rules → their violations."""
