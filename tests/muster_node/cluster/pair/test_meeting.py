"""Where the two nodes of a pair meet: whatever a node's own name means on it, and by which addresses."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from muster_demo.services import free_port
from muster_node.cluster.pair import tcp
from muster_node.cluster.pair.backend import Rail
from muster_node.cluster.pair.meeting import Meeting, join, serve
from muster_node.cluster.rendezvous.hub import HELLO_S
from muster_node.cluster.rendezvous.wire import line_of
from muster_node.hardware.seam import RealClock
from tests.muster_node.cluster.pair.pairs import both, sides


def test_a_node_whose_own_name_is_a_loopback_s_is_joined_at_the_address_that_others_know(tmp_path: Path) -> None:
    """As /etc/hosts of Debian has it: 127.0.1.1 and the machine's name."""
    given = sides(1)
    given[0]["address"] = "127.0.1.1"
    for rows in both(given, tmp_path):
        assert [row["value"] for row in rows if row["metric"] == "pair_met"] == [1]


def test_each_end_knows_its_address_as_the_partner_writes_it() -> None:
    port, found = free_port(), dict[str, Meeting]()
    how = "secret", 5.0, 5.0, RealClock()
    serving = threading.Thread(target=lambda: found.update(serves=serve([port], *how)))
    serving.start()
    found["joins"] = join("127.0.0.1", [port], *how)
    serving.join()
    for meeting in found.values():
        assert (meeting.own_address, meeting.other_address) == ("127.0.0.1", "127.0.0.1")
    for meeting in found.values():
        meeting.close()


@pytest.mark.parametrize(
    ("served", "joins_from"),
    [
        ("127.0.0.2", "127.0.0.1"),
        pytest.param("::1", "::1", marks=pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="IPv6 is off")),
    ],
)
def test_a_rail_without_addresses_is_the_network_over_which_the_pair_met(
    served: str, joins_from: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is not sent: on Debian a node's own one is its loopback's, and of either family."""
    bound: set[tuple[str, str]] = set()

    def bind(own: socket.socket, rail: Rail) -> None:
        bound.add((rail.own, rail.other))
        original(own, rail)

    original = tcp.bind
    monkeypatch.setattr(tcp, "bind", bind)
    given = sides(1, address=served, connect_s=30.0)
    for side in given:
        side["rails"][0] |= {"own": "", "other": ""}
    for rows in both(given, tmp_path):
        assert [row["note"] for row in rows if row["metric"] == "pair_bandwidth"] == [""]
    assert bound == {(served, joins_from), (joins_from, served)}


class Jumping(RealClock):
    """A second passes with each look; at ``at`` the event is set."""

    def __init__(self, at: float) -> None:
        self._now, self._at, self.reached = 0.0, at, threading.Event()

    def now(self) -> float:
        self._now += 1.0
        if self._now >= self._at:
            self.reached.set()
        return self._now


def test_a_partner_that_stands_still_is_not_left_with_a_connection_that_was_given_up() -> None:
    clock, took = Jumping(4 * HELLO_S), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def late() -> None:
            took.append(listener.accept()[0])
            clock.reached.wait(30)
            took[0].sendall(line_of("welcome"))

        serving = threading.Thread(target=late, daemon=True)
        serving.start()
        join("127.0.0.1", [listener.getsockname()[1]], "secret", 20 * HELLO_S, 20 * HELLO_S, clock).close()
        serving.join()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    took[0].close()
