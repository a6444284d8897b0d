"""Who spoils payloads: elements that came wrong, by sender and receiver.

Whoever is wrong with most partners is to blame. One pair alone may be the path between them, and a wrong sum names
nobody: then nobody is convicted, and nobody passed.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster_criteria.cluster.model import COLLECTIVES, Case, Measurements
from muster_criteria.model import Action, FaultClass, Finding, Severity
from muster_criteria.words import listed

PARTNERS_MIN = 2
"""Wrong with one partner only, the other may be the one to blame."""


def judge_payloads(members: Mapping[str, Measurements], case: Case) -> None:
    """Convict senders and receivers that spoil payloads with most of their partners; doubt whom nobody can tell."""
    cells: dict[tuple[str, str], float] = {}
    sums: dict[str, float] = {}
    for name, measured in members.items():
        by_op: dict[str, float] = {}
        for row in measured.rows(COLLECTIVES, "collective_mismatches"):
            sender, op = row.labels.get("sender"), row.labels.get("op", "")
            if row.value and sender in members:
                cells[str(sender), name] = cells.get((str(sender), name), 0.0) + row.value
                by_op[op] = by_op.get(op, 0.0) - row.value
            elif row.value:
                by_op[op] = by_op.get(op, 0.0) + row.value
        unexplained = sum(count for count in by_op.values() if count > 0)
        if unexplained:
            sums[name] = unexplained
    if not cells and not sums:
        return
    guilty = _convict(cells, len(members) - 1, case)
    for (sender, receiver), count in sorted(cells.items()):
        if not {sender, receiver} & guilty:
            why = f"{count:.0f} elements came wrong from {sender} to {receiver}: either of them, or the path between"
            case.doubt((sender, receiver), why)
    if sums and not guilty:
        _doubt_sums(sums, list(members), case)


def _convict(cells: Mapping[tuple[str, str], float], partners: int, case: Case) -> set[str]:
    """Whoever is wrong with more than half of all partners; the count of wrong elements is told."""
    guilty = set()
    for role, side in (("sent", 0), ("received", 1)):
        for name in sorted({cell[side] for cell in cells}):
            wrong = {cell[1 - side]: count for cell, count in cells.items() if cell[side] == name}
            if len(wrong) < PARTNERS_MIN or 2 * len(wrong) <= partners:
                continue
            guilty.add(name)
            observed = f"{sum(wrong.values()):.0f} wrong elements {role}, with {listed(sorted(wrong))}"
            case.find(
                name,
                Finding(
                    rule="payload",
                    metric="collective_mismatches",
                    device="node",
                    severity=Severity.CRITICAL,
                    fault_class=FaultClass.NIC,
                    action=Action.INSPECT,
                    observed=observed,
                    expected="0",
                    source="by definition: payloads are small integers, so every element has one right value",
                    summary=f"The node spoils payloads: {observed}.",
                ),
            )
    return guilty


def _doubt_sums(sums: Mapping[str, float], members: list[str], case: Case) -> None:
    names = sorted(sums)
    why = (
        f"{listed(names)} got wrong sums ({sum(sums.values()):.0f} elements), which does not tell whose part was wrong"
    )
    case.doubt(members, why)
    case.note(why)
