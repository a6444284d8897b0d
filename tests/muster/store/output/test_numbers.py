"""The fleet's numbers: counted once from real records, then only read, by page, metrics and command line alike."""

from __future__ import annotations

import datetime

import pytest
from sqlalchemy import Engine, event, update

from muster import store
from muster.api import metrics
from muster.judging import policies
from muster.operators import statistics
from muster.store.database.engine import writing
from muster.store.database.learned import NumbersRow
from tests.muster import numbers

DAYS = datetime.timedelta(days=1)


@pytest.mark.both_dialects
@pytest.mark.usefixtures("fleet_db")
def test_they_are_counted_from_the_records_and_kept() -> None:
    numbers.broken_fleet()
    assert store.numbers.kept() == []
    real, simulated = store.numbers.make(store.nodes.get("b").added_at + 15 * DAYS)
    assert store.numbers.kept() == [real, simulated]
    whole, sku = real.skus
    assert (whole.sku, sku.sku, whole.nodes, simulated.skus[0].nodes) == ("", "cpu-generic", 3, 1)
    assert (whole.interruptions.events, whole.failures.events) == (1, 1)
    assert whole.hours["production"] == pytest.approx(5 * 24, abs=1)
    assert whole.hours["rma"] == pytest.approx(5 * 24, abs=1)
    assert whole.availability == pytest.approx(0.5, abs=0.01)
    assert whole.lost["repair"] == whole.hours["rma"]
    assert whole.lost["queueing"] < 1  # node c was never in production
    assert (whole.repairs.times, whole.repairs.still, whole.repairs.median_s) == (1, 1, None)
    assert [(each.vendor, each.part, each.nodes) for each in real.returned] == [("acme", "hbm", 1)]
    assert {each.group for each in real.escapes} == {"memory"}
    assert [(each.sku, each.service, each.qualified) for each in real.pools] == [("cpu-generic", 1, 0)]
    assert [each.service for each in real.jobs] == [1]


@pytest.mark.usefixtures("fleet_db")
def test_a_later_count_replaces_it_and_what_cannot_be_read_is_left_out() -> None:
    numbers.broken_fleet()
    statistics.count()
    first = store.numbers.kept()
    store.numbers.make(first[0].until + DAYS)
    assert [each.until for each in store.numbers.kept()] == [first[0].until + DAYS] * 2
    with writing() as session:
        session.execute(update(NumbersRow).where(NumbersRow.simulated).values(content='{"other": 1}'))
    assert [each.simulated for each in store.numbers.kept()] == [False]
    assert len(statistics.count()) == 2
    assert len(store.numbers.kept()) == 2


@pytest.mark.usefixtures("fleet_db")
def test_reading_them_asks_for_one_table() -> None:
    numbers.broken_fleet()
    store.numbers.make()
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        asked.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    store.numbers.kept()
    event.remove(Engine, "before_cursor_execute", note)
    assert [each.count("fleet_numbers") > 0 for each in asked if each.startswith("SELECT")] == [True]


@pytest.mark.usefixtures("fleet_db")
def test_metrics_are_those_of_the_last_count() -> None:
    numbers.broken_fleet()
    store.numbers.make()
    (real, _), shown = (
        store.numbers.kept(),
        metrics.render(store.figures.fleet(policies.health())).decode(),
    )
    sku = real.skus[1]
    assert f'muster_interruptions{{simulated="false",sku="cpu-generic"}} {sku.interruptions.events}.0' in shown
    assert sku.interruptions.mean is not None
    low, mean, high = (
        float(line.split()[-1])
        for bound in ("low", "mean", "high")
        for line in shown.splitlines()
        if line.startswith(f'muster_mtbi_seconds{{bound="{bound}",simulated="false"')
    )
    assert mean == pytest.approx(3600 * sku.interruptions.mean)
    assert low < mean < high
    assert 'muster_returned{part="hbm",simulated="false",vendor="acme"} 1.0' in shown
    assert 'muster_lost_node_seconds{cause="repair",simulated="false"' in shown
    assert f'muster_spares{{kind="needed",simulated="false",sku="cpu-generic"}} {real.pools[0].needed}.0' in shown
    assert 'muster_ettr_ratio{simulated="false",sku="cpu-generic"} 0.9' in shown
    assert 'quantile="0.5"' not in shown  # no repair is over: a median of 0 would be a lie
