"""NVLink domains that span a rack: what is a node's and what is its rack's; zero is right where NVLink ends at home."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from muster_criteria.cluster import judge
from muster_criteria.cluster.domains import OTHERS_MIN
from muster_criteria.cluster.model import ClusterJudgement, MemberResult
from muster_criteria.cluster.rack import Trouble
from muster_criteria.measured import Measured
from muster_criteria.model import Lack, Verdict
from muster_criteria.sku_files.skus import load_sku
from muster_node.cluster.collectives.exchange import ELEMENT_BYTES, elements_of
from muster_node.workloads.common import MIB
from tests.muster_criteria.cluster_results import COLLECTIVES, Sent

NODES, GPUS = 18, 4
LARGE, SMALL = (str(elements_of(mib * MIB, NODES * GPUS) * ELEMENT_BYTES) for mib in (512, 64))
HERE, ELSEWHERE = "5b0e2b7e-0f0b-4f4e-9a51-0c5b5f3c7a11.32766", "7d1f8f6a-55c1-4b0e-8a32-9a0e5a1f0c22.32766"
ZERO = "00000000-0000-0000-0000-000000000000.0"
PARTITION = "5b0e2b7e-0f0b-4f4e-9a51-0c5b5f3c7a11.2"
UNREGISTERED_CLIQUE = "5b0e2b7e-0f0b-4f4e-9a51-0c5b5f3c7a11.0"
RATES = {"on": 838.07, "off": 191.4}
GOOD = {"domain": HERE, "state": "completed", "healthy": 1.0, "imex": "READY", "rates": RATES}


def _row(metric: str, device: str = "node", **keys: Any) -> Measured:
    return Measured.model_validate({"probe": COLLECTIVES, "metric": metric, "device": device, "unit": "text", **keys})


def _member(
    name: str, names: list[str], said: Mapping[str, Any], rack: str, nodes: int | None, level: str = "standard"
) -> MemberResult:
    member = Sent(name, names, GPUS).member(rack=rack, domain_nodes=nodes, devices=GPUS, level=level)
    assert member.result is not None
    rows = [_row("imex", text=said["imex"], note="" if said["imex"] else "not supported")]
    for gpu in range(GPUS):
        rows.append(_row("nvlink_domain", f"gpu{gpu}", text=said["domain"]))
        rows.append(_row("fabric_state", f"gpu{gpu}", text=said["state"]))
        rows.append(_row("fabric_healthy", f"gpu{gpu}", value=said["healthy"]))
    rows += [
        _row(
            "domain_busbw",
            value=rate,
            labels={"ranks": str(NODES * GPUS), "bytes": said.get("bytes", LARGE), "mnnvl": way},
        )
        for way, rate in said.get("rates", {}).items()
    ]
    measurements = (*member.result.measurements, *rows)
    return dataclasses.replace(member, result=member.result.model_copy(update={"measurements": measurements}))


def _judged(
    odd: Mapping[str, Any] | None = None, at: int = 0, nodes: int | None = NODES, count: int = NODES, rack: str = "r1"
) -> ClusterJudgement:
    """A block of ``count`` trays of which the first ``at`` say what ``odd`` changes."""
    names = [f"n{number:02}" for number in range(count)]
    members = [
        _member(name, names, {**GOOD, **(odd or {} if number < at else {})}, rack, nodes)
        for number, name in enumerate(names)
    ]
    return judge.judge_block(members, load_sku("gb200-nvl72").block)


ODD = [
    ({"domain": ZERO}, Trouble.IDENTITY),
    ({"domain": UNREGISTERED_CLIQUE}, Trouble.IDENTITY),
    ({"domain": ELSEWHERE}, Trouble.SPLIT),
    ({"state": "in progress"}, Trouble.NOT_JOINED),
    ({"state": "completed with NVML error 3"}, Trouble.NOT_JOINED),
    ({"healthy": 0.0}, Trouble.UNHEALTHY),
    ({"imex": "service inactive"}, Trouble.IMEX),
    ({"imex": None}, Trouble.IMEX),
    ({"imex": "no answer from nvidia-imex-ctl (exit 1): failed to connect"}, Trouble.IMEX),
]


def test_a_rack_in_one_domain_is_good() -> None:
    judged = _judged()
    assert {each.verdict for each in judged.members.values()} == {Verdict.PASS}
    assert [(rack.rack, rack.troubles) for rack in judged.racks] == [("r1", ())]


@pytest.mark.parametrize("count", [OTHERS_MIN, NODES])
@pytest.mark.parametrize(("odd", "trouble"), ODD)
def test_one_tray_that_differs_fails_alone(odd: Mapping[str, Any], trouble: Trouble, count: int) -> None:
    judged = _judged(odd, at=1, count=count)
    assert set(judged.failed) == {"n00"}
    assert [finding.metric for finding in judged.failed["n00"]] == [trouble.value.removesuffix("_split")]
    assert judged.racks[0].troubles == ()
    assert judged.members["n01"].verdict is Verdict.PASS


@pytest.mark.parametrize("at", [NODES // 2, NODES])
@pytest.mark.parametrize(("odd", "trouble"), ODD)
def test_what_most_trays_show_is_the_racks_and_fails_none(odd: Mapping[str, Any], trouble: Trouble, at: int) -> None:
    if trouble is Trouble.SPLIT and at == NODES:
        pytest.skip("all elsewhere is one domain")
    judged = _judged(odd, at=at)
    assert judged.failed == {}
    assert trouble in {code for code, _ in judged.racks[0].troubles}
    for member in judged.members.values():
        assert member.verdict is Verdict.INCONCLUSIVE
        assert Lack.RACK in {gap.code for gap in member.coverage.missing}


def test_imex_that_something_else_manages_on_the_whole_rack_is_not_judged_and_on_one_tray_is() -> None:
    """NVIDIA's DRA driver asks for a masked service; the host's own tests use no MNNVL then."""
    masked = {"imex": "service masked", "rates": {"on": 40.0, "off": 40.0}}
    judged = _judged(masked, at=NODES)
    assert {each.verdict for each in judged.members.values()} == {Verdict.PASS}
    assert judged.racks[0].troubles == ()
    assert any("MNNVL" in note for note in judged.notes)
    assert set(_judged(masked, at=1).failed) == {"n00"}
    # It may be masked on these two alone.
    pair = _judged(masked, at=2, count=2)
    assert {each.verdict for each in pair.members.values()} == {Verdict.INCONCLUSIVE}
    assert _judged({**masked, "state": "in progress"}, at=NODES).racks[0].troubles


@pytest.mark.parametrize("at", [2, 8, 9])
def test_a_rack_that_is_partitioned_on_purpose_fails_no_tray(at: int) -> None:
    judged = _judged({"domain": PARTITION}, at=at)
    assert {each.verdict for each in judged.members.values()} == {Verdict.PASS}
    assert [rack.troubles for rack in judged.racks] == [()]
    assert any(PARTITION in note for note in judged.notes)


def test_a_clique_of_one_tray_is_no_partition() -> None:
    judged = _judged({"domain": PARTITION}, at=1)
    assert set(judged.failed) == {"n00"}
    assert judged.members["n01"].verdict is Verdict.PASS


def test_a_tray_whose_partition_is_not_in_the_block_does_not_fail() -> None:
    judged = _judged({"domain": PARTITION}, at=1, count=6)
    assert judged.failed == {}
    assert [rack.troubles for rack in judged.racks] == [()]
    assert [gap.code for gap in judged.members["n00"].coverage.missing] == [Lack.UNDECIDED]
    assert judged.members["n01"].verdict is Verdict.PASS


@pytest.mark.parametrize(
    "cliques", ["5b0e2b7e-0f0b-4f4e-9a51-0c5b5f3c7a11.{}", "7d1f8f6a-55c1-4b0e-8a32-9a0e5a1f0c22.{}"]
)
def test_another_cluster_fails_a_tray_whether_or_not_its_rack_is_whole(cliques: str) -> None:
    names = [f"n{number}" for number in range(6)]
    said = {name: {**GOOD, "domain": cliques.format(1 + at)} for at, name in enumerate(names[:3])}
    members = [_member(name, names, said.get(name, GOOD), "r1", NODES) for name in names]
    judged = judge.judge_block(members, load_sku("gb200-nvl72").block)
    assert judged.failed == {}
    elsewhere = cliques.startswith("7d")
    assert [code for code, _ in judged.racks[0].troubles] == ([Trouble.SPLIT] if elsewhere else [])
    assert judged.racks[0].held == (tuple(names) if elsewhere else ())
    one = _judged({"domain": ELSEWHERE}, at=1, count=6)
    assert set(one.failed) == {"n00"}


@pytest.mark.parametrize("at", [2, 8])
def test_another_cluster_that_trays_share_is_the_racks(at: int) -> None:
    judged = _judged({"domain": ELSEWHERE}, at=at)
    assert judged.failed == {}
    assert [code for code, _ in judged.racks[0].troubles] == [Trouble.SPLIT]


@pytest.mark.parametrize(
    ("odd", "trouble"),
    [({"imex": "service inactive"}, Trouble.IMEX), ({"rates": {"on": 350.0, "off": 351.0}}, Trouble.NO_GAIN)],
)
def test_what_a_whole_partition_shows_is_the_racks(odd: Mapping[str, Any], trouble: Trouble) -> None:
    judged = _judged({"domain": PARTITION, **odd}, at=4)
    assert judged.failed == {}
    assert [code for code, _ in judged.racks[0].troubles] == [trouble]
    assert judged.racks[0].held == ("n00", "n01", "n02", "n03")
    assert {each for each, member in judged.members.items() if member.verdict is Verdict.PASS} == {
        f"n{number:02}" for number in range(4, NODES)
    }


def test_one_tray_of_a_partition_fails_alone() -> None:
    names = [f"n{number:02}" for number in range(NODES)]
    said = {"n00": {"domain": PARTITION, "imex": "service inactive"}, "n01": {"domain": PARTITION}}
    members = [_member(name, names, {**GOOD, **said.get(name, {})}, "r1", NODES) for name in names]
    judged = judge.judge_block(members, load_sku("gb200-nvl72").block)
    assert set(judged.failed) == {"n00"}
    assert judged.members["n01"].verdict is Verdict.PASS


@pytest.mark.parametrize(("odd", "trouble"), [*ODD, ({"rates": {"on": 350.0, "off": 351.0}}, Trouble.NO_GAIN)])
def test_two_trays_neither_fail_nor_hold_their_rack(odd: Mapping[str, Any], trouble: Trouble) -> None:
    """Eighteen nodes wait for a person in vain because one of two says something."""
    judged = _judged(odd, at=2 if trouble is Trouble.NO_GAIN else 1, count=2)
    assert judged.failed == {}
    assert [rack.troubles for rack in judged.racks] == [()]
    assert {gap.code for gap in judged.members["n00"].coverage.missing} == {Lack.UNDECIDED}
    both = trouble in (Trouble.SPLIT, Trouble.NO_GAIN)
    assert (judged.members["n01"].verdict is Verdict.INCONCLUSIVE) is both


def test_a_zero_identity_is_right_where_nvlink_ends_at_the_machine() -> None:
    judged = _judged({"domain": ZERO, "imex": None}, at=NODES, nodes=None)
    assert {each.verdict for each in judged.members.values()} == {Verdict.PASS}
    assert judged.racks == ()
    assert load_sku("h100-sxm-8").domain_nodes is None
    assert load_sku("gb200-nvl72").domain_nodes == NODES


def test_racks_of_a_block_are_judged_apart() -> None:
    names = [f"n{number}" for number in range(8)]
    members = [
        _member(name, names, {**GOOD, "domain": HERE if at < 4 else ZERO}, "r1" if at < 4 else "r2", NODES)
        for at, name in enumerate(names)
    ]
    judged = judge.judge_block(members, load_sku("gb200-nvl72").block)
    assert [(rack.rack, bool(rack.troubles)) for rack in judged.racks] == [
        ("r1", False), ("r2", True),
    ]  # fmt: skip
    assert judged.members["n0"].verdict is Verdict.PASS
    assert judged.members["n7"].verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("rates", "ill"),
    [
        ({"on": 800.0, "off": 350.0}, False),
        ({"on": 923.32, "off": 376.01}, False),
        ({"on": 350.0}, False),
        ({"on": 350.0, "off": 351.0}, True),
        ({"on": 351.0, "off": 350.0}, True),
        ({"on": 838.07, "off": 837.76}, False),
    ],
)
def test_mnnvl_that_gives_nothing_is_the_racks(rates: Mapping[str, float], ill: bool) -> None:
    judged = _judged({"rates": rates}, at=NODES)
    assert (judged.members["n00"].verdict is Verdict.PASS) is not ill
    assert [code for code, _ in judged.racks[0].troubles] == ([Trouble.NO_GAIN] if ill else [])


@pytest.mark.parametrize(("size", "on", "ill"), [
    (LARGE, 420.0, True), (SMALL, 420.0, False), (SMALL, 349.0, True),
])  # fmt: skip
def test_a_small_all_reduce_has_only_to_be_faster_with_mnnvl(size: str, on: float, ill: bool) -> None:
    judged = _judged({"bytes": size, "rates": {"on": on, "off": 350.0}}, at=NODES)
    assert [code for code, _ in judged.racks[0].troubles] == ([Trouble.NO_GAIN] if ill else [])


def test_a_tray_that_says_nothing_of_its_domain_cannot_pass() -> None:
    names = [f"n{number}" for number in range(4)]
    members = [_member(name, names, GOOD, "r1", NODES) for name in names]
    members[0] = Sent("n0", names, GPUS).member(rack="r1", domain_nodes=NODES, devices=GPUS, level="standard")
    judged = judge.judge_block(members, load_sku("gb200-nvl72").block)
    assert judged.members["n0"].verdict is Verdict.INCONCLUSIVE
    assert judged.members["n1"].verdict is Verdict.PASS


@pytest.mark.parametrize(("odd", "trouble"), ODD)
@pytest.mark.parametrize("at", [1, NODES // 2])
def test_trays_without_a_rack_in_the_records_may_be_of_several_and_fail_for_none(
    odd: Mapping[str, Any], trouble: Trouble, at: int
) -> None:
    judged = _judged(odd, at=at, rack="")
    assert judged.failed == {}
    held = {name for name, member in judged.members.items() if member.verdict is Verdict.INCONCLUSIVE}
    assert {gap.code for name in held for gap in judged.members[name].coverage.missing} == {Lack.UNDECIDED}
    assert len(held) == at
    assert not judged.racks[0].troubles


def test_trays_without_a_rack_that_share_one_healthy_domain_pass() -> None:
    assert {each.verdict for each in _judged(rack="").members.values()} == {Verdict.PASS}


@pytest.mark.parametrize(
    ("said", "level", "held"),
    [({}, "standard", False), ({"rates": {}}, "standard", True), ({"rates": {}}, "demo", False)],
    ids=["measured", "not measured", "not of its programme"],
)
def test_a_tray_whose_domain_no_collective_went_over_cannot_pass(
    said: Mapping[str, Any], level: str, held: bool
) -> None:
    names = [f"n{number}" for number in range(4)]
    members = [_member(name, names, {**GOOD, **(said if name == "n0" else {})}, "r1", NODES, level) for name in names]
    judged = judge.judge_block(members, load_sku("gb200-nvl72").block)
    assert [gap.code for gap in judged.members["n0"].coverage.missing] == [Lack.NOT_REPORTED] * held
    assert {judged.members[name].verdict for name in names[1:]} == {Verdict.PASS}
    assert judged.failed == {}


def test_the_only_tray_of_a_domain_in_a_block_has_no_collective_to_measure() -> None:
    names = ["n0", "n1", "n2", "n3"]
    said = {"n0": {**GOOD, "domain": PARTITION, "rates": {}}}
    members = [_member(name, names, said.get(name, GOOD), "r1", NODES) for name in names]
    judged = judge.judge_block(members, load_sku("gb200-nvl72").block)
    assert Lack.NOT_REPORTED not in {gap.code for gap in judged.members["n0"].coverage.missing}
