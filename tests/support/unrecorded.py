"""Records that refuse a report of the health sweep."""

from __future__ import annotations

from typing import Any

import pytest

from muster import store
from muster.model.health import Observation, Report


def refuse(monkeypatch: pytest.MonkeyPatch, check: str, error: type[Exception]) -> None:
    """From now on a batch with a reading of this check raises ``error`` and is not recorded."""
    record = store.health.record

    def refusing(reports: list[Report], *more: Any) -> list[Observation]:
        if any(seen.check == check for each in reports for seen in each.seen):
            raise error
        return record(reports, *more)

    monkeypatch.setattr(store.health, "record", refusing)
