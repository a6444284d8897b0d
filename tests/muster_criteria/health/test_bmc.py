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
ECC = Entry("7", "2026-11-01T10:00:00Z", "critical", "Uncorrectable ECC in DIMM A1", "DIMM_A1", "SEL")
IML = dataclasses.replace(ECC, text="Power lost", log="IML")


def bad(shown: Shown, known: Known = NOTHING_KNOWN) -> list[tuple[str, str]]:
    return [(each.check, each.device) for each in read(shown, known, POLICY)[0] if each.bad]


def showing(*entries: Entry, trouble: str = "", logs: tuple[str, ...] = ("SEL",)) -> Shown:
    """``logs`` were read whole."""
    return Shown(entries=entries, logs=logs, trouble=trouble)


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


@pytest.mark.parametrize(
    ("trouble", "long", "states"),
    [("", (), [False]), ("", ("SEL",), [True]), ("cut off", ("SEL",), [True]), ("cut off", (), [])],
)
def test_a_log_is_short_again_only_where_all_was_read(trouble: str, long: tuple[str, ...], states: list[bool]) -> None:
    found, _ = read(Shown(trouble=trouble, long=long), NOTHING_KNOWN, POLICY)
    assert [each.bad for each in found if each.check == LOG_LONG] == states


def test_a_supply_that_was_there_and_whose_bay_is_empty_failed() -> None:
    there, gone = Shown((Sensor("psu", "psu 2", "ok"),)), Shown((Sensor("psu", "psu 2", "absent"),))
    known = read(there, Known(), POLICY)[1]
    assert bad(gone, known) == [("psu_failed", "psu 2")]
    assert bad(gone, read(gone, known, POLICY)[1]) == [("psu_failed", "psu 2")]
    assert bad(Shown(trouble="cut off"), known) == [(SILENT, "bmc")]


def test_a_supply_that_is_not_listed_any_more_failed_unless_another_name_took_its_place() -> None:
    """Some BMCs have no bay for a supply that was taken out or is dead."""
    first, second, renamed = (Sensor("psu", f"psu {name}", "ok") for name in ("1", "2", "PSU1"))
    _, known = read(Shown((first, second)), Known(), POLICY)
    assert bad(Shown((second,)), known) == [("psu_failed", "psu 1")]
    _, known = read(Shown((second, renamed)), known, POLICY)
    assert bad(Shown((second, renamed)), known) == []
    assert bad(Shown((renamed,)), known) == [("psu_failed", "psu 2")]


def test_supplies_that_are_renamed_while_a_log_is_in_error_have_not_failed() -> None:
    before, after = ([Sensor("psu", f"psu {name}{each}", "ok") for each in range(6)] for name in ("PSU", "Supply "))
    _, known = read(Shown(tuple(before)), Known(), POLICY)
    _, known = read(Shown(tuple(after), trouble="it answers 500"), known, POLICY)
    assert bad(Shown(tuple(after)), known) == []


def test_a_supply_whose_document_is_missing_takes_no_other_ones_place() -> None:
    """It has the name of its link, until its document is back."""
    first, second, nameless = (Sensor("psu", *each) for each in (("PSU 0", "ok"), ("PSU 1", "ok"), ("1", None)))
    _, known = read(Shown((first, second)), Known(), POLICY)
    for _ in range(2):
        assert bad(Shown((first, nameless)), known) == [("psu_failed", "PSU 1")]
        _, known = read(Shown((first, nameless)), known, POLICY)
    assert bad(Shown((first, second)), known) == []


def test_what_a_log_held_at_first_is_not_new_and_what_follows_is_once() -> None:
    _, known = read(showing(ECC), Known(), POLICY)
    assert events(showing(ECC), Known()) == []
    again = dataclasses.replace(ECC, id="8", created="2026-11-02T10:00:00Z", text="again")
    (new,) = events(showing(again, ECC), known)
    assert (new.check, new.device, new.value, new.count) == ("bmc_log/critical", "DIMM_A1", "again", 1)
    _, known = read(showing(again, ECC), known, POLICY)
    assert events(showing(ECC, again), known) == []


def test_an_entry_of_a_cleared_log_or_of_a_clock_set_back_is_new() -> None:
    _, known = read(showing(ECC), Known(), POLICY)
    cleared = Entry("1", "1970-01-01T00:00:05Z", "critical", "Power lost", log="SEL")
    assert [each.value for each in events(showing(cleared), known)] == ["Power lost"]
    _, empty = read(showing(), known, POLICY)
    assert len(events(showing(ECC), empty)) == 1  # of a BMC without a clock, whose entries are numbered again


@pytest.mark.parametrize("field", ["created", "repeated"])
@pytest.mark.parametrize(("written", "new"), [
    ("2026-11-01T05:00:00-05:00", 0), ("2026-11-01T10:00:00+00:00", 0), ("2026-11-01T10:00:00", 1), ("-", 1),
])  # fmt: skip
def test_an_entry_whose_time_is_told_in_another_zone_is_not_new(field: str, written: str, new: int) -> None:
    """As after the BMC's zone was set."""
    before, now = (dataclasses.replace(ECC, **{field: time}) for time in ("2026-11-01T10:00:00Z", written))
    _, known = read(showing(before), Known(logs=("SEL",)), POLICY)
    assert len(events(showing(now), known)) == new


def test_a_reading_that_broke_off_forgets_no_entry_and_is_no_beginning() -> None:
    _, known = read(showing(ECC), Known(), POLICY)
    found, after = read(showing(trouble="it takes longer than 60 s", logs=()), known, POLICY)
    assert [each.check for each in found if each.bad] == [SILENT]
    assert events(showing(ECC), after) == []
    assert read(showing(ECC, trouble="cut off", logs=()), Known(), POLICY)[1].logs == ()


def test_a_log_that_was_long_once_has_begun_all_the_same() -> None:
    _, known = read(showing(ECC), Known(), POLICY)
    _, known = read(Shown(long=("SEL",)), known, POLICY)
    later = dataclasses.replace(ECC, id="8", text="while it was long")
    assert [each.value for each in events(showing(ECC, later), known)] == [later.text]


def test_a_log_begins_when_it_is_read_whole_whatever_becomes_of_others() -> None:
    """A chassis in error for good costs no entry of the logs that are read; its own log begins when it is back."""
    error = "it answers 500 to /redfish/v1/Chassis/x"
    _, known = read(showing(ECC, trouble=error), Known(), POLICY)
    for number in range(3):
        later = dataclasses.replace(ECC, id=str(10 + number))
        shown = showing(ECC, later, IML, trouble=error)
        assert [each.value for each in events(shown, known)] == [ECC.text]
        _, known = read(shown, known, POLICY)
    back = showing(later, IML, logs=("SEL", "IML"))
    assert events(back, known) == []
    _, known = read(back, known, POLICY)
    assert [each.value for each in events(showing(dataclasses.replace(IML, id="8")), known)] == [IML.text]
    both = [dataclasses.replace(ECC, id="99", log=log) for log in ("SEL", "IML")]
    assert [each.count for each in events(showing(*both), known)] == [1], "two logs that are one are one"


def test_with_trouble_for_good_no_entry_that_is_still_shown_is_forgotten() -> None:
    known, old = Known(logs=("SEL",)), dataclasses.replace(ECC, created="9")
    for turn in range(3):
        fresh = (Entry(f"{turn} {each}", "1", "warning", "fan", log="SEL") for each in range(KEYS_MAX // 2))
        shown = showing(old, *fresh, trouble="it answers 500")
        _, known = read(shown, known, POLICY)
        assert events(shown, known) == []
    assert len(known.keys) == KEYS_MAX


@pytest.mark.parametrize("number", [2_000, KEYS_MAX + 1])
def test_nothing_of_a_long_log_is_new_twice(number: int) -> None:
    shown = showing(*(Entry(str(each), f"{each:08}", "warning", "input lost", "PSU1", "SEL") for each in range(number)))
    _, known = read(shown, Known(logs=("SEL",)), POLICY)
    assert events(shown, known) == []
    newer = dataclasses.replace(ECC, created="99999999")
    assert [each.check for each in events(showing(newer, *shown.entries), known)] == ["bmc_log/critical"]


SHORT = st.text(max_size=4)


@given(st.lists(st.builds(Entry, SHORT, SHORT, st.sampled_from(["warning", "critical"]), st.text(max_size=9), SHORT,
                          st.sampled_from(["SEL", "IML"])), max_size=700))  # fmt: skip
def test_nothing_that_a_log_holds_is_new_twice_and_memory_is_bounded(entries: list[Entry]) -> None:
    shown = showing(*entries)
    _, known = read(shown, Known(logs=("SEL",)), POLICY)
    assert len(known.keys) <= KEYS_MAX
    assert events(shown, known) == []
