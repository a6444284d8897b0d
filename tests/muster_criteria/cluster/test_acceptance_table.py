"""The training table of a block: gates, the straggler with its cause, what a forecast rests on, what is left out."""

from __future__ import annotations

import dataclasses

import pytest

from muster_criteria.cluster.acceptance.table import training_of
from muster_criteria.cluster.acceptance.values import Comparisons, Line, Member, Training
from muster_criteria.cluster.goodput import ASSUMED_RESTART, ASSUMED_SAVE, Input
from muster_criteria.model import Observation
from tests.muster_reports.trainings import RATE, member, seen, training


def line(found: Training, what: str) -> Line:
    (only,) = [each for each in (*found.lines, *found.checkpoints) if what in each.what]
    return only


def test_a_gate_stands_beside_its_figure_and_the_worst_member_counts() -> None:
    found = training(member("n1", scaling=0.97), member("n2", scaling=0.94))
    assert (line(found, "scaling").gate, line(found, "scaling").met) == ("≥ 0.95", False)
    assert line(found, "p95 / p50").met
    assert line(training(member("n1", scaling=0.97)), "scaling").met


@pytest.mark.parametrize(("scaling", "shown", "met"), [(0.9496, "0.9496", False), (0.95, "0.95", True)])
def test_a_figure_below_its_gate_is_not_written_as_the_gate(scaling: float, shown: str, met: bool) -> None:
    found = line(training(member("n0", scaling=scaling)), "scaling")
    assert (found.value, found.gate, found.met) == (shown, "≥ 0.95", met)


@pytest.mark.parametrize("device", ["node", "gpu1"])
def test_a_training_that_does_not_resume_equal_is_named_by_its_members(device: str) -> None:
    """Each member's mail has the line: one that passed is not the one that is meant."""

    def resumed(name: str, equal: float) -> Member:
        whole = member(name)
        on = "node" if equal else device
        rows = [dataclasses.replace(each, value=equal, device=on) if each.metric == "resume_equal" else each
                for each in whole.observations]  # fmt: skip
        return dataclasses.replace(whole, observations=tuple(rows))

    found = line(training(resumed("n1", 1.0), resumed("n2", 0.0)), "resume equal")
    assert (found.met, "n2" in found.comparison, "n1" in found.comparison) == (False, True, False)
    assert line(training(resumed("n1", 1.0)), "resume equal").comparison == ""


def test_a_figure_without_a_gate_is_neither_met_nor_broken() -> None:
    assert line(training(), "MFU").met is None


@pytest.mark.parametrize(
    ("throttled", "clock", "gemm", "why"),
    [
        (212.0, 0.7, 1.0, "throttled"), (0.0, 0.8, 0.8, "slow clock"), (0.0, 0.99, 0.8, "by itself"),
        (0.0, 1.0, 1.0, "not known"),
    ],
)  # fmt: skip
def test_the_straggler_is_named_by_rank_device_and_cause(throttled: float, clock: float, gemm: float, why: str) -> None:
    slow = member("n2", slow="gpu1", throttled=throttled, clock=clock, gemm=gemm)
    found = training(member("n1"), slow, member("n3"))
    first, *others = found.ranks
    assert (first.node, first.device, first.straggler) == ("n2", "gpu1", True)
    assert why in first.why
    assert not any(each.straggler or each.why for each in others)
    assert "gpu1 of n2" in found.headline
    assert len(found.stragglers) == 1


def test_a_slow_node_marks_all_of_its_ranks() -> None:
    slow = member("n2", slow="gpu1")
    whole = dataclasses.replace(
        slow, findings=tuple(dataclasses.replace(each, device="node") for each in slow.findings)
    )
    found = training(member("n1"), whole)
    assert {each.device for each in found.ranks if each.straggler} == {"gpu0", "gpu1"}


def test_what_a_forecast_rests_on_is_said() -> None:
    measured = training()
    assert measured.inputs.measured
    assert (measured.inputs.save.value, measured.inputs.restart.value) == (11.2, 48.0 + 7.9)
    bare = training(member("n1", checkpoints=False, faults=False))
    assert (bare.inputs.save, bare.inputs.restart) == (ASSUMED_SAVE, ASSUMED_RESTART)
    assert not bare.inputs.measured
    earlier = training(
        member("n1", checkpoints=False, faults=False), restart=Input(70.0, True, "earlier"),
        earlier={"checkpoint_save": (9.0, 3), "checkpoint_load": (5.0, 3)},
    )  # fmt: skip
    assert (earlier.inputs.save.value, earlier.inputs.restart.value) == (9.0, 70.0 + 5.0)
    unloaded = training(member("n1", checkpoints=False))
    assert (unloaded.inputs.restart.value, unloaded.inputs.restart.measured) == (48.0, False)
    own, of_others = measured.inputs.restart.source, earlier.inputs.restart.source
    assert ("3 earlier blocks" in own, "3 earlier blocks" in of_others) == (False, True)
    assert not training(rate=dataclasses.replace(RATE, measured=False)).inputs.measured


def test_what_was_not_covered_is_said() -> None:
    assert not any("MFU" in each or "rank was killed" in each for each in training().not_covered)
    bare = training(member("n1", checkpoints=False, faults=False)).not_covered
    assert any("no shared path is named" in each for each in bare)
    assert any("rank was killed" in each for each in bare)
    silent = dataclasses.replace(member("n2"), observations=())
    assert any("n2" in each for each in training(member("n1"), silent).not_covered)


def test_why_fio_measured_nothing_is_said_of_the_nodes_on_which_it_did_not() -> None:
    def notes_of(*observed: Observation) -> list[str]:
        of = [dataclasses.replace(member(f"n{at}"), observations=(*member(f"n{at}").observations, each))
              for at, each in enumerate(observed)]  # fmt: skip
        return [each for each in training(*of).not_covered if "fio" in each]

    hung = seen("shared_fio", None, "GB/s", note="it did not end within 65 s")
    rate = seen("shared_fio", 2.0, "GB/s", labels={"direction": "write"})
    (everywhere,), (somewhere,) = notes_of(hung, hung), notes_of(hung, rate)
    assert hung.note in everywhere
    assert hung.note in somewhere
    assert everywhere != somewhere
    assert notes_of(rate, rate) == []


def test_simulated_nodes_stay_marked() -> None:
    found = training(dataclasses.replace(member("n1"), simulated=True), member("n2"))
    assert found.simulated
    assert "simulated" in found.inputs.save.source


def test_a_block_that_did_not_train_has_no_table() -> None:
    other = dataclasses.replace(member("n1"), observations=(seen("busbw", 1.0, probe="cluster_collectives"),))
    assert training_of([other], Comparisons(RATE, 8)) is None
