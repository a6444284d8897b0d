"""Bodies of other programs as reports: an odd event costs itself alone, and only "healthy" is healthy."""

from __future__ import annotations

from typing import Any

import pytest

from muster.api import report_forms
from muster.api.report_forms import Reported

SICK = {"nodeName": "n1", "checkName": "GpuWatch", "isHealthy": False, "message": "lost"}


@pytest.mark.parametrize("odd", [{"entitiesImpacted": 5}, {"errorCode": {"a": 1}}, {"nodeName": ["n1"]}])
def test_an_odd_event_stops_no_other(odd: dict[str, Any]) -> None:
    found = list(report_forms.read("nvsentinel", {"events": [{**SICK, **odd}, SICK]}))
    assert [each.node for each in found if isinstance(each, Reported)][-1:] == ["n1"]


@pytest.mark.parametrize(("said", "bad"), [(True, False), (False, True), ("false", True), (1, True)])
def test_only_a_plain_yes_is_healthy(said: Any, bad: bool) -> None:
    (found,) = report_forms.read("nvsentinel", {"events": [{**SICK, "isHealthy": said}]})
    assert isinstance(found, Reported)
    assert found.bad is bad


@pytest.mark.parametrize(
    ("name", "code", "check"),
    [
        ("SysLogsXIDError", "79", "xid/79"),
        ("SysLogsSXIDError", "20034", "sxid/20034"),
        ("gpu_sxid_error", "20034", "sxid/20034"),
        ("GpuXidWatch", "79", "xid/79"),
        ("GpuMemWatch", "79", "event/GpuMemWatch/79"),
    ],
)
def test_a_drivers_code_has_the_kind_that_its_check_names(name: str, code: str, check: str) -> None:
    """What follows is said by the policy of the kind: as an XID, an NVSwitch's code is unknown, and only noted."""
    (found,) = report_forms.read("nvsentinel", {"events": [{**SICK, "checkName": name, "errorCode": [code]}]})
    assert isinstance(found, Reported)
    assert found.check == check


@pytest.mark.parametrize("name", ["", "Disk/", "a" * 69 + "/b"])
def test_no_name_of_an_alert_stands_for_others(name: str) -> None:
    alert = {"status": "resolved", "labels": {"alertname": name, "instance": "n1"}}
    (found,) = report_forms.read("alertmanager", {"alerts": [alert]})
    assert isinstance(found, Reported)
    assert not found.check.endswith("/")


def test_a_component_of_gpud_without_events_reports_none() -> None:
    assert list(report_forms.read("gpud", [{"component": "cpu", "events": None}], "n1")) == []


def test_a_refusal_is_one_line() -> None:
    (found,) = report_forms.read("muster", {"reports": [{"node": "n1", "check": "x", "odd\nPASS": 1}]})
    assert isinstance(found, str)
    assert "\n" not in found
