"""Round trips: healthy cores agree, and a core that differs is named."""

import hashlib

from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.seam import Device, Worker
from muster_node.probes import round_trip
from muster_node.probes.round_trip import RoundTrip, compare, make_data
from muster_simulator import create_machine, open_simulated


def test_this_machine_agrees_with_itself(run_probe, cpus):
    run = run_probe(RoundTrip, mib=0.1, rounds=2)
    assert run.one("round_trip_cores", "node").value == len(cpus)
    rounds = run.all("round_trip_mismatches")
    assert len(rounds) == 4 * len(cpus)
    assert all(m.value == 0 and m.samples == 2 for m in rounds)
    assert not run.all("round_trip_rerun")


def test_data_that_does_not_come_back(run_probe, monkeypatch):
    compress, expand = round_trip.CODECS["bz2"]
    monkeypatch.setitem(round_trip.CODECS, "bz2", (compress, lambda packed: expand(packed)[:-1] + b"?"))
    run = run_probe(RoundTrip, mib=0.05, rounds=1)
    assert all(m.value == 1 and m.note for m in run.all("round_trip_mismatches", codec="bz2"))
    assert all(m.value == 0 for m in run.all("round_trip_mismatches", codec="lzma"))


class ManyCores(HostHardware):
    """This machine with five CPUs, one after another, of which ``bad`` packs its data otherwise; and perhaps a GPU."""

    def __init__(self, bad, gpus=()):
        super().__init__()
        self._bad, self._gpus = bad, list(gpus)

    def devices(self, kind):
        return {"cpu": [Device(f"cpu{n}", "cpu", n) for n in range(5)], "gpu": self._gpus}.get(kind, [])

    def at_once(self, devices, work, *rest):
        found = []
        for index, device in enumerate(devices):
            result = work(Worker(device, index, len(devices), lambda: None))
            if device.id == self._bad:
                result["zlib"] = (True, "another digest")
            found.append(result)
        return found


def test_a_core_that_differs_does_the_round_again_and_so_do_two_others(run_probe):
    run = run_probe(RoundTrip, ManyCores("cpu3"), mib=0.05, rounds=2)
    assert [(m.device, m.labels["codec"], m.value) for m in run.all("round_trip_mismatches") if m.value] == [
        ("cpu3", "zlib", 2)
    ]
    again = {m.labels["on"]: (m.device, m.labels["codec"], m.value, m.samples) for m in run.all("round_trip_rerun")}
    assert again == {
        "cpu3": ("cpu3", "zlib", 3, 3), "cpu4": ("cpu3", "zlib", 0, 1), "cpu0": ("cpu3", "zlib", 0, 1),
    }  # fmt: skip


def test_of_a_node_with_gpus_only_wrong_cores_are_named(run_probe):
    run = run_probe(RoundTrip, ManyCores("cpu3", [Device("gpu0", "gpu", 0)]), mib=0.05, rounds=1)
    assert [(m.device, m.labels["codec"]) for m in run.all("round_trip_mismatches")] == [("cpu3", "zlib")]
    assert run.one("round_trip_cores", "node").value == 5


def test_a_machine_without_cpus_of_its_own_says_so(run_probe, tmp_path):
    create_machine(tmp_path / "node", seed=4)
    (only,) = run_probe(RoundTrip, open_simulated(tmp_path / "node"), seconds=60.0)
    assert (only.metric, only.value) == ("round_trip_cores", None)


def test_damage_that_the_codec_itself_notices(run_probe, monkeypatch):
    for codec in ("zlib", "bz2", "lzma"):
        compress, expand = round_trip.CODECS[codec]
        monkeypatch.setitem(round_trip.CODECS, codec, (compress, lambda packed, expand=expand: expand(packed[:-20])))
    run = run_probe(RoundTrip, mib=0.05, rounds=1)
    for codec in ("zlib", "bz2", "lzma"):
        assert all(m.value == 1 for m in run.all("round_trip_mismatches", codec=codec))


def test_the_core_that_differs_from_the_others_is_wrong():
    assert set(compare([(True, "a"), (True, "a"), (True, "b")])) == {2}
    assert compare([(True, "a")] * 3) == {}


def test_without_a_majority_all_are_suspect():
    assert set(compare([(True, "a"), (True, "b")])) == {0, 1}


def test_data_is_the_same_for_a_seed_and_half_of_it_compresses():
    data = make_data(3, 100_000)
    assert len(data) == 100_000
    assert hashlib.sha256(data).digest() == hashlib.sha256(make_data(3, 100_000)).digest()
    assert data != make_data(4, 100_000)
    packed = len(round_trip.CODECS["zlib"][0](data))
    assert 50_000 < packed < 90_000
