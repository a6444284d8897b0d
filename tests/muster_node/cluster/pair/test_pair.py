"""Pair tests over real sockets: rates both ways, wrong bytes, dead rails, partners that are late, lost or strangers."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from muster_demo.services import free_port
from muster_node.cluster.pair import collective, measure, tcp
from muster_node.cluster.pair.backend import NoBackend, NotSent, NotTried, Rail, Step
from muster_node.cluster.pair.collective import environment
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.nvidia.gpus import NvidiaGpus
from muster_node.hardware.seam import RealClock
from muster_node.probe import Context
from tests.muster_node.cluster.pair.pairs import both, figures, rails, run, sides
from tests.muster_node.hardware.nvml_standin import FakeNvml


def test_each_node_reports_what_arrived_at_it_alone_and_together(tmp_path: Path) -> None:
    for rows in both(sides(2, variants=2), tmp_path):
        alone, together = figures(rows, "pair_bandwidth"), figures(rows, "pair_bandwidth", "together")
        assert set(alone) == {("r0", 0), ("r0", 1), ("r1", 0), ("r1", 1)}
        assert set(together) == set(alone)
        assert all(rate > 0 for rate in (*alone.values(), *together.values()))
        assert set(figures(rows, "pair_wrong_bytes").values()) == {0}
        assert [row["value"] for row in rows if row["metric"] == "pair_met"] == [1]


def test_one_of_them_reports_the_round_trips(tmp_path: Path) -> None:
    serves, joins = both(sides(2), tmp_path)
    assert figures(serves, "pair_latency") == {}
    assert all(value > 0 for value in figures(joins, "pair_latency").values())
    assert set(figures(joins, "pair_latency")) == {("r0", 0), ("r1", 0)}


def test_a_dead_rail_is_zero_with_its_reason_and_the_other_rail_is_measured(tmp_path: Path) -> None:
    given = sides(2)
    # An address that no interface here has cannot be bound; the partner cannot reach it either.
    given[0]["rails"][1]["own"] = given[1]["rails"][1]["other"] = "192.0.2.1"
    for rows in both(given, tmp_path):
        rates = figures(rows, "pair_bandwidth")
        assert rates["r1", 0] == 0
        assert rates["r0", 0] > 0
        notes = [row["note"] for row in rows if row["metric"] == "pair_bandwidth" and row["labels"]["rail"] == "r1"]
        assert all("192.0.2.1" in note for note in notes)
        assert [row["value"] for row in rows if row["metric"] == "pair_met"] == [1]


@pytest.mark.parametrize("refused", [True, False])
def test_a_rail_that_cannot_be_chosen_is_not_measured_over_another_one(
    refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux before 5.7 refuses who lacks CAP_NET_RAW; an interface that is not there is refused to all."""
    if refused:
        monkeypatch.setattr(tcp.socket, "socket", Refusing)
    given = sides(2)
    given[0]["rails"][1]["interface"] = "lo" if refused else "nosuch0"
    for rows in both(given, tmp_path):
        rates = figures(rows, "pair_bandwidth")
        assert rates["r1", 0] is None
        assert rates["r0", 0] > 0
        notes = [row["note"] for row in rows if row["metric"] == "pair_bandwidth" and row["labels"]["rail"] == "r1"]
        assert all(given[0]["rails"][1]["interface"] in note for note in notes)
        assert all(("CAP_NET_RAW" in note) is refused for note in notes)
        assert [row["value"] for row in rows if row["metric"] == "pair_met"] == [1]


class Refusing(socket.socket):
    """As a kernel that asks for CAP_NET_RAW."""

    def setsockopt(self, *given: Any) -> None:
        if given[1] == tcp._BIND_TO_DEVICE:
            raise PermissionError(1, "Operation not permitted")
        super().setsockopt(*given)


STEP = Step(seconds=0.2, warmup_s=0.05, streams=1, seed=3, connect_s=1.0)


def test_a_wrong_byte_is_counted_wherever_it_comes() -> None:
    backend = tcp.Tcp(RealClock())
    ends = [Rail("r0", own, other) for own, other in (("127.0.0.1", "127.0.0.2"), ("127.0.0.2", "127.0.0.1"))]
    receiver = backend.receive(ends[0], STEP)
    spoilt = bytearray(tcp.pattern(STEP.seed))
    spoilt[777] ^= 4

    def send() -> None:
        with socket.create_connection(("127.0.0.1", receiver.endpoint["port"])) as flow:
            flow.sendall(spoilt + tcp.pattern(STEP.seed))

    thread = threading.Thread(target=send)
    thread.start()
    assert receiver.result().wrong == 1
    thread.join()
    receiver.close()


def test_exchanged_blocks_are_wrong_too() -> None:
    assert tcp.pattern(1) != tcp.pattern(2)
    pattern = tcp.pattern(1)
    assert pattern[: 1 << 18] != pattern[1 << 18 : 2 << 18]
    assert len(pattern) % 2 == 1


def test_a_rail_that_accepts_and_then_sends_nothing_is_not_waited_for_for_ever() -> None:
    backend = tcp.Tcp(RealClock())
    receiver = backend.receive(Rail("r0", "127.0.0.1", "127.0.0.2"), STEP)
    with socket.create_connection(("127.0.0.1", receiver.endpoint["port"])), pytest.raises(NotSent, match="no byte"):
        receiver.result()
    receiver.close()


def test_a_stall_in_the_timed_part_counts_as_slow() -> None:
    backend = tcp.Tcp(RealClock())
    receiver = backend.receive(Rail("r0", "127.0.0.1", "127.0.0.2"), STEP)

    def send() -> None:
        with socket.create_connection(("127.0.0.1", receiver.endpoint["port"])) as flow:
            flow.sendall(tcp.pattern(STEP.seed)[:100_000])

    thread = threading.Thread(target=send)
    thread.start()
    # All of it came before the timed part began.
    assert receiver.result().rate == 0.0
    thread.join()
    receiver.close()


def test_a_partner_that_never_comes_is_said_so_by_either_side(tmp_path: Path) -> None:
    for side, given in enumerate(sides(1, join_timeout_s=0.5)):
        rows: list[dict[str, object]] = []
        run(given, tmp_path / str(side), rows)
        (row,) = rows
        assert (row["metric"], row["value"]) == ("pair_met", 0)
        assert row["note"]


def test_a_partner_that_is_late_is_waited_for(tmp_path: Path) -> None:
    given = sides(1)
    found: list[dict[str, object]] = []
    early = threading.Thread(target=run, args=(given[1], tmp_path / "join", found))
    early.start()
    time.sleep(0.8)
    rows: list[dict[str, object]] = []
    run(given[0], tmp_path / "serve", rows)
    early.join()
    assert figures(rows, "pair_bandwidth")["r0", 0] > 0
    assert figures(found, "pair_bandwidth")["r0", 0] > 0


def test_strangers_are_turned_away_and_the_partner_still_gets_in(tmp_path: Path) -> None:
    given = sides(1)
    rows: list[dict[str, object]] = []
    serving = threading.Thread(target=run, args=(given[0], tmp_path / "serve", rows))
    serving.start()
    hello = b'{"kind": "hello", "secret": "%s"}\n'
    for knock in (b"GET / HTTP/1.0\r\n\r\n", hello % b"wrong", hello % b"\\ud800", b"\xff" * 100 + b"\n"):
        for _ in range(50):
            try:
                with socket.create_connection(("127.0.0.1", given[0]["ports"][0]), timeout=5) as stranger:
                    stranger.sendall(knock)
                    assert stranger.recv(100) == b""
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
            except ConnectionResetError:
                break
    met = threading.Event()

    def drip(stranger: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it is turned away
            while not met.wait(0.2):
                stranger.sendall(b"{")

    with socket.create_connection(("127.0.0.1", given[0]["ports"][0]), timeout=5) as slow:
        threading.Thread(target=drip, args=(slow,), daemon=True).start()
        run(given[1], tmp_path / "join", [])
        met.set()
    serving.join(60)
    assert figures(rows, "pair_bandwidth")["r0", 0] > 0


def test_a_partner_that_dies_under_way_leaves_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(Exception):
        pass

    original = measure.Pair._delay

    def die(self: measure.Pair, rail: Rail) -> None:
        if self.leads:
            self.meeting.close()
            raise Died
        original(self, rail)

    monkeypatch.setattr(measure.Pair, "_delay", die)
    given = sides(2)
    rows: list[dict[str, object]] = []
    serving = threading.Thread(target=run, args=(given[0], tmp_path / "serve", rows))
    serving.start()
    with pytest.raises(Died):
        run(given[1], tmp_path / "join", [])
    serving.join(60)
    assert figures(rows, "pair_bandwidth")["r0", 0] > 0
    assert [row["value"] for row in rows if row["metric"] == "pair_met"] == [0]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"role": "both"}, "role must be"),
        ({"rails": []}, "rails must be"),
        ({"rails": [{"name": "r0"}]}, "cannot be used"),
        ({"rails": rails(1, 0) * 2}, "one name"),
        ({"ports": [0]}, "ports must be"),
        ({"streams": 1000}, "streams must be"),
        ({"seconds": -1}, "must be positive"),
        ({"session": ""}, "session must be"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(changed: dict[str, object], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        run({**sides(1)[0], **changed}, tmp_path, [])


def test_nodes_that_do_not_have_the_same_backend_use_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for rows in both(sides(1, backend="ib_write_bw"), tmp_path):
        assert [(row["text"], bool(row["note"])) for row in rows if row["metric"] == "pair_backend"] == [("tcp", True)]
        assert figures(rows, "pair_bandwidth")["r0", 0] > 0


RAIL = Rail("r1", "10.0.0.1", "10.0.0.2", interface="ib1", device="mlx5_1", gpu=1)


def test_nccl_is_pinned_to_exactly_one_device() -> None:
    assert environment("nccl", RAIL, {"gpu1": "GPU-a"})["NCCL_IB_HCA"] == "=mlx5_1"
    assert environment("gloo", RAIL, {}) == {"GLOO_SOCKET_IFNAME": "ib1"}


@pytest.mark.parametrize(("gpu", "index"), [(0, 2), (1, 1), (3, 0), (None, 2)])
def test_the_gpu_of_a_rail_is_that_of_the_slot_whatever_its_place_on_the_bus(gpu: int | None, index: int) -> None:
    """NVML's first GPU of an HGX A100 has the module id 4."""
    nvml = FakeNvml(count=4)
    nvml.module_ids = [4, 2, 1, 3]
    uuids = collective.uuids_of(HostHardware(accelerators=NvidiaGpus(nvml)))
    rail = dataclasses.replace(RAIL, gpu=gpu)
    assert environment("nccl", rail, uuids)["CUDA_VISIBLE_DEVICES"] == f"GPU-{index:04}"


def test_a_rail_that_names_no_gpu_takes_the_one_at_its_place_on_part_of_a_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = {f"gpu{slot}": f"GPU-{slot}" for slot in range(4, 8)}
    unnamed = dataclasses.replace(RAIL, gpu=1, named=False)
    assert environment("nccl", unnamed, uuids)["CUDA_VISIBLE_DEVICES"] == "GPU-5"
    monkeypatch.setattr(collective, "_lacks", lambda context, library: "")
    monkeypatch.setattr(collective, "uuids_of", lambda hardware: uuids)
    context = Context(HostHardware(), {}, 0, tmp_path, lambda *a, **k: None, lambda sentence: None)
    nccl, gloo = (collective.Collective(context, library, "127.0.0.1", 1) for library in ("nccl", "gloo"))
    assert [each.gpu(unnamed) for each in (nccl, gloo)] == ["gpu5", ""]
    assert nccl.gpu(RAIL) == ""
    for lacking in (RAIL, dataclasses.replace(unnamed, gpu=4)):
        with pytest.raises(NotTried):
            environment("nccl", lacking, uuids)


@pytest.mark.parametrize("uuids", [{"gpu0": "GPU-a"}, {"gpu0": "GPU-a", "gpu1": "GPU-a"}, {}])
def test_a_rail_whose_gpu_cannot_be_chosen_is_not_called_dead(
    uuids: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "_lacks", lambda context, library: "")
    monkeypatch.setattr(collective, "uuids_of", lambda hardware: uuids)
    given = sides(1, backend="nccl", mib=1)
    for side in given:
        side["rails"][0]["gpu"] = 1
    for rows in both(given, tmp_path):
        assert figures(rows, "pair_bandwidth")["r0", 0] is None


@pytest.mark.needs_torch
def test_a_group_of_two_by_gloo_verifies_its_payload(tmp_path: Path) -> None:
    given = sides(1, backend="gloo", mib=1)
    for side in given:
        side["rails"][0]["interface"] = "lo"
    for rows in both(given, tmp_path):
        assert figures(rows, "pair_bandwidth")["r0", 0] > 0
        assert figures(rows, "pair_wrong_bytes")["r0", 0] == 0


def test_nccl_where_there_is_none_is_no_dead_rail(tmp_path: Path) -> None:
    """Neither a node without PyTorch nor one without a GPU for NCCL has a fault on its rails: both sides use TCP."""
    for rows in both(sides(1, backend="nccl", mib=1), tmp_path):
        assert figures(rows, "pair_bandwidth")["r0", 0] > 0
        assert figures(rows, "pair_wrong_bytes")["r0", 0] == 0


@pytest.mark.parametrize(
    ("found", "printed"), [(None, ""), ("there", "import json; print(False)"), ("there", "import absent_library")]
)
def test_what_a_collective_lacks_is_said_before_anything_is_sent(
    found: str | None, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setitem(collective._HAS, "nccl", printed)
    context = Context(HostHardware(), {}, 0, tmp_path, lambda *a, **k: None, lambda sentence: None)
    with pytest.raises(NoBackend):
        collective.Collective(context, "nccl", "127.0.0.1", 1)


def test_of_ports_that_are_in_use_a_pair_meets_at_the_next_one(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as silent:
        for rows in both(sides(1, ports=[silent.getsockname()[1], free_port()], join_timeout_s=20.0), tmp_path):
            assert [row["value"] for row in rows if row["metric"] == "pair_met"] == [1]


def test_a_port_that_is_taken_is_an_error_of_ours(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as taken, pytest.raises(OSError, match="in use"):
        run({**sides(1)[0], "ports": [taken.getsockname()[1]]}, tmp_path, [])
