"""Whether a machine is the one that the records know, by the serials that its firmware reports."""

from __future__ import annotations

import collections
import re
import shlex
from collections.abc import Mapping
from typing import Any

from muster_criteria.devices import kind_of

SYSTEM, BOARD = "system", "board"
CHASSIS = (SYSTEM, BOARD)
"""The parts whose serials identify a machine; any other part may be swapped. A person confirms a swap of the board."""

_FILLERS = re.compile(
    r"|(0x)?(0|([0-9a-fx])\3+)|0?(1234567890?)+[a-f]*|[-.]+|none|null|n/?a|unknown|default string"
    r"|invalid|empty|undefined|unspecified|o\.?e\.?m\.?"
    r"|not (specified|available|applicable|settable|present|provided)"
    r"|to be filled( by o\.?e\.?m\.?)?|((system|chassis|base ?board) )?serial ?number",
    re.IGNORECASE,
)
"""Fillers that firmware reports instead of a serial."""


def real_serials(reported: Mapping[str, str | None]) -> dict[str, str]:
    """{slot: serial} as firmware reports them, without fillers."""
    stripped = {slot: (serial or "").strip() for slot, serial in reported.items()}
    return {slot: serial for slot, serial in stripped.items() if not _FILLERS.fullmatch(serial)}


def as_known(serials: Mapping[str, Any], known: Mapping[str, str]) -> dict[str, Any]:
    """Returns the reported serials, {slot: serial}, in the form BOARD/UUID for GPUs that are ``known`` by it.

    A GPU reports only its board's serial when no other GPU of the node has the same one, as when its sibling fails.
    """
    return {
        slot: known[slot]
        if serial and kind_of(slot) == "gpu" and known.get(slot, "").startswith(f"{serial}/")
        else serial
        for slot, serial in serials.items()
    }


def another_machine(node: str, serials: Mapping[str, str], known: Mapping[str, str]) -> str:
    """Why a machine with these serials, {slot: serial}, is not the ``known`` one, with the way out; "" if it may be.

    It is another one if a chassis serial differs, or if it reports no known serial of chassis or GPUs. If the chassis
    was never read, all GPUs may be new, as after a swap of the HGX board: nothing else identifies the machine.
    """
    for slot in CHASSIS:
        if slot in known and serials.get(slot, known[slot]) != known[slot]:
            return _other_chassis(node, slot, known, serials)
    if not _unrecognised(serials, known):
        return ""
    slot = min(slot for slot in serials if kind_of(slot) == "gpu")
    return (
        f"{node} reports no serial of its system or board that is known, and none of its GPUs: this is a different "
        f"machine; give it a name of its own, or `{replacement(node, {slot: serials[slot]})}`; if it is this one "
        "with other GPUs, let the SSH user read its DMI serials (docs/examples/muster.sudoers)"
    )


def _unrecognised(serials: Mapping[str, str], known: Mapping[str, str]) -> bool:
    """Whether a machine reports no known chassis serial, although one is recorded, and several GPUs, all new.

    A single GPU may be a spare.
    """
    chassis = {slot: known[slot] for slot in CHASSIS if slot in known}
    if not chassis or chassis.items() & serials.items():
        return False
    # GPUs that share their board's serial have it before a "/" once two of them answer.
    new, old = ({each.partition("/")[0] for slot, each in parts.items() if kind_of(slot) == "gpu"}
                for parts in (serials, known))  # fmt: skip
    return min(len(new), len(old)) > 1 and new.isdisjoint(old)


def _other_chassis(node: str, slot: str, known: Mapping[str, str], serials: Mapping[str, str]) -> str:
    another = replacement(node, {each: serials[each] for each in CHASSIS if each in serials})
    differs = f"{node} reports the {slot} serial {serials[slot]}, but is enrolled with {known[slot]}"
    if slot == BOARD and SYSTEM in serials and serials[SYSTEM] == known.get(SYSTEM):
        confirmed = f"muster node confirm {node} {shlex.quote(serials[BOARD])} --board --reason …"
        return f"{differs}: if its main board was replaced, `{confirmed}`; if this is a different machine, `{another}`"
    return f"{differs}: this is a different machine; give it a name of its own, or `{another}`"


def replacement(node: str, serials: Mapping[str, str]) -> str:
    """The command that gives the node's name to the machine with these serials, {slot: serial}.

    Without a serial that differs, a machine with the same host key, as after a swap around the disks, is refused.
    """
    given = "".join(f" --serial {shlex.quote(f'{slot}={serial}')}" for slot, serial in serials.items())
    return f"muster node replace {node}{given} --reason …"


def in_one_slot(serials: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Returns the serials; one that several slots report is kept only for the slot where it is known."""
    often = collections.Counter((kind_of(slot), serial) for slot, serial in serials.items())
    return {
        slot: serial
        for slot, serial in serials.items()
        if often[kind_of(slot), serial] == 1 or known.get(slot) == serial
    }
