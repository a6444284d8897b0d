"""States that other programs report: Alertmanager's alerts, and events of NVSentinel and gpud. Which ends which."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from muster import store
from muster.api import reports
from muster_criteria.health.policy import HealthAction
from tests.muster import fleet
from tests.muster.api.conftest import NODE, XID, post


def test_alerts_are_states_that_end(client: TestClient) -> None:
    """Shaped as Alertmanager's documentation of its webhook, version 4, shows it."""
    alert = {
        "status": "firing", "labels": {"alertname": "GpuHot", "instance": f"{NODE}:9400", "severity": "critical"},
        "annotations": {"summary": "gpu3 is hot"}, "startsAt": "2026-11-25T10:00:00Z", "fingerprint": "a1",
    }  # fmt: skip
    body = {"version": "4", "status": "firing", "receiver": "muster", "alerts": [alert, {**alert, "labels": {}}]}
    answer = post(client, body, "alerts").json()
    assert (answer["accepted"], len(answer["refused"])) == (1, 1)
    (seen,) = store.health.of_node(NODE)
    assert (seen.check, seen.action, seen.track.bad if seen.track else None) == (
        "alert/GpuHot", HealthAction.TEST_SOONER, True,
    )  # fmt: skip
    post(client, {"alerts": [{**alert, "status": "resolved"}]}, "alerts")
    track = store.health.of_node(NODE)[0].track
    assert track is not None
    assert not track.bad


def test_of_more_alerts_than_a_body_may_hold_the_first_are_recorded(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alertmanager sends a whole group at once; refused, it sends the same again."""
    monkeypatch.setattr(reports, "REPORTS_MAX", 2)
    many = [{"status": "firing", "labels": {"alertname": f"A{number}", "instance": NODE}} for number in range(4)]
    answer = post(client, {"alerts": many}, "alerts")
    assert (answer.status_code, answer.json()["accepted"], len(answer.json()["refused"])) == (200, 2, 1)
    assert {each.check for each in store.health.of_node(NODE)} == {"alert/A0", "alert/A1"}
    assert post(client, {"reports": [XID] * 3}).status_code == 413, "who can send several does"


@pytest.mark.parametrize("instance", ["10.20.0.7:9400", f"{NODE}.hpc.example.org:9400", f"{NODE}:9400"])
def test_an_alert_names_a_node_as_prometheus_does(client: TestClient, instance: str) -> None:
    store.nodes.add(fleet.new_node(NODE, sku="h100-sxm-8", host="10.20.0.7"))
    alert = {"status": "firing", "labels": {"alertname": "GpuHot", "instance": instance}}
    assert post(client, {"alerts": [alert]}, "alerts").json()["accepted"] == 1
    assert [each.check for each in store.health.of_node(NODE)] == ["alert/GpuHot"]


@pytest.mark.parametrize(
    ("severity", "action"),
    [("page", HealthAction.TEST_SOONER), ("Critical", HealthAction.TEST_SOONER), ("error", HealthAction.TEST_SOONER),
     ("warning", HealthAction.NOTE), ("info", HealthAction.NOTE), ("none", HealthAction.NOTE), ("", HealthAction.NOTE)],
)  # fmt: skip
def test_a_severity_that_is_not_known_is_not_taken_for_harmless(
    client: TestClient, severity: str, action: HealthAction
) -> None:
    alert = {"status": "firing", "labels": {"alertname": "GpuHot", "instance": NODE, "severity": severity}}
    post(client, {"alerts": [alert]}, "alerts")
    assert store.health.of_node(NODE)[0].action is action


def test_an_alert_that_ends_ends_no_other_of_its_name(client: TestClient) -> None:
    def alert(gpu: str, status: str) -> dict[str, Any]:
        return {"status": status, "labels": {"alertname": "GpuEccDbe", "instance": f"{NODE}:9400", "gpu": gpu}}

    post(client, {"alerts": [alert("0", "firing"), alert("1", "firing")]}, "alerts")
    post(client, {"alerts": [alert("1", "resolved")]}, "alerts")
    bad = {each.part: each.track.bad for each in store.health.of_node(NODE) if each.track}
    assert bad == {"gpu 0": True, "gpu 1": False}
    many = {**alert("0", "firing"), "fingerprint": "a1"}
    many["labels"] |= {f"label{number}": "x" * 20 for number in range(20)}
    post(client, {"alerts": [many]}, "alerts")
    assert "a1" in {each.part for each in store.health.of_node(NODE)}


def gpu_event(gpu: str, code: str, healthy: bool) -> dict[str, Any]:
    """As gpu-health-monitor sends it: with a code for one error that began or ended, without one for the end of all."""
    return {
        "version": 1, "agent": "gpu-health-monitor", "componentClass": "GPU", "checkName": "GpuMemWatch",
        "isFatal": not healthy, "isHealthy": healthy, "errorCode": [code] if code else [], "nodeName": NODE,
        "entitiesImpacted": [{"entityType": "GPU", "entityValue": gpu}],
    }  # fmt: skip


BOTH = [("3", "PENDING", False), ("3", "REMAP", False), ("4", "REMAP", False)]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    ("then", "bad"),
    [
        ([("3", "PENDING", True)], {"GPU 3 REMAP", "GPU 4 REMAP"}),
        ([("3", "", True)], {"GPU 4 REMAP"}),
        ([("3", "", True), ("3", "REMAP", False)], {"GPU 3 REMAP", "GPU 4 REMAP"}),
        ([("3", "", False), ("3", "", True)], {"GPU 4 REMAP"}),
    ],
)
def test_an_error_that_ends_ends_no_other_of_its_check_and_gpu(
    client: TestClient, then: list[tuple[str, str, bool]], bad: set[str], together: bool
) -> None:
    events = [gpu_event(*each) for each in (*BOTH, *then)]
    for body in [events] if together else [[each] for each in events]:
        assert post(client, {"version": 1, "events": body}, "sentinel").status_code == 200
    found = store.health.of_node(NODE)
    assert {f"{each.part} {each.check.split('/')[-1]}" for each in found if each.track and each.track.bad} == bad


def test_a_healthy_node_ends_the_states_of_all_its_parts_and_no_event(client: TestClient) -> None:
    link = {"node": NODE, "check": "event/link/down", "part": "nic0"}
    events = [{**link, "check": check} for check in ("event/link/flap", "event/l")]
    post(client, {"reports": [{**link, "bad": True}, *events]})
    post(client, {**link, "part": "", "check": "event/link/", "bad": False}, "trusted")
    assert all(each.track is None or each.track.bad for each in store.health.of_node(NODE)), "another source's"
    post(client, {**link, "part": "", "check": "event/link/", "bad": False})
    found = {each.check: (each.track and each.track.bad, each.count) for each in store.health.of_node(NODE)}
    assert found == {"event/link/down": (False, 1), "event/link/flap": (None, 1), "event/l": (None, 1)}


def test_states_of_one_body_keep_their_order(client: TestClient) -> None:
    link = {"node": NODE, "check": "link", "device": "nic0", "severity": "ISOLATE"}
    body = {"reports": [{**link, "bad": bad} for bad in (True, True, False, True)]}
    assert post(client, body).json()["accepted"] == 4
    (seen,) = store.health.of_node(NODE)
    assert seen.track is not None
    assert seen.track.bad


RECOVERY = {"node": NODE, "check": "xid/154", "device": "gpu3"}
ALERT = {"status": "firing", "labels": {"alertname": "GpuHot", "instance": NODE, "severity": "warning"}}
GRAVER = {"labels": {"alertname": "GpuHot", "instance": NODE, "severity": "critical"}}


@pytest.mark.parametrize(
    ("token", "mild", "grave", "severity"),
    [
        ("epilog", {**RECOVERY, "value": "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"},
         {"value": "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"}, "REBOOT"),
        ("sentinel", {**gpu_event("3", "HOT", False), "isFatal": False}, {"isFatal": True}, "ISOLATE"),
        ("alerts", ALERT, GRAVER, "ISOLATE"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mild_first", [True, False])
def test_of_several_readings_in_one_body_the_gravest_counts(
    client: TestClient, token: str, mild: dict[str, Any], grave: dict[str, Any], severity: str, mild_first: bool
) -> None:
    both = [mild, {**mild, **grave}]
    assert post(client, both if mild_first else both[::-1], token).json()["accepted"] == 2
    (seen,) = store.health.of_node(NODE)
    assert (seen.severity, seen.action) == (severity, HealthAction.TEST_SOONER)


def test_events_of_nvsentinel_and_gpud(client: TestClient) -> None:
    """Written by the schemas that ``report_forms`` names; neither program ran here."""
    event = {
        "version": 1, "agent": "syslog-health-monitor", "componentClass": "GPU", "checkName": "SysLogsXIDError",
        "isFatal": True, "isHealthy": False, "message": "XID 79", "errorCode": ["79"], "nodeName": NODE,
        "entitiesImpacted": [{"entityType": "PCI", "entityValue": "0000:3b:00"}],
    }  # fmt: skip
    assert post(client, {"version": 1, "events": [event]}, "sentinel").json()["accepted"] == 1
    found = [{"component": "accelerator-nvidia-ecc", "events": [{"name": "ecc", "type": "Fatal", "message": "DBE"}]}]
    assert post(client, found, "gpud").status_code == 422, "it names no node"
    assert post(client, found, "gpud", params={"node": NODE}).json()["accepted"] == 1
    assert {each.check for each in store.health.of_node(NODE)} == {"xid/79", "event/accelerator-nvidia-ecc/ecc"}
    late, early = ({**found[0]["events"][0], "time": f"2026-11-20T0{hour}:00:00Z"} for hour in (7, 6))

    def polled(events: list[dict[str, str]]) -> tuple[int, datetime.datetime]:
        body = [{**found[0], "component": "disk", "events": events}]
        assert post(client, body, "gpud", params={"node": NODE}).status_code == 200
        (seen,) = (each for each in store.health.of_node(NODE) if each.check == "event/disk/ecc")
        return seen.count, store.health.urgent()[NODE].at

    assert polled([late, early]) == polled([late, early])
    assert polled([{**late, "time": "2026-11-20T07:00:01Z"}])[0] == 3
    # Their times are whole seconds: of two in one, the graver counts.
    other = {**late, "time": "2026-11-20T08:00:00Z", "type": "Warning", "message": "another GPU"}
    both = [other, {**other, "type": "Fatal", "message": "DBE of gpu5"}]
    assert polled(both) == polled(both[::-1])
    (seen,) = (each for each in store.health.of_node(NODE) if each.check == "event/disk/ecc")
    assert seen.severity == "ISOLATE"
    assert post(client, {"events": [{**event, "errorCode": ["31", "94"]}]}, "sentinel").json()["accepted"] == 2
    assert {"xid/31", "xid/94"} <= {each.check for each in store.health.of_node(NODE)}
