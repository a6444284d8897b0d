"""``muster health``: the policy as shown, and another one replayed on what was observed."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path

from muster import store
from muster.cli.node import node
from muster.judging import health, policies
from muster.model.health import Report
from muster_criteria.health.readings import Reading
from muster_criteria.sku_files.skus import SHIPPED
from tests.muster import fleet

Muster = Callable[..., "tuple[int, str, str]"]
LOST, MISSING = ("action: leave_when_job_ends, source: nvml, why", "action: test_sooner, source: nvml, why")


def other_policy(tmp_path: Path) -> str:
    """The shipped policy, but that a lost GPU only makes the test due."""
    text = (SHIPPED / "policies" / "health.yaml").read_text()
    assert LOST in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(LOST, MISSING).replace('version: "2026.1"', 'version: "mine"'))
    return str(path)


def test_the_policy_is_shown_by_check(muster: Muster, sqlite_db: str) -> None:
    shown = json.loads(muster("health", "show", "--json")[1])
    assert len(shown["entries"]) > 20
    only = json.loads(muster("health", "show", "--check", "gpu_lost", "--json")[1])["entries"]
    assert [each["action"] for each in only] == ["leave_when_job_ends"]
    assert "noted" in muster("health", "show", "--check", "unheard_of")[1]
    assert muster("health", "show", "no-such-policy")[0] == 1


def test_another_policy_is_replayed_on_what_was_observed(muster: Muster, sqlite_db: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        store.nodes.add(fleet.new_node(name))
        seen = (Reading("gpu_lost", device="gpu3", bad=True), Reading("disk_full", value="/", bad=True))
        health.record([Report(name, "sweep", seen, "boot-1")], {name: "cpu-generic"})
    (a, b) = json.loads(muster("health", "compare", other_policy(tmp_path), "--json")[1])
    assert (a["seen"]["node"], a["seen"]["check"], a["before"], a["after"]) == (
        "a", "gpu_lost", "leave_when_job_ends", "test_sooner",
    )  # fmt: skip
    everything = json.loads(muster("health", "compare", other_policy(tmp_path), "--all", "--json")[1])
    assert {(each["seen"]["node"], each["seen"]["check"]) for each in everything} == {
        (name, check) for name in ("a", "b") for check in ("gpu_lost", "disk_full")
    }
    (alone,) = json.loads(muster("health", "compare", other_policy(tmp_path), "--node", "b", "--json")[1])
    assert alone["seen"]["node"] == b["seen"]["node"] == "b"
    assert json.loads(muster("health", "compare", "health", "--json")[1]) == []
    assert json.loads(muster("health", "compare", other_policy(tmp_path), "--since", "2100-01-01", "--json")[1]) == []
    assert {each.action for each in store.health.of_node("a")} == {"note", "leave_when_job_ends"}, "nothing changed"


def test_how_often_something_was_seen_within_a_time_is_recorded(muster: Muster, sqlite_db: str, tmp_path: Path) -> None:
    """Twelve hangs in two hours make a test due; as many over two days do not."""
    start = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
    policy = policies.health()
    for name, apart_s in (("a", 600), ("b", 4 * 3600)):
        store.nodes.add(fleet.new_node(name))
        for number in range(12):
            report = Report(name, "sweep", (Reading("hung/nvml", value="nvml"),), "boot-1")
            store.health.record([report], policy, start + number * datetime.timedelta(seconds=apart_s))
        (seen,) = store.health.of_node(name)
        assert seen.count == 12
        assert seen.action == ("test_sooner" if name == "a" else "note")
    listed = json.loads(muster("health", "compare", "health", "--all", "--json")[1])
    assert {(each["seen"]["node"], each["after"]) for each in listed} == {("a", "test_sooner"), ("b", "note")}


def test_a_node_shows_what_is_not_over_however_much_was_seen_later(muster: Muster, sqlite_db: str) -> None:
    store.nodes.add(fleet.new_node("a"))
    start, policy = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2), policies.health()

    def observe(hours: float, *seen: Reading) -> None:
        store.health.record([Report("a", "sweep", seen, "b1")], policy, start + datetime.timedelta(hours=hours))

    observe(0, Reading("xid/63", "gpu3", value="row remap pending"))
    links = [Reading(f"event/link/{each}", "nic0", bad=True) for each in range(node.OBSERVED_MAX)]
    observe(1, *links)
    for hours in (2, 60):
        observe(hours, *(dataclasses.replace(each, bad=False) for each in links))
    shown = json.loads(muster("node", "show", "a", "--json")[1])
    assert ([each["check"] for each in shown["observations"]], shown["bmc_read_at"]) == (["xid/63"], None)
    table = muster("node", "show", "a")[1]
    assert f"{start:%Y-%m-%d %H:%M}" in table
    observe(61, *(Reading(f"alert/a{each}") for each in range(node.OBSERVED_MAX)))
    lines = muster("node", "show", "a")[1].splitlines()
    rows = [at for at, line in enumerate(lines) if line.startswith(("xid/", "alert/"))]
    assert (len(rows), "1" in lines[rows[-1] + 1].split()) == (node.OBSERVED_MAX, True)
