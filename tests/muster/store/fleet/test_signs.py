"""What the last runs of a node show of it before it fails: risen counters, sliding figures, the faults of its image."""

from __future__ import annotations

import dataclasses
import datetime

import pytest

from muster import store
from muster.rules.idle.capacity import Signs
from muster_criteria.model import Verdict
from muster_node.contract import Measurement
from tests.muster import fleet

pytestmark = [pytest.mark.usefixtures("fleet_db"), pytest.mark.both_dialects]

NODE = "gpu-0001"
ECC, REPLAYS = "ecc_corrected", "pcie_replay"


def sign(node: str = NODE) -> Signs:
    return store.signs.collect(datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)).get(node, Signs())


def visit(run_id: str, counted: dict[tuple[str, str], float], sliding: int = 0) -> None:
    """A run whose one stage read these counters, by metric and device."""
    lease = fleet.begin(run_id=run_id, required_stages=("intake",))
    figures = [Measurement("inventory", metric, device, "count", value) for (metric, device), value in counted.items()]
    parsed, raw = fleet.result("intake", measurements=figures, note=run_id)
    store.runs.begin_stage(lease.key, "intake")
    judged = dataclasses.replace(fleet.judgement("intake"), sliding=sliding)
    store.stages.record(lease.key, parsed, judged, raw)
    store.runs.finish(lease.key, Verdict.PASS, "well")
    store.leases.release(lease.key, "over")


@pytest.mark.parametrize(
    ("readings", "rose"),
    [
        ([7.0], 0),  # since when, is not known
        ([7.0, 7.0], 0),
        ([7.0, 0.0], 0),  # the driver was loaded again
        ([0.0, 1.0], 1),
        ([7.0, 9.0, 9.0], 1),
        ([7.0, 9.0, 11.0], 1),
        ([7.0, 0.0, 2.0], 1),
    ],
)
def test_a_counter_that_rose_between_two_tests_is_a_sign(readings: list[float], rose: int) -> None:
    store.nodes.add(fleet.new_node())
    for number, value in enumerate(readings):
        visit(f"run{number}", {(ECC, "gpu0"): value, (REPLAYS, "gpu1"): 5.0})
    assert (sign().ecc, sign().links) == (rose, 0)


def test_the_first_reading_after_a_stage_without_any_is_no_rise() -> None:
    store.nodes.add(fleet.new_node())
    visit("unread", {})
    visit("read", {(ECC, "gpu0"): 7.0})
    assert sign().ecc == 0
    visit("risen", {(ECC, "gpu0"): 9.0})
    assert sign().ecc == 1


def test_each_counter_of_each_device_counts_once_by_what_it_speaks_of() -> None:
    store.nodes.add(fleet.new_node())
    devices = ("gpu0", "gpu1")
    for number in range(3):
        visit(f"run{number}", {(metric, each): float(number) for metric in (ECC, REPLAYS) for each in devices})
    assert (sign().ecc, sign().links) == (2, 2)


def test_figures_slide_until_a_test_in_which_they_do_not() -> None:
    store.nodes.add(fleet.new_node())
    visit("first", {}, sliding=3)
    assert sign().sliding == 3
    visit("second", {}, sliding=1)
    assert sign().sliding == 1
    visit("third", {})
    assert sign() == Signs()


def test_nodes_with_an_image_that_fails_often_are_suspect() -> None:
    for number in range(12):
        store.nodes.add(fleet.new_node(f"n{number}"))
        bad = number < 4
        lease = fleet.begin(f"n{number}")
        fails = bad and number > 0
        verdict = Verdict.FAIL if fails else Verdict.PASS
        found = (fleet.finding(device=f"gpu{number}"),) if fails else ()
        fleet.do_stage(lease, "intake", verdict, {"driver": "590" if bad else "580"}, findings=found)
        store.runs.finish(lease.key, verdict, "so it ended")
        store.leases.release(lease.key, "over")
    assert sign("n0").image > 2.0
    assert sign("n1").image > 1.5, "others with its image failed too"
    assert sign("n11").image == 1.0
