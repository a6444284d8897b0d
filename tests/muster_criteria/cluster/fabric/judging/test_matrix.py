"""The matrix of a rail: both directions of a pair, the worst of several rounds, nodes by leaf."""

from __future__ import annotations

from muster_criteria.cluster.fabric.judging.matrix import matrices
from muster_criteria.cluster.fabric.observed import PROBE
from muster_criteria.cluster.fabric.topology import from_groups
from muster_criteria.measured import Measured

TOPOLOGY = from_groups({"a": "l1", "b": "l0", "c": "l1", "d": "l0"}, ["r0", "r1"])


def rows(partner: str, rate: float, *, rail: str = "r0", wrong: float = 0.0, mode: str = "alone") -> list[Measured]:
    labels = {"partner": partner, "rail": rail, "mode": mode, "variant": "0"}
    return [
        Measured(probe=PROBE, metric=metric, device="nic:r0", unit=unit, value=value, labels=labels)
        for metric, unit, value in (("pair_bandwidth", "Gb/s", rate), ("pair_wrong_bytes", "count", wrong))
    ]


def test_both_directions_are_cells_of_their_own_and_the_median_is_the_measure() -> None:
    returned = {"a": rows("b", 100.0), "b": rows("a", 50.0), "c": rows("d", 100.0), "d": rows("c", 100.0)}
    first, second = matrices(TOPOLOGY, [returned])
    assert {(each.sender, each.receiver): each.share for each in first.cells} == {
        ("b", "a"): 1.0, ("a", "b"): 0.5, ("d", "c"): 1.0, ("c", "d"): 1.0,
    }  # fmt: skip
    assert (first.nodes, second.cells) == (("b", "d", "a", "c"), ())


def test_of_several_rounds_the_worst_is_shown_wrong_bytes_first() -> None:
    slow = {"a": rows("b", 10.0), "c": rows("d", 100.0), "d": rows("c", 100.0)}
    wrong = {"a": rows("b", 100.0, wrong=3.0), "c": rows("d", 100.0)}
    good = {"a": rows("b", 100.0), "c": rows("d", 100.0)}
    (cell,) = [each for each in matrices(TOPOLOGY, [good, slow, good])[0].cells if each.receiver == "a"]
    assert (cell.share, cell.wrong) == (0.1, False)
    (cell,) = [each for each in matrices(TOPOLOGY, [wrong, slow])[0].cells if each.receiver == "a"]
    assert cell.wrong


def test_the_round_trip_that_one_end_measures_stands_in_both_directions() -> None:
    labels = {"partner": "b", "rail": "r0"}
    trip = Measured(probe=PROBE, metric="pair_latency", device="nic:r0", unit="us", value=31.0, labels=labels)
    returned = {"a": [*rows("b", 100.0), trip], "b": rows("a", 100.0), "c": rows("d", 100.0)}
    cells = matrices(TOPOLOGY, [returned])[0].cells
    assert {(each.sender, each.receiver): each.delay_us for each in cells} == {
        ("b", "a"): 31.0, ("a", "b"): 31.0, ("d", "c"): None,
    }  # fmt: skip


def test_a_rail_over_which_nothing_goes_has_no_share() -> None:
    first, _ = matrices(TOPOLOGY, [{"a": rows("b", 0.0), "b": rows("a", 0.0)}])
    assert [(each.rate, each.share) for each in first.cells] == [(0.0, 0.0)] * 2


def both(partner: str, first: float, second: float, wrong: float = 0.0) -> list[Measured]:
    """What arrives from a partner over both rails at once, each by the better of two flows, and over one alone."""
    slower = [each.model_copy(update={"labels": {**each.labels, "variant": "1"}}) for each in
              rows(partner, first / 2, mode="together")]  # fmt: skip
    return [
        *rows(partner, 100.0), *rows(partner, first, wrong=wrong, mode="together"), *slower,
        *rows(partner, second, rail="r1", mode="together"),
    ]  # fmt: skip


def test_all_rails_at_once_are_one_matrix_more_the_sum_of_what_each_carried() -> None:
    returned = {"a": both("b", 80.0, 20.0), "b": both("a", 80.0, 0.0, wrong=1.0), "c": both("d", 60.0, 40.0), "d": None}
    *alone, at_once = matrices(TOPOLOGY, [returned])
    assert [each.title for each in (*alone, at_once)] == ["rail r0", "rail r1", "all rails at once"]
    assert {(each.sender, each.receiver): (each.rate, each.share, each.wrong) for each in at_once.cells} == {
        ("b", "a"): (100.0, 1.0, False), ("a", "b"): (80.0, 0.8, True), ("d", "c"): (100.0, 1.0, False),
    }  # fmt: skip
    assert not any(each.wrong for matrix in alone for each in matrix.cells)


def test_a_sum_that_lacks_a_rail_is_none() -> None:
    part = rows("b", 100.0, mode="together")
    assert [each.rail for each in matrices(TOPOLOGY, [{"a": [*rows("b", 100.0), *part], "b": rows("a", 100.0)}])] == [
        "r0", "r1",
    ]  # fmt: skip


def test_what_does_not_belong_is_left_out() -> None:
    odd = [*rows("stranger", 1.0), *rows("b", 1.0, rail="r9"), *rows("b", 1.0, mode="together")]
    assert all(not each.cells for each in matrices(TOPOLOGY, [{"a": odd, "b": None}]))
