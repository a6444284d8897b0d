"""Copies between host, GPUs and peers: rates show what links lost, digests show what a copy changed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster_node.hardware.seam import Device, Hardware, Transfer
from muster_node.probe import Context, Skip, resolve_params
from muster_node.probes.transfers import HOST_DIRECTIONS, Transfers, _emit_peers, blamed
from muster_node.workloads.copying import Copied
from muster_simulator import create_machine, open_simulated
from muster_simulator.compute import SimulatedCompute
from tests.muster_simulator.test_probes import Values, measure
from tests.support.injector import KINDS, Injector, OneDevice

pytestmark = [pytest.mark.needs_torch, pytest.mark.early(17)]
GPUS = [f"gpu{slot}" for slot in range(8)]
COPIES = {"mib": 1, "peer_mib": 1, "repeats": 1}
RATED = {**COPIES, "repeats": 3}


def _machine(tmp_path: Path, *faults: dict[str, Any]) -> Hardware:
    create_machine(tmp_path / "node", seed=4, faults=faults)
    return open_simulated(tmp_path / "node")


def _slow(rates: dict[str, float]) -> dict[str, float]:
    """Devices beyond 2 % of the median, as shares of it."""
    middle = statistics.median(rates.values())
    return {device: rate / middle for device, rate in rates.items() if abs(rate / middle - 1) > 0.02}


def test_a_gpu_that_only_sends_slowly_is_slow() -> None:
    gpus, values = [Device(gpu, "gpu", slot) for slot, gpu in enumerate(GPUS)], {}
    rate = {gpu: 40.0 if gpu == "gpu3" else 380.0 for gpu in GPUS}
    found = {(to, sender): Copied([rate[sender]] * 3, 4) for to in GPUS for sender in GPUS if to != sender}
    context: Any = SimpleNamespace(emit=lambda metric, device, **fields: values.update({device: fields["value"]}))
    for gpu in gpus:
        _emit_peers(context, gpu, found, set())
    assert values == rate


def _wrong(values: Values) -> dict[tuple[str, str], int]:
    return {
        (direction, device): count
        for (metric, direction), found in values.items()
        if metric == "transfer_mismatches"
        for device, count in found.items()
        if count
    }


def test_a_healthy_node_is_as_fast_as_its_model_and_loses_nothing(tmp_path: Path) -> None:
    values = measure(_machine(tmp_path), Transfers, tmp_path)
    for metric in ("pcie_bandwidth", "pcie_bandwidth_together"):
        for direction in HOST_DIRECTIONS:
            rates = values[metric, direction]
            assert list(rates) == GPUS
            assert not _slow(rates)
        assert 45.9 < min(values[metric, "h2d"].values()) < max(values[metric, "h2d"].values()) < 63
        assert 1.5 * 52 < min(values[metric, "both"].values()) < 2 * 63
    assert list(values["peer_bandwidth", ""]) == GPUS
    assert not _slow(values["peer_bandwidth", ""])
    assert {peer for metric, peer in values if metric == "peer_pair_bandwidth"} == set(GPUS)
    assert {direction for metric, direction in values if metric == "transfer_mismatches"} == {*HOST_DIRECTIONS, "peer"}
    assert not _wrong(values)


def test_a_narrow_pcie_link_and_a_lost_nvlink_show_on_their_gpus(tmp_path: Path) -> None:
    hardware = _machine(tmp_path, {"kind": "pcie_width", "gpu": 2}, {"kind": "nvlink_down", "gpu": 5})
    values = measure(hardware, Transfers, tmp_path)
    for metric in ("pcie_bandwidth", "pcie_bandwidth_together"):
        for direction in HOST_DIRECTIONS:
            assert _slow(values[metric, direction]) == {"gpu2": pytest.approx(0.5, abs=0.01)}
    assert _slow(values["peer_bandwidth", ""]) == {"gpu5": pytest.approx(17 / 18, abs=0.01)}
    from_gpu5 = values["peer_pair_bandwidth", "gpu5"]
    assert max(from_gpu5.values()) < 0.97 * min(values["peer_bandwidth", ""][gpu] for gpu in from_gpu5)
    assert not _wrong(values)


def test_gpus_without_any_nvlink_go_through_the_host_link(tmp_path: Path) -> None:
    hardware = _machine(tmp_path, {"kind": "nvlink_down", "gpu": 1, "links": 18})
    values = measure(hardware, Transfers, tmp_path, **RATED)
    assert values["peer_bandwidth", ""]["gpu1"] < 63


def test_fewer_than_three_copies_give_no_rate_and_are_compared_all_the_same(tmp_path: Path) -> None:
    values = measure(_machine(tmp_path), Transfers, tmp_path, **{**COPIES, "repeats": 2})
    assert values["pcie_bandwidth", "h2d"] == values["peer_bandwidth", ""] == dict.fromkeys(GPUS)
    assert values["transfer_mismatches", "h2d"] == dict.fromkeys(GPUS, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_damage_on_the_way_to_or_from_the_host_is_counted(tmp_path: Path, kind: str) -> None:
    machine = _machine(tmp_path)
    for seed in range(4):
        # Six kinds of copy, of which both ways at once makes two, each alone and with all GPUs, twice with the warm-up.
        injector = Injector(kind, "transfer", 16, seed)
        wrong = _wrong(measure(OneDevice(machine, injector), Transfers, tmp_path, **COPIES))
        assert injector.changed
        assert {device for _, device in wrong} == {"gpu0"}
        assert sum(wrong.values()) == (16 if KINDS[kind].steady else 1)


def _flip(monkeypatch: pytest.MonkeyPatch, strikes: Callable[[str, str], bool]) -> None:
    """Flip a bit of each copy between GPUs that ``strikes`` chooses by receiver and sender."""
    real = SimulatedCompute.transfer

    def flips(self: SimulatedCompute, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        real(self, transfers, nominal_bytes=nominal_bytes)
        for one in transfers:
            if one.peer is not None and strikes(self.device.id, one.peer.id):
                one.target[1234] ^= 1 << 40

    monkeypatch.setattr(SimulatedCompute, "transfer", flips)


def test_wrong_data_counts_for_the_sending_gpu_and_not_for_the_receivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _flip(monkeypatch, lambda _, peer: peer == "gpu3")
    wrong: dict[str, tuple[int, str, str]] = {}

    def emit(metric: str, device: str, **fields: Any) -> None:
        if metric == "transfer_mismatches" and fields["value"] and not fields["so_far"]:
            wrong[device] = (fields["value"], fields["labels"]["direction"], fields["note"])

    params = resolve_params(Transfers, COPIES)
    Transfers().run(Context(_machine(tmp_path), params, 1, tmp_path, emit, lambda sentence: None))
    value, direction, note = wrong.pop("gpu3")
    assert (value, direction) == (14, "peer")
    assert note.startswith("gpu3 to gpu0; gpu3 to gpu1; ")
    assert note.endswith("1 of 65536 words differ, the first at 0x2690")
    assert not wrong


def test_a_pair_that_errs_only_together_counts_for_both() -> None:
    wrong = {(one, other): 0 for one in GPUS for other in GPUS if one != other}
    assert not any(blamed(wrong).values())
    wrong["gpu1", "gpu4"] = 3
    once = {("gpu1", "gpu4"): 3}
    assert {device: pairs for device, pairs in blamed(wrong).items() if pairs} == {"gpu1": once, "gpu4": once}
    more = {("gpu1", "gpu5"): 2, ("gpu6", "gpu1"): 2}
    wrong |= more
    assert {device: pairs for device, pairs in blamed(wrong).items() if pairs} == {"gpu1": once | more}


Reruns = dict[str, dict[str, tuple[float, int]]]


def _reruns(machine: Hardware, tmp_path: Path) -> tuple[Reruns, dict[str, str]]:
    """{GPU: {GPU that repeated its wrong copies: wrong of all}}, of one direction; and the notes by GPU."""
    again: Reruns = {}
    notes: dict[str, str] = {}

    def emit(metric: str, device: str, **fields: Any) -> None:
        if metric == "transfer_rerun":
            again.setdefault(device, {})[fields["labels"]["on"]] = (fields["value"], fields["samples"])
        elif metric == "transfer_mismatches" and fields["value"] and not fields["so_far"]:
            notes[device] = fields["note"]

    Transfers().run(Context(machine, resolve_params(Transfers, COPIES), 1, tmp_path, emit, lambda sentence: None))
    return again, notes


@pytest.mark.parametrize("steady", [True, False])
def test_a_wrong_copy_to_a_gpu_is_made_again_there_and_to_two_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steady: bool
) -> None:
    real, hit = SimulatedCompute.transfer, list[int]()

    def flips(self: SimulatedCompute, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        real(self, transfers, nominal_bytes=nominal_bytes)
        if self.device.id == "gpu6" and [one.direction for one in transfers] == ["h2d"] and (steady or not hit):
            transfers[0].target[1234] ^= 1 << 40
            hit.append(1)

    monkeypatch.setattr(SimulatedCompute, "transfer", flips)
    again, _ = _reruns(_machine(tmp_path), tmp_path)
    assert again == {"gpu6": {"gpu6": (3 if steady else 0, 3), "gpu7": (0, 1), "gpu0": (0, 1)}}


def test_a_wrong_copy_between_two_gpus_is_made_again_and_may_be_the_fault_of_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _flip(monkeypatch, lambda to, peer: (to, peer) == ("gpu2", "gpu1"))
    again, notes = _reruns(_machine(tmp_path), tmp_path)
    both = {"gpu1": (3, 3), "gpu2": (3, 3)}
    assert again == {
        "gpu1": {**both, "gpu3": (0, 1), "gpu4": (0, 1)}, "gpu2": {**both, "gpu3": (0, 1), "gpu4": (0, 1)},
    }  # fmt: skip
    assert all("either end" in note for note in notes.values())


def test_a_gpu_that_sends_wrong_data_to_all_is_confirmed_by_pairs_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _flip(monkeypatch, lambda _, peer: peer == "gpu3")
    again, _ = _reruns(_machine(tmp_path), tmp_path)
    assert again == {"gpu3": {"gpu3": (21, 21), "gpu4": (0, 1), "gpu5": (0, 1)}}


def test_a_pair_whose_gpu_was_lost_after_a_wrong_copy_is_not_repeated_and_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, done = SimulatedCompute.transfer, list[int]()

    def flips(self: SimulatedCompute, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        pair = (self.device.id, transfers[0].peer.id) if transfers[0].peer is not None else ()
        if "gpu3" in pair and (pair != ("gpu0", "gpu3") or done):
            raise RuntimeError("CUDA error: GPU is lost")
        real(self, transfers, nominal_bytes=nominal_bytes)
        if pair in {("gpu0", "gpu3"), ("gpu2", "gpu1")}:
            transfers[0].target[1234] ^= 1 << 40
            done.append(1)

    monkeypatch.setattr(SimulatedCompute, "transfer", flips)
    again, _ = _reruns(_machine(tmp_path), tmp_path)
    assert set(again) == {"gpu1", "gpu2"}


def test_a_copy_that_never_happened_is_counted_as_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier copy left in the buffer must not answer for a later one."""
    monkeypatch.setattr(SimulatedCompute, "_link_rate", lambda *_: 1e9)
    real, done = SimulatedCompute.transfer, set[int]()

    def once(self: SimulatedCompute, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        fresh = [one for one in transfers if id(one.target) not in done]
        done.update(id(one.target) for one in fresh)
        if fresh:
            real(self, fresh, nominal_bytes=nominal_bytes)
        else:
            self._seconds += 1.0

    monkeypatch.setattr(SimulatedCompute, "transfer", once)
    wrong = _wrong(measure(OneDevice(_machine(tmp_path)), Transfers, tmp_path, **COPIES))
    assert wrong == {("h2d", "gpu0"): 3, ("d2h", "gpu0"): 3, ("both", "gpu0"): 8}


def test_a_lost_gpu_costs_its_own_copies_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = SimulatedCompute.transfer

    def falls_off(self: SimulatedCompute, transfers: Sequence[Transfer], *, nominal_bytes: int) -> None:
        if self.device.id == "gpu5":
            raise RuntimeError("CUDA error: GPU is lost\nCompile with TORCH_USE_CUDA_DSA")
        real(self, transfers, nominal_bytes=nominal_bytes)

    monkeypatch.setattr(SimulatedCompute, "transfer", falls_off)
    values = measure(_machine(tmp_path), Transfers, tmp_path, **RATED)
    for key in (("pcie_bandwidth", "h2d"), ("pcie_bandwidth_together", "both"), ("transfer_mismatches", "d2h")):
        assert list(values[key]) == GPUS
        assert [gpu for gpu, value in values[key].items() if value is None] == ["gpu5"]
    assert [gpu for gpu, value in values["peer_bandwidth", ""].items() if value is None] == ["gpu5"]
    assert values["transfer_mismatches", "peer"] == dict.fromkeys(GPUS)  # no GPU has exchanged data with all peers


def test_one_gpu_alone_has_no_peers_and_says_so(tmp_path: Path) -> None:
    values = measure(OneDevice(_machine(tmp_path)), Transfers, tmp_path, **COPIES)
    assert values["peer_bandwidth", ""] == {"gpu0": None}
    assert ("transfer_mismatches", "peer") not in values


def test_without_a_gpu_there_is_nothing_to_copy_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = _machine(tmp_path)
    monkeypatch.setattr(hardware, "devices", lambda kind: [])
    with pytest.raises(Skip):
        measure(hardware, Transfers, tmp_path)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_a_dead_cell_is_attributed_to_its_gpu_for_all_data(tmp_path: Path, seed: int) -> None:
    """Each sender's words would show it half of the time; with their complement beside them, each always does."""
    create_machine(tmp_path / "node", seed=seed, faults=[{"kind": "stuck_bit", "gpu": 2}])
    values = measure(open_simulated(tmp_path / "node"), Transfers, tmp_path, mib=1, peer_mib=1, repeats=1)
    wrong = {device: count for device, count in values["transfer_mismatches", "peer"].items() if count}
    assert wrong == {"gpu2": 7}
