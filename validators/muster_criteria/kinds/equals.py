"""``equals``: an item of the inventory is this number, or this text."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import FiniteFloat

from muster_criteria.kinds.kind import TEXT, Depends, LimitKind, Numbers, Row, Seen, Set
from muster_criteria.kinds.texts import OfText


class Equals(OfText):
    """See the module."""

    def looks_at(self, limit: Set) -> Depends:
        return "row" if isinstance(limit.value, str) else "value"

    def at(self, limit: Set, seen: Seen) -> Numbers:
        return super().at(limit, seen) if isinstance(limit.value, str) else LimitKind.at(self, limit, seen)

    def margin(self, limit: Set, at: Numbers, seen: Seen) -> Numbers:
        number = not isinstance(limit.value, str)
        return LimitKind.margin(self, limit, at, seen) if number else super().margin(limit, at, seen)

    def problems(self, limit: Set) -> Iterator[tuple[str, str]]:
        if limit.unit == TEXT and not isinstance(limit.value, str):
            yield "wrong-type", f"the metric is a text, but {limit.value:g} is a number: put it in quotes"
        elif limit.unit != TEXT and isinstance(limit.value, str):
            why = f"the metric is a number in {limit.unit}, but {limit.value!r} is a text"
            yield "wrong-type", f"{why}: write a number without quotes"

    def allows(self, limit: Set, text: str) -> bool:
        return bool(text == limit.value)

    def expected(self, limit: Set, at: float, row: Row) -> str:
        return repr(limit.value) if isinstance(limit.value, str) else super().expected(limit, at, row)


KIND = Equals(key="equals", given=FiniteFloat | str, rank=5)
