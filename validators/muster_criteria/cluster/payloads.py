"""Corrupted payloads: wrong elements by sender and receiver.

A member with wrong elements to or from most of its partners fails. A single pair may be the path between the two, and a
wrong sum has no sender: then no member fails, and none of those concerned passes.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster_criteria.cluster.model import COLLECTIVES, ZERO, BlockFindings, Measurements
from muster_criteria.model import Action, FaultClass, Finding, Lack, Severity
from muster_criteria.words import listed

PARTNERS_MIN = 2
"""Fewest partners with wrong payloads that make a member the cause; with fewer, the partner may be the cause."""


def judge_payloads(members: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Finds senders and receivers that corrupt payloads with most partners; other members concerned are suspects."""
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
    faulty = _spoilers(cells, len(members) - 1, block)
    for (sender, receiver), count in sorted(cells.items()):
        if not {sender, receiver} & faulty:
            why = f"{count:.0f} elements came wrong from {sender} to {receiver}: either of them, or the path between"
            block.suspect((sender, receiver), Lack.BAD_PATH, why)
    if sums and not faulty:
        _suspect_sums(sums, list(members), block)


def _spoilers(cells: Mapping[tuple[str, str], float], partners: int, block: BlockFindings) -> set[str]:
    """Members with wrong elements to or from more than half of all partners; adds a finding on each."""
    faulty = set()
    for role, side in (("sent", 0), ("received", 1)):
        for name in sorted({cell[side] for cell in cells}):
            wrong = {cell[1 - side]: count for cell, count in cells.items() if cell[side] == name}
            if len(wrong) < PARTNERS_MIN or 2 * len(wrong) <= partners:
                continue
            faulty.add(name)
            observed = f"{sum(wrong.values()):.0f} wrong elements {role}, with {listed(sorted(wrong))}"
            block.add(
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
                    source=ZERO["collective_mismatches"],
                    summary=f"The node corrupts payloads: {observed}.",
                ),
            )
    return faulty


def _suspect_sums(sums: Mapping[str, float], members: list[str], block: BlockFindings) -> None:
    names = sorted(sums)
    wrong = f"{listed(names)} got wrong sums ({sum(sums.values()):.0f} elements)"
    why = f"{wrong}, and a sum does not show whose part was wrong"
    block.suspect(members, Lack.WRONG_SUM, why)
    block.note(why)
