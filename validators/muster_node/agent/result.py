"""Putting a result together so that it always fits its limit and can always be written."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from muster_node.contract import RESULT_BYTES_MAX, Measurement, Result

NOTES_MAX = 200
NOTE_MAX = 500


def encode(result: Result, limit: int = RESULT_BYTES_MAX) -> bytes:
    """The result as JSON of at most ``limit`` bytes. What does not fit is dropped, and a note lists it.

    Space is shared evenly: a probe with few measurements loses nothing to one with very many.
    """
    result = dataclasses.replace(result, notes=_capped_notes(result.notes))
    data = result.to_json().encode()
    if len(data) <= limit:
        return data
    bare = dataclasses.replace(result, measurements=[])
    # The notes on what was dropped need room too.
    room = limit - len(bare.to_json().encode()) - 20_000
    by_probe: dict[str, list[Measurement]] = {}
    for measurement in result.measurements:
        by_probe.setdefault(measurement.probe, []).append(measurement)
    measurements, notes = _fit(by_probe, room)
    return dataclasses.replace(result, measurements=measurements, notes=[*result.notes, *notes]).to_json().encode()


def _capped_notes(notes: Sequence[str]) -> list[str]:
    kept = [note[:NOTE_MAX] for note in notes[:NOTES_MAX]]
    if len(notes) > NOTES_MAX:
        kept.append(f"{len(notes) - NOTES_MAX} further notes were dropped")
    return kept


def _size(entry: Any) -> int:
    # Two bytes for the ", " between entries.
    return len(json.dumps(dataclasses.asdict(entry), sort_keys=True).encode()) + 2


def _fit(groups: dict[str, list[Measurement]], room: int) -> tuple[list[Measurement], list[str]]:
    """The entries of each group that fit into an even share of ``room`` bytes; groups may use what small ones leave."""
    sizes = {name: sum(_size(entry) for entry in entries) for name, entries in groups.items()}
    shares: dict[str, int] = {}
    left, waiting = max(room, 0), sorted(groups, key=lambda name: sizes[name])
    for position, name in enumerate(waiting):
        shares[name] = min(sizes[name], left // (len(waiting) - position))
        left -= shares[name]
    kept: list[Measurement] = []
    notes: list[str] = []
    for name, entries in groups.items():
        used, count = 0, 0
        for entry in entries:
            used += _size(entry)
            if used > shares[name]:
                break
            kept.append(entry)
            count += 1
        if count < len(entries):
            what = "the result would pass its limit: %d of %d entries of %s were dropped"
            notes.append(what % (len(entries) - count, len(entries), name))
    return kept, notes
