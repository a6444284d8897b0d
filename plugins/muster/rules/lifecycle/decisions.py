"""What every decision of a person needs."""

from __future__ import annotations

from muster.errors import NoPerson
from muster.settings import settings

NOT_PERSONS = frozenset(
    {"", "muster", "airflow", "system", "scheduler", "housekeeping", "health"}
    | {"root", "admin", "administrator", "anonymous", "nobody"}
)
"""Actors that are programs or shared accounts: no decision is accepted under these names."""


def is_person(name: str | None) -> bool:
    """Whether ``name`` can be a person, so that decisions are accepted under it: no program of the settings either."""
    plain = (name or "").strip().lower()
    return plain not in NOT_PERSONS and plain not in settings().programs.lower().replace(",", " ").split()


def check_decision(person: str, reason: str, refused: str) -> None:
    """Raise NoPerson unless a named person gives a reason; ``refused`` is the clause that says what is not done."""
    if not is_person(person) or not reason.strip():
        raise NoPerson(f"{refused}: that needs a named person and a reason")
