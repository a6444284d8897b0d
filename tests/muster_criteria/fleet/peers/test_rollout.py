"""A fleet that changes its stack: another one may be slower, and neither its nodes nor those left behind are worse."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest

from muster_criteria.fleet.budget import OWN_PAST, PEERS_MIN
from muster_criteria.fleet.peers.history import build_history
from muster_criteria.fleet.peers.snapshot import build_snapshot
from muster_criteria.fleet.series.comparisons import Comparison
from muster_criteria.fleet.series.readings import DAY_S, as_readings, group_of
from muster_criteria.fleet.verdicts import judge_readings

NODES, BEFORE, FIRST, TODAY = 40, 5, 1000, 2000
COMPARED = [Comparison(metric="rate", device="gpu", unit="T", worse="lower")]
GROUP = [group_of("h100", {"driver": driver}) for driver in ("570", "580")]


def fleet(moved: int, after: int, *, gpus: int = 8, seed: int = 0) -> pd.DataFrame:
    """Visits of all nodes; the first ``moved`` of them have ``after`` more, on a stack that is 5 % slower."""
    rng = np.random.default_rng(seed)
    rows = [
        (f"n{node}", f"gpu{gpu}", GROUP[visit >= BEFORE], visit, level * (1.0 - 0.05 * (visit >= BEFORE)))
        for node in range(NODES)
        for gpu, level in enumerate(400.0 * (1.0 + rng.normal(0.0, 0.002, gpus)))
        for visit in range(BEFORE + (after if node < moved else 0))
    ]
    frame = pd.DataFrame(rows, columns=["node", "device", "group", "visit", "value"])
    frame["value"] *= 1.0 + rng.normal(0.0, 0.002, len(frame))
    frame = frame.assign(at=FIRST + 10.0 * frame["visit"], run=frame["visit"].astype(str))
    return as_readings(frame.assign(sku="h100", metric="rate", labels="", unit="T"))


def found(known: pd.DataFrame, today: pd.DataFrame) -> dict[tuple[str, str], list[str]]:
    """{(rule, "fail" or "retest"): the devices of node n0}, of the node as it is ``today``."""
    snapshot = build_snapshot(known, datetime.datetime.fromtimestamp(TODAY * DAY_S, datetime.UTC), COMPARED)
    history = build_history(known[known["node"] == "n0"].reset_index(drop=True), snapshot, COMPARED)
    measured, results = judge_readings(as_readings(today.assign(at=TODAY, run="now")), COMPARED, snapshot, history)
    of, said = measured.readings, {}
    for each in results:
        for level, margin in (("fail", each.fail), ("retest", each.retest)):
            if bad := [of.devices[of.device[at]] for at in each.reading[margin < 0.0]]:
                said[each.rule, level] = bad
    return said


def last(frame: pd.DataFrame, factor: float = 1.0) -> pd.DataFrame:
    """What node n0 measured last."""
    own = frame[frame["node"] == "n0"]
    own = own[own["at"] == own["at"].max()].reset_index(drop=True)
    return own.assign(value=own["value"] * factor)


@pytest.mark.parametrize("gpus", [8, 2])
@pytest.mark.parametrize("after", [1, 2])
def test_a_node_of_the_new_stack_has_no_past_on_the_old_one(after: int, gpus: int) -> None:
    """Once nearly all have moved, the old stack has no peers, and its visits say nothing of the new one."""
    known = fleet(NODES - 3, after, gpus=gpus)
    assert found(known, last(known)) == {}


@pytest.mark.parametrize(("gpus", "of_all"), [(8, "node_peers"), (2, "peers")])
def test_the_first_node_of_the_new_stack_differs_from_its_peers_alone(gpus: int, of_all: str) -> None:
    said = found(fleet(0, 0, gpus=gpus), last(fleet(1, 1, gpus=gpus)))
    assert (of_all, "retest") in said
    assert not {rule for rule, _ in said} & {*OWN_PAST}
    assert "fail" not in {level for _, level in said}


@pytest.mark.parametrize(("gpus", "said"), [(8, ("node_drift", "retest")), (2, ("drift", "fail"))])
def test_a_node_that_falls_once_it_has_a_past_on_the_new_stack_is_seen(gpus: int, said: tuple[str, str]) -> None:
    known = fleet(NODES - 3, 5, gpus=gpus)
    assert said in found(known, last(known, 0.9))


def test_siblings_of_which_one_has_peers_of_the_other_stack_are_not_compared() -> None:
    """Of eight nodes on the new stack one has no GPU 7, so that the others' one is compared with the old stack."""
    known = fleet(PEERS_MIN, 1)
    lacks = (known["node"] == "n1") & (known["device"] == "gpu7") & (known["at"] == known["at"].max())
    said = found(known[~lacks].reset_index(drop=True), last(known))
    assert said == {("peers", "retest"): ["gpu7"]}


def test_a_sibling_with_peers_of_the_other_stack_hides_no_fall_of_the_others() -> None:
    known = fleet(PEERS_MIN, 5)
    lacks = (known["node"] == "n1") & (known["device"] == "gpu7") & (known["at"] >= FIRST + 10.0 * BEFORE)
    today = last(known)
    today.loc[today["device"] == "gpu3", "value"] *= 0.9
    assert found(known[~lacks].reset_index(drop=True), today)["drift", "fail"] == ["gpu3"]
