"""What is learned of a fleet: kept as text, and used for another day's nodes."""

from __future__ import annotations

import dataclasses
import datetime
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.model.failures import Failure
from muster.model.nodes import Node
from muster.rules.idle.past import Learned, risk_of
from tests.muster.rules.idle.fleets import NOW, node, served
from tests.support.examples import examples

DAY = datetime.timedelta(days=1)


def fleet(skus: str) -> list[Node]:
    came = NOW - 400 * DAY
    return [dataclasses.replace(node(f"n{at}"), sku=sku, machine_since=came) for at, sku in enumerate(skus)]


def failures(*at: int) -> list[Failure]:
    return [
        Failure(f"n{each}", "memory", NOW - (days := 10 + 7 * count) * DAY, NOW - (days - 1) * DAY)
        for count, each in enumerate(at)
    ]


@examples(10)
@given(st.text("abc", min_size=1, max_size=6), st.lists(st.integers(0, 5), max_size=12))
def test_what_was_learned_is_read_as_it_was_kept(skus: str, at: list[int]) -> None:
    nodes = fleet(skus)
    fresh, learned = risk_of(nodes, served(nodes), failures(*at), NOW)
    kept, same = risk_of(nodes, served(nodes), failures(*at), NOW, Learned.from_json(learned.to_json()))
    assert same.names == learned.names
    assert np.allclose(kept.model.rates(kept.clocks(nodes)), fresh.model.rates(fresh.clocks(nodes)))


def test_a_kind_of_label_stays_the_same_when_others_come_and_go() -> None:
    """The nodes of the bad SKU keep its risk in another order, and those of a new SKU have the usual one."""
    _, learned = risk_of(fleet("abbbb"), served(fleet("abbbb")), failures(*[0] * 40), NOW)
    nodes = fleet("cba")
    risk, _ = risk_of(nodes, served(nodes), [], NOW, learned)
    new, good, bad = risk.model.rates(risk.clocks(nodes)).sum(axis=1).tolist()
    assert good < new < bad


def test_a_node_that_was_retired_after_a_failure_and_serves_again_is_not_broken() -> None:
    """Its failure would swallow all later ones, as if it had never been repaired."""
    nodes = [dataclasses.replace(node(name), machine_since=NOW - 700 * DAY) for name in ("gone", "back")]
    later = [(each.name, NOW - ago * DAY) for each in nodes for ago in (60, 40, 20, 3)]
    found = [Failure(name, "memory", at, at + DAY) for name, at in later]
    found += [
        Failure("gone", "memory", NOW - 400 * DAY, gone=NOW - 390 * DAY),
        Failure("back", "memory", NOW - 400 * DAY, back=NOW - 390 * DAY),
    ]
    risk, _ = risk_of(nodes, served(nodes), found, NOW)
    gone, back = risk.clocks(nodes).since_any.tolist()
    assert gone == back == pytest.approx(48.0)


def test_the_time_before_a_node_served_is_no_time_in_which_it_could_have_failed() -> None:
    nodes = fleet("a" * 40)
    found = failures(*range(8))
    came = dict.fromkeys(served(nodes), NOW - 90 * DAY)
    waited, long = (risk_of(nodes, since, found, NOW)[0] for since in (came, served(nodes)))
    of = nodes[30:]
    assert waited.model.rates(waited.clocks(of)).sum() > 1.5 * long.model.rates(long.clocks(of)).sum()
    alone = risk_of([*nodes, *(node(f"shelf{each}") for each in range(200))], came, found, NOW)[0]
    assert np.allclose(alone.model.rates(alone.clocks(of)), waited.model.rates(waited.clocks(of)))


def test_what_another_version_kept_is_refused() -> None:
    _, learned = risk_of(fleet("ab"), served(fleet("ab")), [], NOW)
    kept = json.loads(learned.to_json())
    for changed in ({"groups": ["gpu"]}, {"since_any": [1.0]}, {"names": [[]]}, {"level": None}):
        with pytest.raises(ValueError):
            Learned.from_json(json.dumps(kept | changed))
    for without in kept:
        with pytest.raises(ValueError):
            Learned.from_json(json.dumps({name: kept[name] for name in kept if name != without}))
        with pytest.raises(ValueError):
            Learned.from_json(json.dumps(kept | {without: 7.5 if isinstance(kept[without], list) else [[]]}))


def test_after_a_day_on_which_a_fifth_of_the_fleet_failed_the_nodes_at_most_risk_still_come_first() -> None:
    """Most of those had never failed, so the least at risk seemed to be predicted far too low."""
    nodes = fleet("a" * 200)
    found = [
        *(Failure(f"n{at}", "memory", day := NOW - (390 - 20 * at) * DAY, day + DAY / 4) for at in range(19)),
        *(Failure(f"n{at}", "links", day := NOW - 100 * DAY + at * DAY / 100, day + DAY / 4) for at in range(40, 80)),
        Failure("n150", "memory", NOW - 2.25 * DAY, NOW - 2 * DAY),
    ]
    risk, _ = risk_of(nodes, served(nodes), found, NOW)
    never, back = risk.model.rates(risk.clocks([nodes[199], nodes[150]])).sum(axis=1)
    assert back > never
