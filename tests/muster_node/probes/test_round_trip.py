"""Round trips: healthy cores agree, and a core that differs is named."""

import hashlib

from muster_node.probes import round_trip
from muster_node.probes.round_trip import RoundTrip, compare, make_data


def test_this_machine_agrees_with_itself(run_probe, cpus):
    run = run_probe(RoundTrip, mib=0.1, rounds=2)
    assert len(run) == 4 * len(cpus)
    assert all(m.value == 0 and m.samples == 2 for m in run)


def test_data_that_does_not_come_back(run_probe, monkeypatch):
    compress, expand = round_trip.CODECS["bz2"]
    monkeypatch.setitem(round_trip.CODECS, "bz2", (compress, lambda packed: expand(packed)[:-1] + b"?"))
    run = run_probe(RoundTrip, mib=0.05, rounds=1)
    assert all(m.value == 1 and m.note for m in run.all("round_trip_mismatches", codec="bz2"))
    assert all(m.value == 0 for m in run.all("round_trip_mismatches", codec="lzma"))


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
