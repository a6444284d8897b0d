"""Serials that a node reports while the records have the part in another node: a person decides where it is.

A node reports serials without proof. If a report alone moved parts, a node that reports another node's serials would
take parts out of that node, and its own faults would make them suspects.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.errors import BadNode
from muster.model.parts import Placement
from muster.rules.identity import BOARD, as_known, real_serials
from muster.rules.lifecycle.decisions import check_decision
from muster.store.database import access
from muster.store.database.digests import SuspectRow
from muster.store.database.engine import reading, writing
from muster.store.database.models import NodeRow, PartRow, PlacementRow, RunRow
from muster.store.machines.parts import current_serials, elsewhere, history, move_part, without_chassis
from muster_criteria.context.waivers import subject_of
from muster_criteria.model import Action, Evidence, Severity

if TYPE_CHECKING:
    from muster_criteria.measured import StageResult


def serials_elsewhere(node: str, result: StageResult | None) -> tuple[Evidence, ...]:
    """A warning for each part that the result reports while another node has it."""
    with reading() as session:
        reported = as_known(_reported(result), current_serials(session, node))
        found = elsewhere(session, node, without_chassis(session, node, reported))
    return tuple(
        Evidence(
            "serial_elsewhere",
            f"{slot} reports the serial {each.serial}, which sits in {each.slot} of {each.node}: no part was "
            f"moved, and nothing found on {slot} is charged to it; look which node has it: if this one, "
            f"`muster node confirm {node} {shlex.quote(each.serial)} --reason …`",
            slot,
            action=Action.INSPECT,
            severity=Severity.WARNING,
            expected="parts that sit in this node alone",
            incident=each.serial,
        )
        for slot, each in sorted(found.items())
    )


def unsure(known: Mapping[str, str], result: StageResult | None) -> frozenset[str]:
    """The slots in which the result reports another part than is ``known``, {slot: serial}."""
    reported = as_known(_reported(result), known)
    return frozenset(slot for slot, serial in reported.items() if known.get(slot) != serial)


def confirm(node: str, serial: str, person: str, reason: str, *, board: bool = False) -> list[Placement]:
    """Move the part to the slot in which ``node`` reported it last, on a person's decision; returns its places.

    ``board``: the part is the main board, which no run needs to have reported, since a report with an unknown board is
    refused as another machine's. Suspicions of the slot from while the part was contested follow the part from now on.
    Raises NoPerson without a named person and a reason, BadNode if the node's last run with serials did not report it,
    UnknownNode.
    """
    check_decision(person, reason, f"{serial} is not moved")
    with writing() as session:
        row = _locked(session, node, serial)
        runs = _runs_with_serials(session, row)
        reported = runs[0][1] if runs else {}
        slot = BOARD if board else next((slot for slot, each in reported.items() if each == serial), "")
        if not slot:
            raise BadNode(
                f"{node} has not reported the serial {serial} in its last run; test it: "
                f"`muster qualify {node} --reason …`, or add --board if it is a new main board"
            )
        evidence = {"person": person, "reason": reason}
        before = elsewhere(session, node, {slot: serial}).get(slot)
        for sentence in move_part(session, node, slot, serial):
            access.remark(session, row, person, sentence, evidence)
        access.remark(session, row, person, f"{slot} of {node} has the part {serial}: {reason.strip()}", evidence)
        _follow(session, row, slot, serial, [run_id for run_id, serials in runs if serials.get(slot) == serial])
        # A suspect may have come or gone: recheck both nodes, as after every other change of their evidence.
        for name in {node, before.node if before else node}:
            access.recheck(session, name, f"{person} confirmed that the part {serial} is in {node}")
    return history(serial)


def _locked(session: Session, node: str, serial: str) -> NodeRow:
    """The node's row; locks it and each node with a part of that serial, so that none enters production meanwhile."""
    sits = select(PlacementRow.node).join(PartRow).where(PartRow.serial == serial, PlacementRow.until.is_(None))
    rows = {name: access.node_row(session, name, lock=True) for name in sorted({node, *session.scalars(sits)})}
    return rows[node]


def _follow(session: Session, node: NodeRow, slot: str, serial: str, run_ids: list[str]) -> None:
    marked = select(SuspectRow).where(
        SuspectRow.node == node.name,
        SuspectRow.device == slot,
        SuspectRow.subject == "",
        SuspectRow.run_id.in_(run_ids),
    )
    for suspect in session.scalars(marked):
        suspect.subject = subject_of(slot, {slot: serial})


def _runs_with_serials(session: Session, node: NodeRow) -> list[tuple[str, dict[str, str]]]:
    """(run id, {slot: serial}) of the machine's runs that reported serials, latest first."""
    query = select(RunRow.run_id, RunRow.identity).where(RunRow.node == node.name, RunRow.machine == node.machine)
    found = ((row.run_id, row.identity.get("serials")) for row in session.execute(query.order_by(RunRow.id.desc())))
    return [(run_id, real_serials(serials)) for run_id, serials in found if isinstance(serials, dict) and serials]


def _reported(result: StageResult | None) -> dict[str, str]:
    serials = result.identity.get("serials") if result is not None else None
    return real_serials(serials) if isinstance(serials, Mapping) else {}
