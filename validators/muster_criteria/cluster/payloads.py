"""Corrupted payloads: wrong elements by sender and receiver.

A member fails if it corrupts what it exchanges with most of its partners. For a single pair the path between the two
may be at fault, and for two groups of nodes whatever lies between them. Rings forward what others sent, so only
exchanges between two nodes show who corrupted a payload. A wrong sum has no sender: no member fails for it, and none of
those concerned passes. Wrong payloads between two GPUs of one member are that member's fault, unless more than half of
several members show them: a fabric that they share may be the cause, as in a rack, and none passes.
"""

from __future__ import annotations

from collections.abc import Mapping

from muster_criteria.cluster.model import COLLECTIVES, PAYLOAD, ZERO, BlockFindings, Measurements
from muster_criteria.model import Action, Extent, FaultClass, Finding, Lack, Severity
from muster_criteria.words import listed

PARTNERS_MIN = 2
"""Fewest partners with wrong payloads that make a member the cause; with fewer, the partner may be."""

BETWEEN_TWO = frozenset({"all_to_all", "send_recv"})
"""Collectives that send each payload directly to its receiver, without a node between that forwards it."""


def judge_payloads(members: Mapping[str, Measurements], block: BlockFindings) -> None:
    """Finds senders and receivers that corrupt payloads with most partners; other members concerned are suspects."""
    cells: dict[tuple[str, str], float] = {}
    between_two: dict[tuple[str, str], float] = {}
    within: dict[str, dict[str, float]] = {}
    sums: dict[str, float] = {}
    for name, measured in members.items():
        by_op: dict[str, float] = {}
        for row in measured.rows(COLLECTIVES, "collective_mismatches"):
            sender, op = row.labels.get("sender"), row.labels.get("op", "")
            if row.value and sender == name and op in BETWEEN_TWO:
                way = f"from {row.labels.get('from', 'a GPU')} to {row.device}"
                own = within.setdefault(name, {})
                own[way] = own.get(way, 0.0) + row.value
                by_op[op] = by_op.get(op, 0.0) - row.value
            elif row.value and sender in members:
                cells[str(sender), name] = cells.get((str(sender), name), 0.0) + row.value
                if op in BETWEEN_TWO:
                    between_two[str(sender), name] = between_two.get((str(sender), name), 0.0) + row.value
                by_op[op] = by_op.get(op, 0.0) - row.value
            elif row.value:
                by_op[op] = by_op.get(op, 0.0) + row.value
        unexplained = sum(count for count in by_op.values() if count > 0)
        if unexplained:
            sums[name] = unexplained
    faulty = _spoilers(between_two, len(members) - 1, block) | within.keys()
    shared = len(within) >= PARTNERS_MIN and 2 * len(within) > len(members)
    for name, ways in within.items():
        observed = f"{sum(ways.values()):.0f} wrong elements {listed(sorted(ways))}"
        if shared:
            block.suspect((name,), Lack.BAD_PATH, f"{observed}: on most members, which may share a fabric")
        else:
            block.add(name, _finding(observed, sum(ways.values()), FaultClass.GPU))
    for (sender, receiver), count in sorted(cells.items()):
        if not {sender, receiver} & faulty:
            whose = (
                "either of them, or the path between" if sender != receiver else "another node may have forwarded them"
            )
            why = f"{count:.0f} elements came wrong from {sender} to {receiver}: {whose}"
            block.suspect((sender, receiver), Lack.BAD_PATH, why)
    if sums and not faulty:
        _suspect_sums(sums, list(members), block)


def _spoilers(cells: Mapping[tuple[str, str], float], partners: int, block: BlockFindings) -> set[str]:
    """Members with wrong elements to or from more than half of all partners; adds a finding on each.

    None if some of them exchanged clean payloads with each other: the cause then lies between two groups, such as a
    leaf's uplink.
    """
    found: dict[tuple[str, int], dict[str, float]] = {}
    left = dict(cells)
    while True:
        each = {(name, side): _partners(left, name, side) for cell in left for side, name in enumerate(cell)}
        most = [key for key, wrong in each.items() if len(wrong) >= PARTNERS_MIN and 2 * len(wrong) > partners]
        if not most:
            break
        worst = max(sorted(most), key=lambda key: len(each[key]))
        found[worst] = _partners(cells, *worst)
        left = {cell: count for cell, count in left.items() if cell[worst[1]] != worst[0]}
    faulty = {name for name, _ in found}
    if any(faulty - {name} - set(wrong) for (name, _), wrong in found.items()):
        return set()
    for (name, side), wrong in sorted(found.items()):
        role = ("sent", "received")[side]
        observed = f"{sum(wrong.values()):.0f} wrong elements {role}, with {listed(sorted(wrong))}"
        block.add(name, _finding(observed, sum(wrong.values()), FaultClass.NIC))
    return faulty


def _finding(observed: str, elements: float, fault: FaultClass) -> Finding:
    return Finding(
        rule=PAYLOAD,
        metric="collective_mismatches",
        device="node",
        severity=Severity.CRITICAL,
        fault_class=fault,
        action=Action.INSPECT,
        observed=observed,
        expected="0",
        source=ZERO["collective_mismatches"],
        summary=f"The node corrupts payloads: {observed}.",
        extent=Extent(elements, "count", "higher"),
    )


def _partners(cells: Mapping[tuple[str, str], float], name: str, side: int) -> dict[str, float]:
    return {cell[1 - side]: count for cell, count in cells.items() if cell[side] == name}


def _suspect_sums(sums: Mapping[str, float], members: list[str], block: BlockFindings) -> None:
    names = sorted(sums)
    wrong = f"{listed(names)} got wrong sums ({sum(sums.values()):.0f} elements)"
    why = f"{wrong}, and a sum does not show whose part was wrong"
    block.suspect(members, Lack.WRONG_SUM, why)
    block.note(why)
