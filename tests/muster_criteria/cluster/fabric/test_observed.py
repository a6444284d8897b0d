"""From nodes' figures to cells and back: the lower of both directions, silent nodes, what does not belong."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.judging.verdict import judge_fabric
from muster_criteria.cluster.fabric.observed import PROBE, Place, Port, pair_params, round_result
from muster_criteria.cluster.fabric.rounds import Kind, Round
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.measured import Measured
from muster_node.probe import resolve_params
from muster_node.probes.pair_rails import PairRails
from tests.muster_criteria.cluster.fabric.worlds import flat

FABRIC = flat(4, rails=2)
PLAN = Round(1, Kind.CONFIRM, ((0, 1), (2, 3)), variants=2)
PLACES = {
    f"n{at}": Place(f"10.0.0.{at}", (Port(f"10.1.0.{at}", "r0", gpu=0), Port(f"10.2.0.{at}", "r1", gpu=1)))
    for at in range(4)
}


def row(metric: str, value: float | None, **labels: str) -> Measured:
    fields: dict[str, Any] = {"probe": PROBE, "metric": metric, "device": "nic:r0", "unit": "Gb/s", "value": value}
    return Measured(**fields, labels=labels)


def rates(r0: float, r1: float, variant: str = "0", mode: str = "alone") -> list[Measured]:
    return [
        row("pair_bandwidth", rate, rail=rail, mode=mode, variant=variant) for rail, rate in (("r0", r0), ("r1", r1))
    ]


def test_both_sides_get_the_parameters_that_the_probe_takes() -> None:
    params = pair_params(FABRIC, PLAN, PLACES, ports=[7000, 8000], session="s", settings={"seconds": 1.0})
    assert set(params) == {"n0", "n1", "n2", "n3"}
    assert (params["n0"]["role"], params["n1"]["role"]) == ("serve", "join")
    assert params["n0"]["address"] == params["n1"]["address"] == "10.0.0.0"
    assert params["n1"]["rails"][1]["own"] == params["n0"]["rails"][1]["other"] == "10.2.0.1"
    for given in params.values():
        assert resolve_params(PairRails, given)["variants"] == 2


def test_a_node_whose_ports_are_not_the_rails_is_refused() -> None:
    with pytest.raises(ValueError, match="n0 has 1 ports, the topology 2 rails"):
        pair_params(FABRIC, PLAN, {**PLACES, "n0": Place("a", (Port("b"),))}, ports=[1], session="s", settings={})


def test_gpus_are_crossed_only_to_confirm() -> None:
    for kind, crossed in ((Kind.CONFIRM, True), (Kind.SAME_LEAF, False)):
        plan = Round(1, kind, ((0, 1),))
        params = pair_params(FABRIC, plan, PLACES, ports=[1], session="s", settings={"backend": "nccl"})
        assert params["n0"].get("crossed", False) is crossed
    # A GPU of both rails would be slow over either NIC.
    shared = {name: Place(place.address, tuple(dataclasses.replace(port, gpu=0) for port in place.ports))
              for name, place in PLACES.items()}  # fmt: skip
    plan = Round(1, Kind.CONFIRM, ((0, 1),))
    params = pair_params(FABRIC, plan, shared, ports=[1], session="s", settings={"backend": "nccl"})
    assert "crossed" not in params["n0"]


def test_the_gpu_that_a_node_measured_a_rail_with_is_kept() -> None:
    def sent(gpu: str) -> list[Measured]:
        return [row("pair_bandwidth", 1.0, rail="r1", mode="alone", gpu=gpu)]

    returned = {"n0": sent("gpu2"), "n1": sent("gpu1"), "n2": sent("GPU 5"), "n3": rates(1, 2)}
    assert round_result(FABRIC, PLAN, returned).gpus == {(0, 1): "gpu2", (1, 1): "gpu1"}


def test_the_lower_direction_counts_and_every_flow_is_kept() -> None:
    returned = {
        "n0": [*rates(10, 20), *rates(11, 21, "1"), *rates(5, 6, mode="together"), *rates(3, 8, "1", "together")],
        "n1": [*rates(9, 22), *rates(12, 19, "1"), *rates(7, 4, mode="together"), *rates(9, 9, "1", "together")],
        "n2": rates(1, 2),
        "n3": [],
    }
    result = round_result(FABRIC, PLAN, returned)
    assert result.alone[0].tolist() == [[9, 11], [20, 19]]
    assert result.alone[1, 0, 0] == 1
    assert np.isnan(result.alone[1, 0, 1])
    assert result.together is not None
    assert result.together[0].tolist() == [5, 8]
    assert not result.wrong.any()


def test_a_pair_of_which_one_returned_nothing_is_not_measured() -> None:
    result = round_result(FABRIC, PLAN, {"n0": rates(10, 20), "n1": None, "n2": rates(1, 2), "n3": rates(1, 2)})
    assert np.isnan(result.alone[0]).all()
    assert result.silent == {1}
    assert result.alone[1, 0, 0] == 1


def test_wrong_bytes_at_either_end_spoil_the_cell_but_not_those_of_another_backend() -> None:
    wrong = row("pair_wrong_bytes", 3.0, rail="r1", mode="alone", variant="0")
    other = row("pair_wrong_bytes", 3.0, rail="r0", mode="host_tcp", variant="0")
    result = round_result(FABRIC, PLAN, {"n0": rates(10, 20), "n1": [*rates(10, 20), wrong, other], "n2": [], "n3": []})
    assert result.wrong.tolist() == [[False, True], [False, False]]
    assert result.host is not None
    assert not result.host.any()


def test_what_does_not_belong_is_left_out() -> None:
    odd = [
        row("pair_bandwidth", None, rail="r0", mode="alone", variant="0"),
        row("pair_bandwidth", 1.0, rail="r9", mode="alone"),
        row("pair_bandwidth", 1.0, rail="r0", mode="elsewhere"),
        row("pair_bandwidth", 1.0),
    ]
    result = round_result(FABRIC, PLAN, {"n0": odd, "n1": [], "n2": [], "n3": []})
    assert np.isnan(result.alone).all()


def by(backend: str) -> Measured:
    fields: dict[str, Any] = {"probe": PROBE, "metric": "pair_backend", "device": "node", "unit": "text"}
    return Measured(**fields, text=backend)


def test_a_pair_that_was_measured_with_another_backend_is_not_compared() -> None:
    returned = {name: [by("ib_write_bw"), *rates(390, 390)] for name in ("n0", "n1")}
    returned |= {name: [by("tcp"), *rates(20, 20)] for name in ("n2", "n3")}
    result = round_result(FABRIC, PLAN, returned)
    assert result.alone[0, :, 0].tolist() == [390, 390]
    assert np.isnan(result.alone[1]).all()
    assert (dict(result.replaced), result.silent) == ({2: "tcp", 3: "tcp"}, frozenset())


def test_what_the_tool_said_of_a_rail_that_carried_nothing_is_quoted() -> None:
    dead = [each.model_copy(update={"note": "no GID"}) for each in rates(0, 0)]
    screening, block = Round(1, Kind.SAME_LEAF, PLAN.pairs), BlockFindings()
    result = round_result(FABRIC, screening, dict.fromkeys(FABRIC.nodes, dead))
    assert result.troubles[0, 1] == "no GID"
    judge_fabric(Rounds(FABRIC, PLACES, (result,)), block)
    assert all(any("no GID" in gap.why for gap in block.suspected[name]) for name in FABRIC.nodes)
    together = [each.model_copy(update={"note": "no room"}) for each in rates(0, 0, mode="together")]
    assert round_result(FABRIC, screening, dict.fromkeys(FABRIC.nodes, together)).troubles[0, 1] == "no room"


def test_where_all_use_tcp_every_pair_counts() -> None:
    result = round_result(FABRIC, PLAN, {name: [by("tcp"), *rates(20, 20)] for name in FABRIC.nodes})
    assert (result.alone[:, :, 0].tolist(), dict(result.replaced)) == ([[20, 20], [20, 20]], {})


@pytest.mark.parametrize("variant", ["0", "1"])
def test_what_tcp_carried_after_the_backend_failed_is_kept_apart(variant: str) -> None:
    host = row("pair_bandwidth", 20.0, rail="r1", mode="host_tcp", variant=variant)
    result = round_result(FABRIC, PLAN, {"n0": rates(390, 0), "n1": [*rates(390, 0), host], "n2": [], "n3": []})
    assert result.host is not None
    assert (result.host.tolist(), result.alone[0, 1, 0]) == ([[False, True], [False, False]], 0)
