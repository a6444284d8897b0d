"""What every decision of a person needs."""

from __future__ import annotations

from muster.errors import NoPerson
from muster.model.names import is_person


def check_decision(person: str, reason: str, refused: str) -> None:
    """Raise NoPerson unless a named person gives a reason; ``refused`` is the clause that says what is not done."""
    if not is_person(person) or not reason.strip():
        raise NoPerson(f"{refused}: that needs a named person and a reason")
