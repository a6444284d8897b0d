"""What a BMC shows, compared with what it showed before: unknown is neither good nor bad, an old entry is not new."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.health.bmc import KEYS_MAX, LOG_LONG, NOTHING_KNOWN, SILENT, Entry, Known, Sensor, Shown, read
from muster_criteria.health.policy import Bmcs
from muster_criteria.health.readings import Reading

POLICY = Bmcs()
ECC = Entry("7", "2026-11-01T10:00:00Z", "critical", "Uncorrectable ECC in DIMM A1", "DIMM_A1")


def bad(shown: Shown, known: Known = NOTHING_KNOWN) -> list[tuple[str, str]]:
    return [(each.check, each.device) for each in read(shown, known, POLICY)[0] if each.bad]


def events(shown: Shown, known: Known) -> list[Reading]:
    return [each for each in read(shown, known, POLICY)[0] if each.bad is None]


@pytest.mark.parametrize(
    ("sensor", "check"),
    [
        (Sensor("fan", "fan 1", "ok", 8000, "RPM"), None),
        (Sensor("fan", "fan 1", "critical", 8000, "RPM"), "fan_failed"),
        (Sensor("fan", "fan 1", "ok", 0, "RPM"), "fan_failed"),
        (Sensor("fan", "fan 1", "ok", 0, "%"), None),
        (Sensor("psu", "psu 1", "warning"), "psu_failed"),
        (Sensor("psu", "psu 1", "absent"), None),
        (Sensor("leak", "leak 1", "critical"), "leak"),
        (Sensor("inlet", "inlet", None, 32.0, "°C"), None),
        (Sensor("inlet", "inlet", None, 32.5, "°C"), "inlet_hot"),
    ],
)
def test_a_sensor_is_a_state(sensor: Sensor, check: str | None) -> None:
    assert bad(Shown((sensor,))) == ([(check, sensor.device)] if check else [])


@pytest.mark.parametrize("kind", ["fan", "psu", "inlet", "leak"])
def test_a_sensor_without_a_reading_is_neither_good_nor_bad(kind: str) -> None:
    (only,) = [each for each in read(Shown((Sensor(kind, "x"),)), Known(), POLICY)[0] if each.check != LOG_LONG]  # type: ignore[arg-type]
    assert only.check == SILENT


def test_a_supply_that_was_there_and_whose_bay_is_empty_failed() -> None:
    there, gone = Shown((Sensor("psu", "psu 2", "ok"),)), Shown((Sensor("psu", "psu 2", "absent"),))
    known = read(there, Known(), POLICY)[1]
    assert bad(gone, known) == [("psu_failed", "psu 2")]
    assert bad(gone, read(gone, known, POLICY)[1]) == [("psu_failed", "psu 2")]
    assert bad(Shown(), known) == [], "a BMC leaves out sensors now and then"


def test_what_a_log_held_at_first_is_not_new_and_what_follows_is_once() -> None:
    _, known = read(Shown(entries=(ECC,)), Known(), POLICY)
    assert events(Shown(entries=(ECC,)), Known()) == []
    again = dataclasses.replace(ECC, id="8", created="2026-11-02T10:00:00Z", text="again")
    (new,) = events(Shown(entries=(again, ECC)), known)
    assert (new.check, new.device, new.value, new.count) == ("bmc_log/critical", "DIMM_A1", "again", 1)
    _, known = read(Shown(entries=(again, ECC)), known, POLICY)
    assert events(Shown(entries=(ECC, again)), known) == []


def test_an_entry_of_a_cleared_log_or_of_a_clock_set_back_is_new() -> None:
    _, known = read(Shown(entries=(ECC,)), Known(), POLICY)
    cleared = Entry("1", "1970-01-01T00:00:05Z", "critical", "Power lost")
    assert [each.value for each in events(Shown(entries=(cleared,)), known)] == ["Power lost"]


def test_a_reading_that_broke_off_forgets_no_entry_and_is_no_beginning() -> None:
    _, known = read(Shown(entries=(ECC,)), Known(), POLICY)
    found, after = read(Shown(trouble="it takes longer than 60 s"), known, POLICY)
    assert [each.check for each in found if each.bad] == [SILENT]
    assert events(Shown(entries=(ECC,)), after) == []
    assert read(Shown(entries=(ECC,), trouble="cut off"), Known(), POLICY)[1].keys is None


@pytest.mark.parametrize("number", [2_000, KEYS_MAX + 1])
def test_nothing_of_a_long_log_is_new_twice(number: int) -> None:
    shown = Shown(
        entries=tuple(Entry(str(each), f"{each:08}", "warning", "input lost", "PSU1") for each in range(number))
    )
    _, known = read(shown, Known(()), POLICY)
    assert events(shown, known) == []
    newer = dataclasses.replace(ECC, created="99999999")
    assert [each.check for each in events(Shown(entries=(newer, *shown.entries)), known)] == ["bmc_log/critical"]


@given(st.lists(st.builds(Entry, st.text(max_size=4), st.text(max_size=4), st.sampled_from(["warning", "critical"]),
                          st.text(max_size=9), st.text(max_size=3)), max_size=700))  # fmt: skip
def test_nothing_that_a_log_holds_is_new_twice_and_memory_is_bounded(entries: list[Entry]) -> None:
    shown = Shown(entries=tuple(entries))
    _, known = read(shown, Known(()), POLICY)
    assert known.keys is not None
    assert len(known.keys) <= KEYS_MAX
    assert events(shown, known) == []
