"""A BMC's readings joined to a node's result: the worse of two readings, the reason for a missing one, nothing lost."""

from __future__ import annotations

import pytest

from muster_criteria.chassis import PROBE, Chassis, joined, merged, reading
from muster_criteria.measured import Measured, ProbeEnd, StageResult
from tests.muster import fleet


def chassis(*readings: Measured, trouble: str = "") -> Chassis:
    return Chassis(readings, trouble)


def fan(rpm: float | None, name: str = "Fan 1", device: str = "fan0") -> Measured:
    return reading("fan_speed", device, rpm, None, name)


def psu(state: str | None, name: str = "PSU 1", device: str = "psu0") -> Measured:
    return reading("psu_state", device, None, state, name)


def inlet(celsius: float | None, name: str = "Inlet") -> Measured:
    return reading("inlet_temperature", "inlet", celsius, None, name)


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        (fan(8000), fan(0), 0),
        (fan(0), fan(8000), 0),
        (fan(None), fan(7000), 7000),
        (fan(7000), fan(None), 7000),
        (inlet(24), inlet(33), 33),
        (inlet(33, "Inlet"), inlet(24, "Riser"), 33),
        (psu("ok"), psu("warning"), "warning"),
        (psu("critical"), psu("ok"), "critical"),
        (psu("ok"), psu(None), "lost"),
        (psu(None), psu("ok"), "ok"),
        (psu("something new"), psu("ok"), "something new"),
    ],
)
def test_of_two_readings_the_worse_counts(before: Measured, after: Measured, worse: float | str) -> None:
    (merged_reading,) = merged(chassis(before), chassis(after)).readings
    assert (merged_reading.value if merged_reading.text is None else merged_reading.text) == worse


def test_a_supply_that_left_the_list_is_lost_and_the_others_keep_their_names() -> None:
    before = chassis(psu("ok"), psu("ok", "PSU 2", "psu1"), psu("ok", "PSU 3", "psu2"))
    after = chassis(psu("ok"), psu("ok", "PSU 3", "psu1"))
    merged_reading = {each.device: each.text for each in merged(before, after).readings}
    assert merged_reading == {"psu0": "ok", "psu1": "lost", "psu2": "ok"}


@pytest.mark.parametrize(
    ("before", "now", "worse"),
    [
        (fan(8000), fan(0), 0),
        (psu("ok"), psu("critical"), "critical"),
        (psu("ok"), psu(None), "ok"),
        (psu("ok"), fan(8000), "ok"),
    ],
)
def test_while_the_load_goes_on_what_is_worse_counts_and_what_is_left_out_is_not_lost(
    before: Measured, now: Measured, worse: float | str
) -> None:
    merged_reading = merged(chassis(before), chassis(now), meanwhile=True).readings[0]
    assert (merged_reading.value if merged_reading.text is None else merged_reading.text) == worse


def test_of_two_supplies_of_one_name_none_is_blamed_for_the_other_that_was_left_out() -> None:
    before = chassis(psu("ok", "PSU"), psu("critical", "PSU", "psu1"))
    merged_reading = merged(before, chassis(psu("critical", "PSU")), meanwhile=True).readings
    assert [each.text for each in merged_reading] == ["ok", "critical"]


def test_a_state_that_is_gone_has_no_reading_where_the_last_has_trouble_and_else_is_lost() -> None:
    before = chassis(psu("ok"), psu("ok", "PSU 2", "psu1"))
    partial = merged(before, chassis(psu("ok"), trouble="500 to a chassis"))
    assert [each.text for each in partial.readings] == ["ok", None]
    assert [each.text for each in merged(before, chassis(psu("ok"))).readings] == ["ok", "lost"]
    assert merged(before, chassis(psu("ok"), trouble="500 to a chassis"), meanwhile=True).readings[1].text == "ok"
    assert [each.text for each in merged(before, chassis(trouble="it went away")).readings] == [None, None]


@pytest.mark.parametrize("state", ["warning", "critical", "lost"])
def test_a_later_reading_with_trouble_hides_nothing_that_was_seen(state: str) -> None:
    assert merged(chassis(psu(state)), chassis(fan(8000), trouble="500")).readings[0].text == state


@pytest.mark.parametrize("meanwhile", [True, False])
def test_parts_that_an_earlier_reading_lacks_are_no_others(meanwhile: bool) -> None:
    """The chassis of two fans was in error at first: its fans have the numbers now that others had then."""
    before = chassis(fan(8000, "C/Fan 1", "fan0"), trouble="500 to a chassis")
    stopped = (reading("fan_state", "fan1", None, "critical", "A/Fan 2"), fan(0, "A/Fan 2", "fan1"))
    after = chassis(fan(9000, "A/Fan 1", "fan0"), *stopped, fan(7000, "C/Fan 1", "fan2"))
    found = {(each.metric, each.note): each for each in merged(before, after, meanwhile=meanwhile).readings}
    assert {key: each.value for key, each in found.items() if key[0] == "fan_speed"} == {
        ("fan_speed", "C/Fan 1"): 7000, ("fan_speed", "A/Fan 1"): 9000, ("fan_speed", "A/Fan 2"): 0,
    }  # fmt: skip
    assert len({each.device for each in found.values()}) == 3
    assert found["fan_state", "A/Fan 2"].device == found["fan_speed", "A/Fan 2"].device


def test_of_a_fan_that_reports_in_another_unit_both_readings_are_its_own() -> None:
    state = reading("fan_state", "fan0", None, "ok", "Fan 1")
    share = reading("fan_duty", "fan0", 40, None, "Fan 1")
    assert {each.device for each in merged(chassis(state, fan(8000)), chassis(state, share)).readings} == {"fan0"}


def test_parts_of_one_name_that_come_later_are_counted() -> None:
    before, after = chassis(psu("ok", "PSU")), chassis(psu("ok", "PSU"), psu("critical", "PSU", "psu1"))
    states = [each.text for each in merged(before, after, meanwhile=True).readings]
    assert states == ["ok", "critical"]


def test_what_was_in_the_way_is_reported_once() -> None:
    both = merged(chassis(trouble="A"), chassis(trouble="B"))
    assert merged(merged(both, chassis(trouble="A")), both).trouble == "A; B"


def test_each_reading_counts_once() -> None:
    first = merged(chassis(psu("ok"), fan(8000)), chassis(psu("ok"), fan(7000)), meanwhile=True)
    assert [each.samples for each in merged(first, chassis(psu("ok"), fan(9000))).readings] == [3, 3]


def test_a_bmc_that_answered_once_counts_as_read_and_its_silence_is_kept() -> None:
    merged_reading = merged(chassis(fan(8000)), chassis(trouble="it went away"))
    assert (merged_reading.readings, merged_reading.trouble) == ((fan(8000),), "it went away")
    assert merged(None, chassis(fan(8000))) == chassis(fan(8000))
    assert merged(chassis(trouble="no"), chassis(trouble="no")).trouble == "no"


def test_what_it_reported_travels_as_text() -> None:
    merged_reading = chassis(fan(8000), psu(None), trouble="later silent")
    assert Chassis.from_json(merged_reading.to_json()) == merged_reading
    for broken in ("", "{}", '{"readings": [{"probe": 1}], "trouble": ""}', '{"readings": 3, "trouble": ""}'):
        assert "cannot be read" in Chassis.from_json(broken).trouble


def ends(result: StageResult) -> dict[str, tuple[str, str]]:
    return {end.probe: (end.status, end.reason) for end in result.probes}


def node_result(status: str = "") -> StageResult:
    sent, _ = fleet.result("thermal")
    if not status:
        return sent
    own = ProbeEnd(probe=PROBE, status=status, reason="ipmitool is not installed", started_at=1.0, duration_s=1.0)
    return sent.model_copy(update={"probes": [*sent.probes, own]})


def test_readings_stand_among_the_nodes_own_measurements_and_say_where_they_come_from() -> None:
    sent = node_result()
    both = joined(sent, chassis(fan(8000)))
    assert [each.device for each in both.measurements] == ["gpu0", "fan0"]
    assert both.measurements[-1].labels == {"source": "redfish"}
    assert joined(sent, None) is sent


def test_how_the_chassis_was_read_is_how_its_reader_ended() -> None:
    merged_reading, silent = chassis(fan(8000)), chassis(trouble="no answer")
    for status in ("", "skipped"):
        assert ends(joined(node_result(status), merged_reading))[PROBE] == ("completed", "")
        assert ends(joined(node_result(status), silent))[PROBE] == ("skipped", "no answer")
    for status in ("completed", "crashed", "timed_out"):
        assert ends(joined(node_result(status), silent))[PROBE][0] == status
    assert joined(node_result(), silent).notes == ["no answer"]
