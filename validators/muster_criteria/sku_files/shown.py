"""Replaces the neutral terms of a programme with the metrics by which a family of devices shows them.

A programme's probe has ``shows: [memory_repair, …]``, and a family ``shows: {PROBE: {memory_repair: [requirements]}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shows = Mapping[str, Mapping[str, list[Any]]]
"""By probe and term, the requirements that replace the term."""


def with_shown(programme: dict[str, Any], shows: Shows) -> dict[str, Any]:
    """The programme, as read from its file, with terms replaced by requirements.

    A term that no family shows is required under its own name, which nothing measures: the stage cannot pass.
    """
    if isinstance(stages := programme.get("stages"), dict):
        of = {name: with_shown(plan, shows) if isinstance(plan, dict) else plan for name, plan in stages.items()}
        return programme | {"stages": of}
    if isinstance(probes := programme.get("probes"), dict):
        return programme | {"probes": {name: _use(use, shows.get(name, {})) for name, use in probes.items()}}
    return programme


def both(one: Shows, other: object) -> dict[str, dict[str, list[Any]]]:
    """The combined terms of two families. Raises ValueError if ``other`` is no such map."""
    found = {probe: dict(terms) for probe, terms in one.items()}
    if not isinstance(other, dict) or not all(isinstance(terms, dict) for terms in other.values()):
        raise ValueError("shows is not a map of probes to maps of terms")
    for probe, terms in other.items():
        mine = found.setdefault(probe, {})
        for term, required in terms.items():
            if not isinstance(required, list):
                raise ValueError(f"shows.{probe}.{term} is not a list of requirements")
            mine[term] = [*mine.get(term, ()), *required]
    return found


def _use(use: Any, terms: Mapping[str, list[Any]]) -> Any:
    if not isinstance(use, dict) or not isinstance(asked := use.get("shows"), list):
        return use
    shown = [each for term in asked for each in terms.get(str(term)) or [_missed(str(term))]]
    rest = {key: value for key, value in use.items() if key != "shows"}
    return rest | {"require": [*(use.get("require") or ()), *shown]}


def _missed(term: str) -> dict[str, Any]:
    return {"metric": term, "devices": "each gpu", "judged": False, "shown": False}
