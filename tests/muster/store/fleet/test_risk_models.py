"""What was learned of the fleet's risk: one a day is kept."""

from __future__ import annotations

import datetime

import pytest

from muster import store

pytestmark = [pytest.mark.usefixtures("fleet_db"), pytest.mark.both_dialects]

MONDAY, TUESDAY = datetime.date(2026, 6, 1), datetime.date(2026, 6, 2)


def test_the_last_that_was_kept_is_found_on_its_day_only() -> None:
    assert store.risk_models.of_day(MONDAY) is None
    store.risk_models.keep(MONDAY, "first")
    store.risk_models.keep(MONDAY, "second")
    assert store.risk_models.of_day(MONDAY) == "second"
    store.risk_models.keep(TUESDAY, "third")
    assert (store.risk_models.of_day(MONDAY), store.risk_models.of_day(TUESDAY)) == (None, "third")
