"""The rounds of a block: planned from the records, kept over a clear, without those that are gone; what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster import store
from muster.errors import BadSettings, MusterError, PlaceLoaded
from muster.model.rounds import Outcome, Side
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.testing import block, qualification, rounds
from muster_criteria.cluster.fabric.decoding.parts import PartKind, Symptom
from muster_criteria.cluster.fabric.judging.found import FaultyPart
from muster_criteria.cluster.plan import PAIRS
from muster_criteria.measured import Measured
from muster_criteria.model import Verdict
from tests.muster import copied, fleet
from tests.support.refusals import caused

pytestmark = pytest.mark.usefixtures("sqlite_db")

RUN, OTHER = RunKey("cluster_qualification", "block"), RunKey("cluster_qualification", "other")
UPLINK = FaultyPart(PartKind.UPLINK, Symptom.SLOW, "leaf0", "r1", "", 0.4, (2, 3), (), (), True)
PARAMS = {"level": "short", "reason": "x"}


def enrol(count: int, **labels: str) -> list[str]:
    copied.qualified(*_names(count))
    for at, name in enumerate(_names(count)):
        given = {key: value.format(at=at, leaf=at // 4) for key, value in labels.items()}
        if given:
            store.nodes.add(fleet.new_node(name, labels=given))
    return _names(count)


def _names(count: int) -> list[str]:
    return [f"gpu-{at:04d}" for at in range(count)]


def claim(names: list[str], try_number: int = 1) -> None:
    block.claim(RUN, {"nodes": names, **PARAMS}, try_number)


def figures(partner: str, rates: Mapping[str, float]) -> tuple[Measured, ...]:
    return tuple(
        Measured(
            probe=PAIRS, metric="pair_bandwidth", device=f"nic:{rail}", unit="Gb/s", value=rate,
            labels={"rail": rail, "mode": "alone", "variant": "0", "partner": partner},
        )
        for rail, rate in rates.items()
    )  # fmt: skip


def measure(slow: Mapping[tuple[str, str], float], rails: tuple[str, ...] = ("r0", "r1")) -> int:
    """Rounds as the nodes would measure them, to the end; ``slow``: (node, rail) → share. Returns how many."""
    while sides := rounds.next_round(RUN):
        planned = store.rounds.planned(RUN)[-1]
        for each in sides:
            pair = planned.pair_of(each["member"])
            assert pair is not None
            partner = next(name for name in pair if name != each["member"])
            rates = {rail: 100.0 * min(slow.get((name, rail), 1.0) for name in pair) for rail in rails}
            side = Side(each["member"], Outcome.MEASURED, "", figures(partner, rates))
            store.rounds.record(RUN, planned.number, side)
    return len(store.rounds.planned(RUN))


def test_a_claim_keeps_how_the_nodes_are_connected() -> None:
    names = enrol(8, rails="r0@10.1.0.{at} r1@10.2.0.{at}", leaf="leaf{leaf}", block_address="10.0.0.{at}")
    claim(names)
    kept = store.attempts.block_of(RUN)
    assert kept["topology"]["leaves"] == ["leaf0", "leaf1"]
    assert kept["places"][names[3]]["address"] == "10.0.0.3"
    assert [port["address"] for port in kept["places"][names[3]]["ports"]] == ["10.1.0.3", "10.2.0.3"]
    assert kept["pairs"]["backend"] == "tcp", "no RDMA device is named"


@pytest.mark.parametrize(
    "labels", [{"rails": "r0"}, {"rails": "r0@10.1.0.1 r0@10.1.0.2"}, {"leaf": "leaf{leaf}", "pod": "pod{at}"}]
)
def test_labels_that_contradict_stop_the_run_before_a_node_is_taken(labels: dict[str, str]) -> None:
    names = enrol(4, **labels)
    with caused(AirflowFailException, MusterError):
        claim(names)
    assert store.leases.live() == []


def test_nodes_of_two_skus_are_no_block() -> None:
    """Their ports may be of two speeds, and pairs of the slower ones would look like faults."""
    store.nodes.add(fleet.new_node("gpu-0001"))
    store.nodes.add(fleet.new_node("gpu-0002", sku="h100-sxm-8"))
    for name in ("gpu-0001", "gpu-0002"):
        fleet.qualify(name)
    with caused(AirflowFailException, MusterError):
        claim(["gpu-0001", "gpu-0002"])
    assert store.leases.live() == []


@pytest.mark.parametrize(
    "content", [None, "", "SwitchName=s1 Nodes=gpu-[0000-0001]\n", "SwitchName=s1 Nodes=gpu-[3-\n"]
)
def test_so_does_a_topology_file_that_cannot_be_used(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = enrol(4)
    monkeypatch.setenv("MUSTER_TOPOLOGY", str(tmp_path / "topology.conf"))
    if content is not None:
        (tmp_path / "topology.conf").write_text(content)
    with caused(AirflowFailException, BadSettings if content is None else MusterError):
        claim(names)
    assert store.leases.live() == []


def test_leaves_come_from_the_file_of_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "topology.conf").write_text("SwitchName=a Nodes=gpu-[0000-0001]\nSwitchName=b Nodes=gpu-[0002-0003]\n")
    monkeypatch.setenv("MUSTER_TOPOLOGY", str(tmp_path / "topology.conf"))
    claim(enrol(4))
    assert store.attempts.block_of(RUN)["topology"]["leaves"] == ["a", "b"]


def test_of_a_folder_only_the_files_of_the_blocks_nodes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = enrol(4, rails="r0@10.1.0.{at}/ens1f0/mlx5_0")
    for at, name in enumerate(names):
        (tmp_path / f"{name}.lldp").write_text(f"lldp.ens1f0.chassis.name=leaf{at // 2}\n")
    (tmp_path / "another.lldp").write_bytes(b"\xff")
    monkeypatch.setenv("MUSTER_TOPOLOGY", str(tmp_path))
    claim(names)
    assert store.attempts.block_of(RUN)["topology"]["leaves"] == ["leaf0", "leaf1"]


def test_every_node_has_one_partner_in_a_round_on_a_port_and_with_a_secret_of_their_own() -> None:
    names = enrol(8)
    claim(names)
    sides = [each["member"] for each in rounds.next_round(RUN)]
    assert sorted(sides) == names
    kept = store.attempts.block_of(RUN)
    params = {name: rounds.params_of(RUN, kept, name) for name in names}
    for own, other in zip(sides[::2], sides[1::2], strict=True):
        assert params[own]["partner"] == other, "partners start next to each other"
        assert params[own]["ports"] == params[other]["ports"]
        assert params[own]["session"] == params[other]["session"]
    taken = {port for each in params.values() for port in each["ports"]}
    assert len(taken) == 4 * len(kept["ports"])
    assert len({each["session"] for each in params.values()}) == 4
    assert not taken & set(kept["ports"])


def test_a_round_that_was_interrupted_goes_on_with_the_pairs_that_are_missing() -> None:
    claim(enrol(8))
    first = rounds.next_round(RUN)
    for each in first[:2]:
        store.rounds.record(RUN, 1, Side(each["member"], Outcome.MEASURED, "", figures("x", {"network": 1.0})))
    assert rounds.next_round(RUN) == first[2:]
    assert len(store.rounds.planned(RUN)) == 1


def test_a_slow_rail_fails_its_node_and_the_part_is_kept() -> None:
    names = enrol(16, rails="r0@10.1.0.{at} r1@10.2.0.{at}", leaf="leaf{leaf}")
    claim(names)
    made = measure({(names[5], "r1"): 0.4})
    assert 4 < made <= 7
    block.judge(RUN)
    assert store.runs.get(RUN, node=names[5]).verdict is Verdict.FAIL
    others = {store.runs.get(RUN, node=name).verdict for name in names if name != names[5]}
    assert others == {Verdict.INCONCLUSIVE}, "they have not trained, and nothing is found on them"
    (part,) = store.rounds.parts(RUN)
    assert (part.kind, part.node, part.rail, part.confirmed) == (PartKind.NIC, names[5], "r1", True)
    block.judge(RUN)
    assert store.rounds.parts(RUN) == [part], "judged again, it is not there twice"


def test_healthy_rounds_find_nothing() -> None:
    claim(enrol(16, leaf="leaf{leaf}"))
    assert measure({}, ("network",)) == 3
    block.judge(RUN)
    assert store.rounds.parts(RUN) == []


def test_a_node_that_its_scheduler_took_is_left_out_and_pays_nothing() -> None:
    names = enrol(8)
    claim(names)
    for each in rounds.next_round(RUN):
        taken = each["member"] == names[2]
        side = Side(each["member"], Outcome.UNMEASURED if taken else Outcome.MEASURED, "preempted" if taken else "")
        store.rounds.record(RUN, 1, side)
    assert names[2] not in {each["member"] for each in rounds.next_round(RUN)}
    left = rounds.members_left(RUN)
    assert left == [name for name in names if name != names[2]]
    assert store.attempts.block_of(RUN)["members"] == left
    block.judge(RUN)
    assert store.runs.get(RUN, node=names[2]).verdict is Verdict.SKIPPED
    assert store.nodes.get(names[2]).inconclusive == 0


def test_the_master_is_who_is_left() -> None:
    names = enrol(4, block_address="10.0.0.{at}")
    claim(names)
    rounds.next_round(RUN)
    store.rounds.record(RUN, 1, Side(names[0], Outcome.UNMEASURED, "preempted"))
    rounds.members_left(RUN)
    assert store.attempts.block_of(RUN)["master_addr"] == "10.0.0.1"


def test_fewer_than_two_do_not_train() -> None:
    names = enrol(2)
    claim(names)
    rounds.next_round(RUN)
    store.rounds.record(RUN, 1, Side(names[0], Outcome.UNMEASURED, "preempted"))
    with pytest.raises(AirflowFailException, match=f"{names[0]}: .*preempted"):
        rounds.members_left(RUN)
    block.judge(RUN)
    assert {store.runs.get(RUN, node=name).verdict for name in names} == {Verdict.SKIPPED}


@pytest.mark.parametrize("rebooted", [False, True])
def test_who_is_lost_in_a_block_of_two_is_charged_and_the_other_is_not(rebooted: bool) -> None:
    names = enrol(2)
    claim(names)
    evidence = (("uncommanded_reboot", "it rebooted by itself", "job-1"),) if rebooted else ()
    for number in (1, 2):
        assert rounds.next_round(RUN)
        store.rounds.record(RUN, number, Side(names[0], Outcome.MEASURED, "its partner did not come"))
        store.rounds.record(RUN, number, Side(names[1], Outcome.SILENT, "no answer", (), evidence))
    with pytest.raises(AirflowFailException):
        rounds.members_left(RUN)
    block.judge(RUN)
    verdict = Verdict.FAIL if rebooted else Verdict.INCONCLUSIVE
    assert [store.runs.get(RUN, node=name).verdict for name in names] == [Verdict.SKIPPED, verdict]
    assert [store.nodes.get(name).inconclusive for name in names] == [0, int(not rebooted)]


def test_silent_once_is_tried_again_and_twice_running_is_left_out() -> None:
    side = {name: Side("n", outcome) for name, outcome in (("good", Outcome.MEASURED), ("bad", Outcome.SILENT))}
    assert "n" not in rounds.left_out({1: {"n": side["bad"]}, 2: {"n": side["good"]}, 3: {"n": side["bad"]}})
    assert set(rounds.left_out({1: {"n": side["bad"]}, 3: {"n": side["bad"]}}).lost) == {"n"}


def test_what_was_measured_is_not_replaced_by_nothing() -> None:
    names = enrol(2)
    claim(names)
    rounds.next_round(RUN)
    kept = Side(names[0], Outcome.MEASURED, "", figures(names[1], {"network": 1.0}))
    store.rounds.record(RUN, 1, kept)
    store.rounds.record(RUN, 1, Side(names[0], Outcome.SILENT, "lost"))
    assert store.rounds.sides(RUN)[1][names[0]] == kept


def test_rounds_are_kept_over_a_clear_unless_another_run_has_held_a_node_since() -> None:
    names = enrol(8)
    claim(names)
    assert (made := measure({}, ("network",))) == 3
    claim(names, 2)
    qualification.release(RUN)
    claim(names, 3)
    assert len(store.rounds.planned(RUN)) == made
    assert rounds.next_round(RUN) == []
    qualification.release(RUN)
    other = RunKey("cluster_qualification", "another")
    store.leases.acquire(names[0], other)
    store.leases.release(other, "over")
    claim(names, 4)
    claim(names, 5)  # its worker was killed
    assert len(store.rounds.planned(RUN)) == made
    missed = rounds.rounds_of(RUN, store.attempts.block_of(RUN))
    assert missed is not None
    assert {name: len(found) for name, found in missed.missed.items()} == {names[0]: made}
    assert rounds.next_round(RUN, first=True)
    assert len(store.rounds.planned(RUN)) == 1
    assert store.rounds.sides(RUN) == {}
    measure({}, ("network",))
    claim(names, 6)
    assert "outdated" not in store.attempts.block_of(RUN)


def test_rounds_that_held_something_against_a_part_are_made_again_after_a_clear_of_all() -> None:
    """Who clears such a run has repaired the part: an uplink, of which the records learn nothing. Who clears only its
    judgement wants it judged by what was measured."""
    names = enrol(16, rails="r0@10.1.0.{at} r1@10.2.0.{at}", leaf="leaf{leaf}")
    claim(names)
    measure({})
    store.rounds.keep_parts(RUN, [UPLINK])
    qualification.release(RUN)
    claim(names, 2)
    claim(names, 3)  # its worker was killed
    block.judge(RUN)
    (stage,) = store.reporting.run(RUN, node=names[0]).stages
    assert not [gap for gap in stage.judgement.coverage.missing if PAIRS in gap.what]
    assert rounds.next_round(RUN, first=True)
    assert len(store.rounds.planned(RUN)) == 1


def test_nor_are_rounds_since_which_a_node_was_broken() -> None:
    names = enrol(8)
    claim(names)
    measure({}, ("network",))
    qualification.release(RUN)
    store.nodes.move(names[3], State.QUARANTINE, "Ada", "its cable is loose")
    for state in (State.REPAIR, State.REGISTERED):
        store.nodes.move(names[3], state, "Ada", "mended")
    assert rounds.outdate(RUN) == {}
    assert store.rounds.planned(RUN) == []


def uplinks(at: str) -> str:
    return f"the uplinks of leaf {at}"


@pytest.mark.parametrize(
    ("second", "refused"),
    [
        (("gpu-0001", "gpu-0005"), True),
        (("gpu-0001", "gpu-0002"), False),
        (("gpu-0009", "gpu-0013"), False),
    ],
)
def test_two_blocks_do_not_load_one_uplink_at_once(second: tuple[str, str], refused: bool) -> None:
    """Nodes that share their leaf switch send nothing over its uplinks."""
    names = enrol(16, leaf="leaf{leaf}")
    claim([names[0], names[4]])
    other = {"nodes": list(second), **PARAMS}
    if not refused:
        block.claim(OTHER, other)
        return
    with caused(AirflowFailException, PlaceLoaded):
        block.claim(OTHER, other)
    assert {lease.node for lease in store.leases.live()} == {names[0], names[4]}
    assert set(fleet.loaded_places()) == {uplinks("leaf0"), uplinks("leaf1")}
    qualification.release(RUN)
    block.claim(OTHER, other)


def test_where_leaves_are_not_known_one_block_is_tested_at_a_time() -> None:
    """Any uplink may lie between the nodes of either."""
    names = enrol(4)
    claim(names[:2])
    other = {"nodes": names[2:], **PARAMS}
    with caused(AirflowFailException, PlaceLoaded):
        block.claim(OTHER, other)
    qualification.release(RUN)
    block.claim(OTHER, other)


def test_whoever_is_left_out_is_in_the_conclusion() -> None:
    names = enrol(3)
    claim(names)
    rounds.next_round(RUN)
    store.rounds.record(RUN, 1, Side(names[2], Outcome.UNMEASURED, "preempted"))
    rounds.members_left(RUN)
    block.judge(RUN)
    with pytest.raises(AirflowFailException) as raised:
        block.conclude(RUN)
    assert all(name in str(raised.value) for name in names)


def test_a_programme_without_rounds_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    from muster_criteria.sku_files.skus import SHIPPED

    programme: dict[str, Any] = yaml.safe_load((SHIPPED / "programmes" / "block.yaml").read_text())
    del programme["probes"][PAIRS]
    (tmp_path / "programmes").mkdir()
    (tmp_path / "programmes" / "block.yaml").write_text(yaml.safe_dump(programme))
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path))
    names = enrol(2)
    claim(names)
    assert rounds.next_round(RUN) == []
    assert rounds.members_left(RUN) == names
    block.judge(RUN)
    (stage,) = store.reporting.run(RUN, node=names[0]).stages
    assert not [gap for gap in stage.judgement.coverage.missing if PAIRS in gap.what]


def test_a_reboot_in_a_round_is_held_against_its_node_alone() -> None:
    names = enrol(2)
    claim(names)
    rounds.next_round(RUN)
    good = Side(names[0], Outcome.MEASURED, "", figures(names[1], {"network": 1.0}))
    rebooted = Side(
        names[1], Outcome.SILENT, "rebooted", (), (("uncommanded_reboot", "it rebooted by itself", "job-1"),)
    )
    for side in (good, rebooted):
        store.rounds.record(RUN, 1, side)
    assert store.rounds.sides(RUN)[1][names[1]] == rebooted
    block.judge(RUN)
    assert [store.runs.get(RUN, node=name).verdict is Verdict.FAIL for name in names] == [False, True]
