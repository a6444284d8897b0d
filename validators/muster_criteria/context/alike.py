"""Nodes that fail alike within a short time: one visit compared with what was found lately in its rack and image. Pure.

When a third node of one rack fails in the same metric, on the same kind of device and for the same cause as far as
labels name one, the facility is suspected first; of one image, software or the golden reference. The stage still fails,
but no device is returned and the node is held instead of quarantined. Corrupted data is exempt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from muster_criteria.context.suspicion import METRICS as CORRUPTION
from muster_criteria.fleet.series.readings import STACK
from muster_criteria.model import (
    COMMON_CAUSE,
    SHARED_CAUSE,
    Action,
    FaultClass,
    Finding,
    Judgement,
    Severity,
    symptom_name,
)
from muster_criteria.stage.fleet_findings import FAILED
from muster_criteria.words import listed

IMAGE = ("kernel", *STACK)
"""The parts of a result's environment that identify an image: kernel, driver and libraries."""
GROUP_SHARE = 0.5
"""From this share of a group's tested nodes on, the cause is the group's."""
NODES_MIN = 3

BLAME = {"rack": FaultClass.FACILITY, "image": FaultClass.SOFTWARE}
REMEDY = {FaultClass.FACILITY: Action.ASK_FACILITY, FaultClass.SOFTWARE: Action.FIX_SOFTWARE}
GROUPED = "by"
"""The label of a common cause among nodes; one within a node has none."""


@dataclasses.dataclass(frozen=True)
class Neighbour:
    """A node tested lately in the same stage: its groups ({"rack": "r1", "image": …}), and what it failed in.

    ``accepted``: the waived ones. A known fault is no sign of a common cause, yet the node does not count as healthy.
    """

    node: str
    groups: Mapping[str, str]
    failing: frozenset[str]
    accepted: frozenset[str] = frozenset()


def groups_of(rack: str, environment: Mapping[str, str | None]) -> dict[str, str]:
    """The groups that a node belongs to, as {kind: name}; one that is not known is left out."""
    image = " ".join(f"{name} {environment[name]}" for name in IMAGE if environment.get(name))
    return {kind: name for kind, name in (("rack", rack), ("image", image)) if name}


def symptom(finding: Finding) -> str:
    """Returns the symptom that nodes may share; "" for a finding that is not critical or is exempt."""
    if finding.severity is not Severity.CRITICAL or finding.waived or finding.rule == COMMON_CAUSE:
        return ""
    return "" if finding.metric in CORRUPTION else symptom_name(finding)


def compared_with(judgement: Judgement, node: str, groups: Mapping[str, str], others: Iterable[Neighbour]) -> Judgement:
    """The judgement, with a common cause for each symptom that this node shares with others of its rack or image.

    They must be at least ``NODES_MIN`` nodes, this one included, and ``GROUP_SHARE`` of the group's tested nodes; nodes
    on which the symptom is waived count for the share only.
    """
    known = [each for each in others if each.node != node]
    symptoms = {name for finding in judgement.findings if (name := symptom(finding))}
    causes = [
        cause
        for name in sorted(symptoms)
        for by, group in sorted(groups.items(), reverse=True)  # a rack before an image
        if (cause := _cause(name, by, group, node, known, judgement.findings)) is not None
    ]
    if not causes:
        return judgement
    explained = {cause.metric for cause in causes}
    action = {cause.metric: cause.action for cause in reversed(causes)}
    findings = tuple(
        dataclasses.replace(each, confidence=min(each.confidence, SHARED_CAUSE), action=action[symptom(each)])
        if symptom(each) in explained
        else each
        for each in judgement.findings
    )
    return dataclasses.replace(judgement, findings=(*causes, *findings))


def _cause(
    name: str, by: str, group: str, node: str, others: Sequence[Neighbour], findings: Sequence[Finding]
) -> Finding | None:
    of = [each for each in others if each.groups.get(by) == group]
    alike = sorted(each.node for each in of if name in each.failing | each.accepted)
    new = sum(name in each.failing for each in of) + 1
    count, tested = len(alike) + 1, len(of) + 1
    if new < NODES_MIN or count < GROUP_SHARE * tested:
        return None
    fault = BLAME[by]
    return Finding(
        rule=COMMON_CAUSE,
        metric=name,
        device="node",
        severity=Severity.CRITICAL,
        fault_class=fault,
        action=REMEDY[fault],
        observed=f"{listed([node, *alike])} fail alike",
        expected="faults of nodes to come one at a time",
        source=f"chosen here: {NODES_MIN} nodes and {100 * GROUP_SHARE:.0f} % of those tested are no coincidence",
        summary=(
            f"{count} of {tested} nodes of {by} {group} that were tested lately fail alike in {name} ({listed(alike)} "
            f"before this one): suspect {fault} first; return no device until that is ruled out."
        ),
        labels=((GROUPED, by), ("name", group)),
        confidence=FAILED,
        measurements=tuple(
            dict.fromkeys(each for finding in findings if symptom(finding) == name for each in finding.measurements)
        ),
    )


def why_held(findings: Iterable[Finding]) -> str:
    """Why a node with these findings is held instead of quarantined; "" if any critical finding is its own."""
    given = list(findings)
    causes = [
        each for each in given if each.rule == COMMON_CAUSE and dict(each.labels).get(GROUPED) and not each.waived
    ]
    explained = {each.metric for each in causes}
    # An exempt finding has no symptom, so it always counts as the node's own.
    own = [
        each
        for each in given
        if each.severity is Severity.CRITICAL
        and not each.waived
        and each.rule != COMMON_CAUSE
        and symptom(each) not in explained
    ]
    return "" if own or not causes else causes[0].summary.rstrip(".")
