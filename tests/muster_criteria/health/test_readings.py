"""What a node's answer to the sweep shows, compared with its last one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_criteria.health.presence import forgotten
from muster_criteria.health.readings import REMEMBERED_MAX, BadAnswer, Before, Reading, Swept, parse, read
from muster_criteria.sku_files.skus import load_sku

SKU = load_sku("h100-sxm-8")
NOW = 1.8e9
SECONDS = 600.0


def fact(name: str, device: str = "node", value: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "device": device, **({} if value is None else {"value": value}), **more}


def swept(*facts: dict[str, Any], **more: Any) -> Swept:
    plain = {"schema": 1, "boot_id": "b1", "uptime_s": 9000, "wall": NOW, "facts": facts, "kernel": {}} | more
    return parse(json.dumps(plain).encode())


def shown(answer: Swept, before: Before | None = None, gpus: int = 0) -> tuple[dict[str, Reading], dict[str, float]]:
    found, counters = read(
        answer, before or Before("b1", 0.0, {}, SECONDS), NOW, policies=SKU.event_policies, gpus=gpus
    )
    return {f"{each.check} {each.device}": each for each in found if each.bad is not False}, counters


def counters_of(*facts: dict[str, Any]) -> Before:
    return Before("b1", 5.0, shown(swept(*facts))[1], SECONDS)


@pytest.mark.parametrize(
    ("name", "device", "good", "gone"),
    [
        ("fabric_state", "gpu3", "completed", "in progress"),
        ("fabric_state", "gpu3", "completed", "completed with NVML error 15"),
        ("imex", "node", "READY", "UNAVAILABLE"), ("imex", "node", "service active", "service failed"),
    ],
)  # fmt: skip
def test_who_has_left_the_nvlink_domain_is_in_trouble_and_who_was_never_in_one_is_not(
    name: str, device: str, good: str, gone: str
) -> None:
    never, left = swept(fact(name, device, text=gone)), f"{name}_lost {device}"
    assert shown(never)[0] == {}
    before = counters_of(fact(name, device, text=good))
    assert shown(swept(fact(name, device, text=good)), before)[0] == {}
    found, counters = shown(never, before)
    assert found[left].bad
    assert left in shown(never, dataclasses.replace(before, counters=counters))[0], "it is remembered that it was in it"


def test_errors_under_a_job_are_a_rate_of_the_time_under_it() -> None:
    """Two minutes of a job between two sweeps: 100 errors of ten minutes at rest would be no rate to speak of."""
    before = counters_of(fact("ecc_corrected", "gpu3", 0))
    now = swept(fact("ecc_corrected", "gpu3", 100))
    rates = {
        under_job: shown(now, dataclasses.replace(before, under_job=under_job))[0]["ecc_corrected gpu3"].rate
        for under_job in (0.0, 1.0, 120.0, SECONDS)
    }
    assert rates == {0.0: 600.0, 1.0: 6000.0, 120.0: 3000.0, SECONDS: 600.0}


def test_a_healthy_answer_shows_nothing() -> None:
    healthy = (
        fact("gpu_lost", "gpu0", 0), fact("recovery_action", "gpu0", text="none"), fact("disk_free", "disk:/", 50.0),
        fact("clock_synchronised", value=1), fact("nvme_state", "disk:nvme0", text="live"), fact("gpus", value=8),
        fact("disk_state", "disk:sda", text="running"), fact("raid_missing", "disk:md0", 0),
        fact("nvme_used", "disk:nvme0", 99), fact("nvme_warning", "disk:nvme0", 0),
        fact("nvme_spare", "disk:nvme0", 100), fact("persistence_mode", "gpu0", 1),
        fact("service", "slurmd", text="active"), fact("net_carrier", "nic:eth0", 1), fact("net_carrier", "nic:eth1"),
    )  # fmt: skip
    assert shown(swept(*healthy), gpus=8)[0] == {}


@pytest.mark.parametrize(
    ("facts", "more", "check"),
    [
        ([fact("gpu_lost", "gpu3", 1)], {}, "gpu_lost gpu3"),
        ([fact("fabric_healthy", "gpu3", 0)], {}, "fabric_unhealthy gpu3"),
        ([fact("gpus", value=7)], {}, "gpu_missing node"),
        ([fact("recovery_action", "gpu3", text="reset of the GPU")], {}, "recovery_action gpu3"),
        ([fact("disk_free", "disk:/", 0.5)], {}, "disk_full disk:/"),
        ([fact("disk_free", "disk:/", 5.0, labels={"share": "0.01"})], {}, "disk_full disk:/"),
        ([fact("clock_synchronised", value=0)], {}, "clock_unsynchronised node"),
        ([fact("nvme_state", "disk:nvme0", text="dead")], {}, "nvme_state disk:nvme0"),
        ([fact("disk_state", "disk:sda", text="offline")], {}, "disk_state disk:sda"),
        ([fact("raid_missing", "disk:md0", 1)], {}, "raid_degraded disk:md0"),
        ([fact("nvme_warning", "disk:nvme0", 1)], {}, "nvme_warning disk:nvme0"),
        ([fact("nvme_warning", "disk:nvme0", 2)], {}, "nvme_hot disk:nvme0"),
        ([fact("nvme_warning", "disk:nvme0", 8)], {}, "nvme_warning disk:nvme0"),
        ([fact("nvme_used", "disk:nvme0", 100)], {}, "nvme_worn disk:nvme0"),
        ([], {"wall": NOW + 120}, "clock_skew node"),
        ([], {"hung": ["counters"]}, "hung/counters node"),
        ([], {"failed": {"states": "NVML"}}, "unread/states node"),
        ([], {"kernel": None}, "unread/kernel_log node"),
        ([], {"boot_id": "b2", "uptime_s": 60}, "rebooted node"),
    ],
)
def test_each_state_and_event(facts: list[dict[str, Any]], more: dict[str, Any], check: str) -> None:
    assert list(shown(swept(*facts, **more), gpus=8)[0]) == [check]


def test_what_never_was_up_is_not_down() -> None:
    down = fact("ib_port_active", "nic:mlx5_0", 0), fact("ib_port_active", "nic:mlx5_1", 1)
    assert shown(swept(*down))[0] == {}
    up = counters_of(fact("ib_port_active", "nic:mlx5_0", 1), fact("ib_port_active", "nic:mlx5_1", 1))
    assert list(shown(swept(*down), up)[0]) == ["port_down nic:mlx5_0"]
    stopped = fact("service", "nvidia-fabricmanager", text="failed")
    assert shown(swept(stopped))[0] == {}
    assert shown(swept(fact("nvme_state", "disk:nvme0", note="it cannot be read")))[0] == {}
    ran = counters_of(fact("service", "nvidia-fabricmanager", text="active"))
    assert list(shown(swept(stopped), ran)[0]) == ["service/nvidia-fabricmanager node"]


def whole(ports: int = 8, disks: int = 2, *, fabric: bool = True, **more: Any) -> Swept:
    """What a node has: its ports, its NVMe disks and the fabric manager, by the sweep after a boot."""
    facts = [fact("ib_port_active", f"nic:mlx5_{each}", 1) for each in range(ports)]
    facts += [fact("nvme_state", f"disk:nvme{each}", text="live") for each in range(disks)]
    facts += [fact("service", "nvidia-fabricmanager", text="active")] * fabric
    return swept(*facts, **{"boot_id": "b2", **more})


def after_boot(answer: Swept, before: Before) -> dict[str, str]:
    return {check: each.value for check, each in shown(answer, before)[0].items() if each.check != "rebooted"}


def test_what_was_there_once_and_is_not_any_more_is_missed() -> None:
    before = Before("b1", 5.0, shown(whole())[1], SECONDS)
    missing = dict.fromkeys(
        ("port_down nic:mlx5_7", "nvme_state disk:nvme1", "service/nvidia-fabricmanager node"), "not there"
    )
    fewer = whole(7, 1, fabric=False)
    assert after_boot(whole(), before) == {}
    assert after_boot(fewer, before) == missing
    again = dataclasses.replace(before, counters=shown(fewer, before)[1])
    assert after_boot(fewer, again) == missing, "it is remembered"
    assert after_boot(whole(), again) == {}


@pytest.mark.parametrize("name", ["ports", "disks", "services"])
def test_what_a_reading_that_failed_or_hung_did_not_see_is_not_missed(name: str) -> None:
    before = Before("b1", 5.0, shown(whole())[1], SECONDS)
    all_missing = after_boot(whole(7, 1, fabric=False), before)
    for how in ({"failed": {name: "it broke"}}, {"hung": [name]}):
        seen = after_boot(whole(7, 1, fabric=False, **how), before)
        assert len([check for check in all_missing if check in seen]) == 2


def states_of(found: Sequence[Reading], check: str, device: str) -> list[bool | None]:
    return [each.bad for each in found if (each.check, each.device) == (check, device)]


@pytest.mark.parametrize("kind", ["net_carrier", "ib_port_active"])
def test_a_port_of_another_name_takes_the_place_of_the_one_that_is_gone(kind: str) -> None:
    before = counters_of(fact(kind, "nic:a0", 1), fact(kind, "nic:a1", 1), fact(kind, "nic:spare", 0))
    renamed = swept(fact(kind, "nic:a0", 1), fact(kind, "nic:b1", 0), fact(kind, "nic:spare", 0))
    for _ in range(2):
        found, counters = read(renamed, before, NOW, policies=())
        assert states_of(found, "port_down", "nic:a1") == [False], "so that its state ends"
        assert states_of(found, "port_down", "nic:b1") == [True], "it has to have a link, as the other one had"
        assert states_of(found, "port_down", "nic:spare") == []
        before = dataclasses.replace(before, counters=counters)
    gone = swept(fact(kind, "nic:a0", 1), fact(kind, "nic:spare", 1))
    was_up = dataclasses.replace(
        before, counters=shown(swept(fact(kind, "nic:a0", 1), fact(kind, "nic:b1", 1)), before)[1]
    )
    assert "port_down nic:b1" in shown(gone, was_up)[0], "one that was there before replaces none"


def test_a_volume_that_people_detach_is_not_missed() -> None:
    volume = fact("nvme_state", "disk:nvme3", text="live", labels={"attached": "volume"})
    before = counters_of(fact("nvme_state", "disk:nvme0", text="live"), volume)
    assert shown(swept(fact("nvme_state", "disk:nvme0", text="live")), before)[0] == {}


def test_imex_that_says_nothing_any_more_is_missed_unless_the_hardware_was_not_opened() -> None:
    before = counters_of(fact("imex", "node", text="READY"))
    assert "imex_lost node" in shown(swept(fact("imex", "node")), before)[0]
    assert "imex_lost node" not in shown(swept(failed={"hardware": "no driver"}), before)[0]


def test_a_node_that_enters_service_has_to_have_what_it_has_then() -> None:
    counters = shown(whole(failed={"smart": "no tool"}))[1] | {"ecc_corrected|gpu0": 7.0}
    assert forgotten(counters) == {"up|unread|smart": 1.0, "ecc_corrected|gpu0": 7.0}


@pytest.mark.parametrize(("gpus", "before", "check"), [
    (8, False, "unread/kernel_log node"), (0, False, "no_kernel_log node"), (0, True, "unread/kernel_log node"),
])  # fmt: skip
def test_a_log_that_a_node_without_gpus_never_had_is_no_blindness(gpus: int, before: bool, check: str) -> None:
    known = Before("b1", 0.0, shown(swept())[1] if before else {}, SECONDS)
    assert list(shown(swept(kernel=None), known, gpus)[0]) == [check]


def test_persistence_mode_is_missed_where_it_was_on() -> None:
    off, on = fact("persistence_mode", "gpu3", 0), fact("persistence_mode", "gpu3", 1)
    assert shown(swept(off))[0] == {}
    assert list(shown(swept(off), counters_of(on))[0]) == ["persistence_lost gpu3"]


def test_a_service_that_runs_whenever_it_is_looked_at_and_fails_in_between_is_seen() -> None:
    name = "nvidia-fabricmanager"
    running = fact("service", name, text="active")
    before = counters_of(running, fact("service_restarts", name, 2))
    found, _ = shown(swept(running, fact("service_restarts", name, 6)), before)
    assert {check: each.count for check, each in found.items()} == {f"service_restarts {name}": 4}


def test_all_ports_at_once_are_not_the_nodes() -> None:
    names = [f"nic:mlx5_{each}" for each in range(8)]
    up = counters_of(*(fact("ib_port_active", name, 1) for name in names))
    assert list(shown(swept(*(fact("ib_port_active", name, 0) for name in names)), up)[0]) == ["all_ports_down node"]


def corrected(value: float) -> dict[str, Any]:
    return fact("ecc_corrected", "gpu0", value, labels={"scope": "volatile"})


@pytest.mark.parametrize(
    ("value", "more", "count", "rate"),
    [
        (1100, {}, 1000, 6000.0),
        (5, {}, 5, 30.0),
        (1100, {"boot_id": "b2", "uptime_s": 300}, 1100, 13200.0),
        (1100, {"boot_id": "b2"}, 1100, 6600.0),
        (1100, {"boot_id": "b2", "uptime_s": None}, 1100, 6600.0),
        (1100, {"kernel": {"loaded": 8500.0}, "uptime_s": None}, 1000, 6000.0),
        (1100, {"kernel": {"loaded": 8500.0}}, 1100, 6600.0),
        (1100, {"kernel": {"loaded": 8000.0}}, 1000, 6000.0),
    ],
)
def test_counters_count_by_rate_and_from_zero_after_a_reset(
    value: float, more: dict[str, Any], count: int, rate: float
) -> None:
    """The node is up for 9,000 s and was swept 600 s ago: a driver that was loaded before 8,400 s reset nothing."""
    found, _ = shown(swept(corrected(value), **more), counters_of(corrected(100)))
    seen = found["ecc_corrected gpu0"]
    assert (seen.count, seen.rate) == (count, pytest.approx(rate))


def test_a_counter_that_leaps_was_read_wrongly_and_is_compared_with_what_it_was() -> None:
    before = counters_of(corrected(7))
    found, counters = shown(swept(corrected(2**32 - 2)), before)
    assert found == {}
    after = dataclasses.replace(before, counters=counters)
    assert shown(swept(corrected(7)), after)[0] == {}
    assert shown(swept(corrected(9)), after)[0]["ecc_corrected gpu0"].count == 2


def test_a_throttled_gpu_whose_driver_was_loaded_is_throttled_for_less_and_not_for_a_negative_time() -> None:
    def throttled(seconds: float) -> dict[str, Any]:
        return fact("throttle_time", "gpu0", seconds, labels={"reason": "hw_thermal"})

    found, _ = shown(swept(throttled(300)), counters_of(throttled(5000)))
    assert found["throttled/hw_thermal gpu0"].bad


def test_a_reading_that_failed_is_good_again_when_it_does_not() -> None:
    failed, counters = shown(swept(failed={"smart": "nvme-cli is not installed"}))
    assert failed["unread/smart node"].bad
    before = Before("b1", 5.0, counters, SECONDS)

    def states(answer: Swept) -> list[bool | None]:
        found = read(answer, before, NOW, policies=SKU.event_policies)[0]
        return [each.bad for each in found if each.check == "unread/smart"]

    assert states(swept()) == [False]
    assert states(swept(hung=["smart"])) == []


def test_what_is_remembered_of_a_node_is_bounded_and_what_it_invents_displaces_nothing() -> None:
    known = counters_of(fact("ib_port_active", "nic:mlx5_0", 1))
    for sweep in range(5):
        lies = [fact("ib_port_active", f"nic:{sweep}-{each}", 1) for each in range(4900)]
        known = dataclasses.replace(known, counters=shown(swept(*lies), known)[1])
    assert len(known.counters) == REMEMBERED_MAX
    assert "up|ib_port_active|nic:mlx5_0" in known.counters


def test_a_power_cap_is_the_loads_and_a_thermal_one_the_machines() -> None:
    def throttled(seconds: float) -> list[dict[str, Any]]:
        reasons = ("hw_thermal", "sw_thermal", "sw_power_cap")
        return [fact("throttle_time", "gpu0", seconds, labels={"reason": each}) for each in reasons]

    assert list(shown(swept(*throttled(300)), counters_of(*throttled(0)))[0]) == [
        "throttled/hw_thermal gpu0", "throttled/sw_thermal gpu0",
    ]  # fmt: skip


def test_the_kernels_messages_are_classed_by_the_skus_policies() -> None:
    log = {
        "first": 10.0, "last": 900.0,
        "events": [{"kind": "xid", "code": 79, "pci": "0000:4e:00", "device": "gpu3", "count": 2},
                   {"kind": "xid", "code": 48, "pci": "0000:4f:00"}, {"kind": "cper", "code": 19, "device": "gpu1"},
                   {"text": "Memory failure: 0x1234: unhandlable page", "priority": 3},
                   {"text": "docker0: something odd failed", "priority": 6}],
    }  # fmt: skip
    found, _ = shown(swept(kernel=log), Before("b1", 5.0, {}, SECONDS))
    assert found["xid/79 gpu3"].count == 2
    assert "xid/48 pci:0000:4f:00" in found
    assert found["kernel/machine-check node"].severity == "ISOLATE"
    assert "kernel_log_gap node" in found
    assert found["cper/19 gpu1"].severity == "ISOLATE", "no policy of the SKU judges it"
    assert len(found) == 5


def test_a_counter_that_leapt_counts_on_from_where_it_goes_on() -> None:
    values = [1000, 3e9, 3e9, 3e9 + 50, 3e9 + 80, 1100]
    before, risen = counters_of(fact("ecc_corrected", "gpu3", values[0])), []
    for value in values[1:]:
        found, counters = shown(swept(fact("ecc_corrected", "gpu3", value)), before)
        risen.append(found["ecc_corrected gpu3"].count if "ecc_corrected gpu3" in found else 0)
        before = dataclasses.replace(before, counters=counters)
    assert risen == [0, 0, 50, 30, 1100]
    once = counters_of(fact("ecc_corrected", "gpu3", 1000))
    leapt = dataclasses.replace(once, counters=shown(swept(fact("ecc_corrected", "gpu3", 3e9)), once)[1])
    assert shown(swept(fact("ecc_corrected", "gpu3", 1010)), leapt)[0]["ecc_corrected gpu3"].count == 10


def test_what_was_lost_of_the_log_since_the_last_test_is_noted() -> None:
    lost = swept(kernel={"first": 6000.0})
    assert "kernel_log_gap node" in shown(lost, Before("b1", 0.0, {}, None, untested_for=5000.0))[0]
    assert "kernel_log_gap node" not in shown(lost, Before("b1", 5.0, {}, None, untested_for=2000.0))[0]


def test_messages_that_an_answer_does_not_hold_are_noted() -> None:
    assert "kernel_log_gap node" in shown(swept(kernel={"left_out": 3}))[0]
    assert "kernel_log_gap node" not in shown(swept(kernel={"left_out": 0}))[0]


@pytest.mark.parametrize("flag", ["channel_repair_pending", "tpc_repair_pending", "unrepairable_memory"])
def test_a_repair_that_waits_or_is_impossible_is_a_state(flag: str) -> None:
    assert shown(swept(fact(flag, "gpu3", 1.0)))[0][f"{flag} gpu3"].bad
    assert not shown(swept(fact(flag, "gpu3", 0.0)))[0]


def test_what_was_before_the_node_served_is_a_tests_to_judge_and_boots_are_noisy() -> None:
    xid = {"kind": "xid", "code": 79, "last": 4000.0}
    noise = {"text": "ACPI Error: no handler", "priority": 3, "last": 20.0}
    answer = swept(kernel={"events": [xid, noise, {**noise, "last": 8000.0}]})
    assert "xid/79 node" in shown(answer, Before("b1", 5.0, {}, SECONDS, untested_for=6000.0))[0]
    late = shown(answer, Before("b1", 5.0, {}, SECONDS, untested_for=4000.0))[0]
    assert {check: each.count for check, each in late.items()} == {"kernel/unknown node": 1}


def test_a_kernel_log_whose_clock_is_minutes_behind_the_uptime_loses_no_message_after_the_test() -> None:
    half_a_year, behind = 180 * 86400.0, 467.0
    log_s = half_a_year - behind
    before = Before("b1", 5.0, {}, SECONDS, untested_for=600.0)
    for ago, seen in ((300.0, True), (900.0, False)):
        events = {"events": [{"kind": "xid", "code": 79, "last": log_s - ago}]}
        answer = swept(kernel=events, uptime_s=half_a_year, log_s=log_s)
        assert ("xid/79 node" in shown(answer, before)[0]) is seen


@pytest.mark.parametrize("bad", [b"", b"[]", b"{}", b"nul", b'{"schema": "x"}', b"[" * 100_000, b"\xff\xfe"])
def test_an_answer_that_is_none_is_one_clause(bad: bytes) -> None:
    with pytest.raises(BadAnswer) as refused:
        parse(bad)
    assert len(str(refused.value)) <= 200


KEYS = st.sampled_from(["name", "device", "value", "text", "labels", "count"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(KEYS, each, max_size=4),
    max_leaves=12,
)


@given(ANYTHING)
def test_no_answer_raises_anything_else(value: Any) -> None:
    body = json.dumps({"schema": 1, "facts": [value], "kernel": {"events": [value]}}).encode()
    try:
        answer = parse(body)
    except BadAnswer:
        return
    shown(answer)
