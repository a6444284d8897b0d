"""Ports of a block: error rates over all that a member took part in, and the time without a link."""

from __future__ import annotations

import dataclasses

import pytest

from muster_criteria.cluster.fabric.judging.made import Rounds
from muster_criteria.cluster.fabric.topology import from_groups, unknown
from muster_criteria.cluster.judge import judge_block
from muster_criteria.cluster.model import BlockFindings
from muster_criteria.cluster.ports import COMMON_MIN, judge_ports, port_limits
from muster_criteria.measured import Measured
from muster_criteria.model import Lack, Severity
from muster_criteria.sku_files.skus import load_sku
from tests.muster_criteria.cluster_results import PROGRAMME, members
from tests.muster_criteria.cluster_results import block as block_of

SKU = load_sku("h100-sxm-8")
LIMITS = port_limits((*SKU.limits, *SKU.block.limits))
PORT = "nic:mlx5_0"


def row(metric: str, value: float | None, probe: str = "pair_rails", **labels: str) -> Measured:
    return Measured(probe=probe, metric=metric, device=PORT, unit="count", value=value, labels=labels)


def found(*rows: Measured) -> list[tuple[str, Severity]]:
    block = BlockFindings()
    judge_ports({"n1": rows, "n2": ()}, {"n1": LIMITS, "n2": LIMITS}, block)
    assert set(block.findings) <= {"n1"}
    return [(dict(each.labels).get("counter", each.metric), each.severity) for each in block.findings.get("n1", ())]


@pytest.mark.parametrize(
    ("counter", "count", "minutes", "severity"),
    [
        ("link_downed", 1, 1, Severity.CRITICAL),
        ("symbol_error", 3, 1, None),  # 3 in a minute do not prove 120 an hour
        ("symbol_error", 300, 60, Severity.CRITICAL),
        ("symbol_error", 100, 60, None),
        ("port_xmit_discards", 100_000, 1, Severity.WARNING),
        ("port_xmit_discards", 1_000, 1, None),  # a busy healthy fabric
        ("out_of_sequence", 1e6, 1, None),
        ("rnr_nak_retry_err", 1, 1, None),  # the other host had posted no receive yet
        ("req_rnr_retries_exceeded", 1, 1, Severity.WARNING),
        ("req_transport_retries_exceeded", 1, 1, Severity.WARNING),
    ],
)
def test_a_rate_is_what_counts_and_what_the_time_watched_proves(
    counter: str, count: float, minutes: float, severity: Severity | None
) -> None:
    rows = (row("port_watched", minutes), row("port_errors", count, counter=counter))
    assert found(*rows) == ([(counter, severity)] if severity else [])


def test_rounds_and_collectives_are_summed() -> None:
    """Each of them alone proves nothing, together they do."""
    rounds = [row("port_watched", 0.5), row("port_errors", 2, counter="symbol_error")]
    soak = [
        row("port_watched", 1.0, "cluster_collectives"),
        row("port_errors", 4, "cluster_collectives", counter="symbol_error"),
    ]
    assert found(*rounds) == []
    assert found(*soak) == []
    assert found(*rounds * 4, *soak) == [("symbol_error", Severity.CRITICAL)]


def test_time_without_a_link_warns() -> None:
    assert found(row("port_watched", 1.0), row("port_down", 0.0)) == []
    assert found(row("port_watched", 1.0), row("port_down", 2.0)) == [("port_down", Severity.WARNING)]


def suspected(*rows: Measured) -> dict[str, list[Lack]]:
    block = BlockFindings()
    judge_ports({"n1": rows, "n2": ()}, {"n1": LIMITS, "n2": LIMITS}, block)
    return {name: [gap.code for gap in gaps] for name, gaps in block.suspected.items()}


def test_a_port_that_was_not_watched_has_no_rate_and_does_not_pass() -> None:
    errors = row("port_errors", 5, counter="symbol_error")
    assert found(errors) == []
    assert suspected(errors) == {"n1": [Lack.REFUSED]}
    assert suspected(row("port_watched", 1.0), errors) == {}


def test_what_may_never_happen_needs_no_time_watched() -> None:
    assert found(row("port_errors", 1, counter="link_downed")) == [("link_downed", Severity.CRITICAL)]


def test_a_port_whose_counters_were_lost_meanwhile_does_not_pass() -> None:
    lost = [row("port_errors", None, counter=counter) for counter in ("link_downed", "symbol_error")]
    assert found(row("port_watched", 1.0), *lost) == []
    assert suspected(row("port_watched", 1.0), *lost) == {"n1": [Lack.UNREADABLE]}


def test_a_counter_that_monitoring_reset_warns_as_in_a_node_s_own_test() -> None:
    """What it had gained is not known; what it gained since fails the port as ever."""
    watched = row("port_watched", 1.0)
    nothing = [row("port_errors", None, counter=each, reset="yes") for each in ("symbol_error", "link_downed")]
    assert found(watched, *nothing) == [("port_errors", Severity.WARNING)], "once a port"
    assert suspected(watched, *nothing) == {}
    since = row("port_errors", 1.0, counter="link_downed", reset="yes")
    assert found(watched, since) == [("port_errors", Severity.WARNING), ("link_downed", Severity.CRITICAL)]
    assert found(watched, row("port_errors", None, counter="out_of_sequence", reset="yes")) == []


def test_a_counter_that_could_fail_no_node_keeps_none_from_passing() -> None:
    """As port_xmit_discards, of 16 bits, that congestion has filled."""
    full = [row("port_errors", None, counter=counter) for counter in ("port_xmit_discards", "out_of_sequence")]
    assert suspected(row("port_watched", 1.0), *full) == {}


@pytest.mark.parametrize("metric", ["port_watched", "port_errors", "port_down"])
def test_less_than_nothing_is_its_nodes_contradiction_and_hides_no_other_errors(metric: str) -> None:
    errors = [row("port_watched", 60.0), row("port_errors", 300, counter="symbol_error")]
    odd = row(metric, -1e9, counter="symbol_error")
    assert found(*errors, odd) == [("symbol_error", Severity.CRITICAL)]
    assert suspected(*errors, odd) == {"n1": [Lack.REFUSED]}


@pytest.mark.parametrize("members", [2, 3, 8])
def test_a_switch_that_restarts_fails_no_node_below_it(members: int) -> None:
    rows = (row("port_watched", 1.0), row("port_errors", 1, counter="link_downed"))
    names = [f"n{number}" for number in range(members)]
    block = BlockFindings()
    judge_ports(dict.fromkeys([*names, "other"], rows) | {"other": ()}, dict.fromkeys([*names, "other"], LIMITS), block)
    common = members >= COMMON_MIN
    assert sorted(block.findings) == ([] if common else names)
    assert {name: [gap.code for gap in gaps] for name, gaps in block.suspected.items()} == (
        {name: [Lack.BAD_PATH] for name in names} if common else {}
    )


DOWN = (row("port_watched", 1.0), row("port_errors", 1, counter="link_downed"))
UP = (row("port_watched", 1.0), row("port_errors", 0, counter="link_downed"))


@pytest.mark.parametrize(
    ("nodes", "a_leaf", "down", "common"),
    [
        (256, 32, {0, 32, 64}, set()),
        (256, 32, {0, 1, 2}, set()),  # three of 32 on one leaf
        (256, 4, {0, 1, 2, 8}, {0, 1, 2}),  # three of four on one leaf, and one of another
        (256, 2, {0, 1}, {0, 1}),  # all of a leaf, as in rounds of pairs
        (256, 3, {0, 1}, set()),
        (256, 2, {0, 1, 2}, {0, 1}),  # and a port of another
        (256, 1, {0, 1, 2}, set()),
        (32, 2, set(range(30)), set(range(30))),  # most of the block, as when the whole rail was restarted
    ],
)
def test_a_port_that_most_of_a_leaf_lost_is_the_switchs(
    nodes: int, a_leaf: int, down: set[int], common: set[int]
) -> None:
    names = [f"n{at:03}" for at in range(nodes)]
    topology = from_groups({name: at // a_leaf for at, name in enumerate(names)}, ["network"])
    block = BlockFindings()
    rows = {name: DOWN if at in down else UP for at, name in enumerate(names)}
    judge_ports(rows, dict.fromkeys(names, LIMITS), block, topology)
    assert set(block.suspected) == {names[at] for at in common}
    assert set(block.findings) == {names[at] for at in down - common}


def test_a_block_whose_leaves_are_known_fails_three_ports_on_three_leaves() -> None:
    sent = members(block_of(9))
    names = [member.name for member in sent]
    topology = from_groups({name: at // 3 for at, name in enumerate(names)}, ["network"])
    watched = [
        dataclasses.replace(member, in_rounds=UP if at % 3 else DOWN, port_limits=LIMITS)
        for at, member in enumerate(sent)
    ]
    assert set(judge_block(watched, PROGRAMME, Rounds(topology, {}, ())).failed) == {names[at] for at in (0, 3, 6)}


def test_of_unknown_leaves_any_three_may_share_a_switch() -> None:
    """A leaf's switch that is restarted takes the ports of a part of the block only."""
    names, block = [f"n{at:03}" for at in range(256)], BlockFindings()
    rows = {name: DOWN if at < 32 else UP for at, name in enumerate(names)}
    judge_ports(rows, dict.fromkeys(names, LIMITS), block, unknown(names, ["network"]))
    assert set(block.suspected) == set(names[:32])
    assert block.findings == {}


def test_a_fabric_that_is_busy_everywhere_warns_and_is_no_switch() -> None:
    rows = (row("port_watched", 1.0), row("port_errors", 100_000, counter="port_xmit_discards"))
    block = BlockFindings()
    judge_ports(dict.fromkeys("abcd", rows), dict.fromkeys("abcd", LIMITS), block)
    assert {each.severity for found in block.findings.values() for each in found} == {Severity.WARNING}
    assert block.suspected == {}
