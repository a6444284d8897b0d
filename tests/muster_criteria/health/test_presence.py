"""What a node had once and has no longer: which port is missed where some are lent, and what was not read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from muster_criteria.health import presence
from muster_criteria.health.readings import Fact


def look(known: Mapping[str, float], *facts: Fact, unread: Collection[str] = ()) -> tuple[list[str], dict[str, float]]:
    """What is bad, and what is remembered."""
    up: dict[str, float] = {}
    found = list(presence.states(facts, unread, known, up))
    return [f"{each.check} {each.device}" for each in found if each.bad], {**known, **up}


def nic(number: int, value: float = 1.0, kind: str = "net_carrier", at: int | None = None) -> Fact:
    slot = number if at is None else at
    return Fact(name=kind, device=f"nic:{number}", value=value, labels={"pci": f"0000:0{slot}:00.0"})


def lent(slot: int, kind: str = "net_carrier") -> Fact:
    return Fact(name=presence.LENT[kind], device=f"0000:0{slot}:00.0", value=1.0)


@pytest.mark.parametrize("kind", presence.LENT)
@pytest.mark.parametrize(("here", "away", "bad"), [
    ({1: 1, 2: 1}, 0, []), ({2: 1}, 1, ["port_down nic:0"]), ({1: 1, 2: 1}, 7, ["port_down nic:0"]),
    ({1: 1, 2: 1, 5: 0}, 0, []), ({1: 0, 2: 1}, 0, ["port_down nic:1"]), ({2: 1, 5: 0}, 1, ["port_down nic:5"]),
])  # fmt: skip
def test_a_port_that_is_lent_to_a_container_as_a_whole_is_the_only_one_that_is_not_missed(
    kind: str, here: dict[int, int], away: int, bad: list[str]
) -> None:
    _, known = look({}, *(nic(each, kind=kind) for each in range(3)))
    ports = [nic(each, value, kind) for each, value in here.items()]
    for _ in range(2):
        found, known = look(known, *ports, lent(away, kind))
        assert found == bad
    not_back = {*bad, f"port_down nic:{away}"} if away < 3 else {*bad}
    assert set(look(known, *ports)[0]) == not_back


def test_a_port_is_lent_by_the_address_that_it_had_last() -> None:
    _, known = look({}, nic(0), nic(1), nic(2))
    _, known = look(known, nic(0, at=9), nic(1), nic(2))
    assert look(known, nic(1), nic(2), lent(9))[0] == []
    assert look(known, nic(1), nic(2), lent(0))[0] == ["port_down nic:0"]


PORTS = {1: (1, 1), 2: (2, 1), 3: (3, 0), 4: (4, 1)}
"""By port, its address and whether it is up."""


@pytest.mark.parametrize("kind", presence.LENT)
@pytest.mark.parametrize(("now", "bad"), [
    ({1: (1, 1), 2: (2, 1), 3: (4, 1), 4: (3, 0)}, []),
    ({1: (1, 1), 2: (2, 1), 3: (4, 0), 4: (3, 1)}, ["port_down nic:3"]),
    ({1: (9, 0), 2: (2, 1), 3: (3, 0), 4: (4, 1)}, ["port_down nic:1"]),
])  # fmt: skip
def test_a_port_is_known_by_its_address_whatever_its_number_is_after_a_boot(
    kind: str, now: dict[int, tuple[int, int]], bad: list[str]
) -> None:
    def ports(those: Mapping[int, tuple[int, int]]) -> list[Fact]:
        return [nic(number, up, kind, at) for number, (at, up) in those.items()]

    _, known = look({}, *ports(PORTS))
    for _ in range(2):
        found, known = look(known, *ports(now))
        assert found == bad
    was_up = 1 if (3, 1) in now.values() else 0
    assert look(known, *ports(PORTS))[0] == ["port_down nic:3"] * was_up, "also where they are numbered back"


def test_a_port_that_was_never_up_and_is_gone_leaves_the_others_their_addresses() -> None:
    _, known = look({}, nic(0, at=1), nic(1, 0, at=2), nic(2, 0, at=3), nic(3, at=4))
    _, known = look(known, nic(0, at=1), nic(1, 0, at=2), nic(3, at=4))
    assert look(known, nic(0, 0, at=2), nic(1, at=1), nic(3, at=4))[0] == []


@pytest.mark.parametrize(("before", "now"), [
    ({0: (1, 1), 1: (2, 0)}, {0: (2, 1), 1: (3, 0)}),
    ({0: (1, 1), 1: (2, 1), 2: (3, 0)}, {0: (0, 1), 1: (1, 1), 2: (2, 0)}),
    ({9: (1, 1), 10: (1, 0)}, {7: (1, 1), 8: (1, 0)}),
    ({0: (1, 1), 1: (1, 0)}, {2: (1, 0), 3: (1, 1)}),
])  # fmt: skip
def test_where_addresses_shift_or_are_shared_a_port_is_known_by_its_name(
    before: dict[int, tuple[int, int]], now: dict[int, tuple[int, int]]
) -> None:
    """As where a card came or went, which shifts the bus numbers of those behind it."""
    known: dict[str, float] = {}
    for those in (before, now, now):
        found, known = look(known, *(nic(number, up, at=at) for number, (at, up) in those.items()))
        assert found == []


def test_a_state_of_a_name_that_another_port_has_now_is_over() -> None:
    _, known = look({}, nic(1), nic(2, 0), nic(3))
    _, known = look(known, nic(1, 0), nic(2, 0), nic(3))
    found = list(presence.states((nic(1, 0, at=2), nic(2, 0, at=1), nic(3)), (), known, {}))
    assert {each.device: each.bad for each in found if each.check == "port_down"} == {
        "nic:1": False, "nic:2": True, "nic:3": False,
    }  # fmt: skip


def test_an_adapter_that_was_lent_before_it_was_known_takes_no_ones_place_when_it_is_back() -> None:
    _, known = look({}, nic(0), nic(1), lent(7))
    for ports in ([nic(1), lent(7)], [nic(1), nic(7)], [nic(1), nic(7)]):
        found, known = look(known, *ports)
        assert found == ["port_down nic:0"]
    assert look(known, nic(0), nic(1), nic(8, at=7))[0] == [], "it may be renamed later, as any other"


@pytest.mark.parametrize(("unread", "bad"), [
    ("", ["imex_lost node"]), ("ports", ["imex_lost node"]), ("imex", []), ("hardware", []), ("services", []),
])  # fmt: skip
def test_imex_of_which_nothing_answers_is_missed_where_systemd_answered(unread: str, bad: list[str]) -> None:
    _, known = look({}, Fact(name="imex", device="node", text="service active"))
    assert look(known, Fact(name="imex", device="node", note="not supported"), unread=[unread])[0] == bad
