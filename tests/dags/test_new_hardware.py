"""What an asset event for new hardware leads to; that Airflow makes one run of each key is in test_live_airflow."""

from __future__ import annotations

import contextlib
import datetime
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
import yaml
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from muster import store
from muster.errors import BadInventory, MusterError
from muster.model.nodes import NewNode
from muster.model.runs import RunKey
from muster.model.states import BROKEN, State
from muster.operators.lifecycle import arrival
from muster_demo.services import free_port
from tests.dags.conftest import dag_of
from tests.muster.fleet import host_key
from tests.support.refusals import caused
from tests.support.servers import sshd

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
NODE = "gpu-0001"
KEY = "gpu-0001__PO-4711"
LINE = {"host": "10.0.0.1", "sku": "h100-sxm-8", "host_key": host_key("gpu-0001"), "pool": "rack-7"}


def never(run_id: str) -> bool:
    return False


def test_a_node_that_its_event_describes_is_enrolled_and_tested(fleet: Path) -> None:
    started = arrival.receive(KEY, [{"inventory": LINE, "level": "short", "from_rest_api": True}], never)
    assert started == {
        "trigger_run_id": "gpu-0001__delivery-po-4711",
        "conf": {"node": "gpu-0001", "level": "short", "reason": "delivery PO-4711", "pool": "rack-7"},
    }
    node = store.nodes.get("gpu-0001")
    assert (node.host, node.host_key, node.state) == ("10.0.0.1", host_key("gpu-0001"), State.REGISTERED)
    assert store.nodes.events("gpu-0001")[0].actor == "delivery PO-4711"


def test_a_node_that_is_enrolled_needs_no_description(fleet: Path) -> None:
    store.nodes.add(NewNode("gpu-0001", "10.0.0.1", host_key("gpu-0001"), "h100-sxm-8"))
    for extras in ([], [{}], [{"from_rest_api": True}, {"from_rest_api": True}]):
        started = arrival.receive(KEY, extras, never)
        assert started["conf"] == {
            "node": "gpu-0001", "level": "standard", "reason": "delivery PO-4711", "pool": None,
        }  # fmt: skip


def test_a_delivery_whose_run_airflow_has_forgotten_is_not_tested_again(fleet: Path) -> None:
    """Its run would be refused, since the records know another one of its id."""
    run = arrival.receive(KEY, [{"inventory": LINE}], never)
    store.runs.begin(RunKey("node_qualification", run["trigger_run_id"]), NODE, "short", "delivery PO-4711")
    with pytest.raises(AirflowSkipException):
        arrival.receive(KEY, [{"inventory": LINE}], never)


def test_a_delivery_that_was_tested_is_not_tested_again(fleet: Path) -> None:
    seen: list[str] = []
    with pytest.raises(AirflowSkipException):
        arrival.receive(KEY, [{"inventory": LINE}], lambda run_id: not seen.append(run_id))
    assert seen == ["gpu-0001__delivery-po-4711"]
    assert store.nodes.find() == [], "nothing is even enrolled"


def test_deliveries_whose_keys_differ_are_tested_each(fleet: Path) -> None:
    seen: list[str] = []
    for delivery in ("PO-4711-1", "PO-4711/1", "PO 4711_1", "PO-4711 1", "PO-4711-1!"):
        run = arrival.receive(f"{NODE}__{delivery}", [{"inventory": LINE}], seen.__contains__)
        seen.append(run["trigger_run_id"])
    with pytest.raises(AirflowSkipException):
        arrival.receive(f"{NODE}__po-4711-1", [{"inventory": LINE}], seen.__contains__)


def test_a_delivery_of_a_paused_node_is_mailed_since_no_run_follows(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "oncall@example.org")
    store.nodes.add(NewNode("gpu-0001", "10.0.0.1", host_key("gpu-0001"), "h100-sxm-8"))
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=9)
    store.pauses.pause("gpu-0001", until, "Ada", "rewired")
    with pytest.raises(AirflowSkipException):
        arrival.receive(KEY, [], never)
    (waiting,) = store.outbox.pending()
    assert waiting.key.startswith(f"notice/paused delivery/{KEY}/")


@pytest.mark.parametrize("state", sorted(BROKEN))
def test_a_delivery_of_a_broken_node_is_refused_until_a_person_says_what_arrived(fleet: Path, state: State) -> None:
    """Its test would not begin, and the run of the delivery would be skipped."""
    store.nodes.add(NewNode(NODE, "10.0.0.1", host_key(NODE), "h100-sxm-8"))
    for each in (State.QUARANTINE, State.TRIAGE, State.REPAIR, State.RMA):
        store.nodes.move(NODE, each, "Ada", "sent back")
        if each is state:
            break
    with caused(AirflowFailException, MusterError):
        arrival.receive(KEY, [], never)
    store.nodes.move(NODE, State.REGISTERED, "Ada", "repaired")
    assert arrival.receive(KEY, [], never)["conf"]["node"] == NODE


WRONG: list[tuple[str | None, list[dict[str, Any]]]] = [
    (None, []),
    ("gpu-0001", []),
    ("__PO-4711", []),
    ("rack1__gpu01__PO-4711", []),
    ("gpu-0001___PO-4711", [{"inventory": {"host": "10.0.0.1", "sku": "h100-sxm-8"}}]),
    ("gpu-0001__ ", []),
    ("rm -rf__PO-4711", []),
    (KEY, []),
    (KEY, [{"level": "quick"}]),
    (KEY, [{"rack": "7"}]),
    (KEY, [{"inventory": "10.0.0.1"}]),
    (KEY, [{"inventory": {**LINE, "name": "gpu-2"}}]),
    (KEY, [{"inventory": {"host": "10.0.0.1"}}]),
    (KEY, [{"inventory": {**LINE, "sku": "h100"}}]),
    (KEY, [{"inventory": {**LINE, "port": 0}}]),
    (KEY, [{"inventory": {**LINE, "bmc": {"url": "https://b"}}}]),
    (KEY, [{"level": "demo"}, {"level": "long"}]),
]


@pytest.mark.parametrize(("key", "extras"), WRONG)
def test_what_a_person_must_put_right_is_one_sentence(
    fleet: Path, key: str | None, extras: list[dict[str, Any]]
) -> None:
    with caused(AirflowFailException, MusterError) as refused:
        arrival.receive(key, extras, never)
    assert "\n" not in str(refused.value)
    assert store.nodes.find() == []


def test_another_machine_under_a_known_name_is_refused(fleet: Path) -> None:
    store.nodes.add(NewNode("gpu-0001", "10.0.0.1", host_key("another"), "h100-sxm-8"))
    with caused(AirflowFailException, BadInventory):
        arrival.receive(KEY, [{"inventory": LINE}], never)


@pytest.mark.parametrize(
    "change", [{"launch": {"kind": "python", "python": "/tmp/x"}}, {"host": "10.6.6.6"}, {"pool": ""}]
)
def test_an_event_changes_no_node(fleet: Path, change: dict[str, Any]) -> None:
    arrival.receive(KEY, [{"inventory": LINE}], never)
    before = store.nodes.get("gpu-0001")
    again = arrival.receive("gpu-0001__PO-4712", [{"inventory": LINE}], never)
    assert again["conf"]["node"] == "gpu-0001"
    with pytest.raises(AirflowFailException):
        arrival.receive("gpu-0001__PO-4713", [{"inventory": {**LINE, **change}}], never)
    assert store.nodes.get("gpu-0001") == before


def test_a_node_that_does_not_answer_yet_is_tried_again(fleet: Path) -> None:
    line = {"host": "127.0.0.1", "port": free_port(), "sku": "h100-sxm-8"}
    with caused(AirflowException, BadInventory) as refused:
        arrival.receive(KEY, [{"inventory": line}], never)
    assert not isinstance(refused.value, AirflowFailException)
    assert store.nodes.find() == []


@pytest.mark.needs_sshd
def test_a_node_is_enrolled_under_the_host_key_of_what_accepts_the_login(
    fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installer answers first, under a host key that ends with it."""
    with sshd.running(tmp_path / "installer") as installer:
        at = installer.node()
        line = {"host": at.host, "port": at.port, "user": at.user, "sku": "h100-sxm-8"}
        foreign = installer.folder / "foreign"
        monkeypatch.setenv(sshd.CONNECTION, sshd.connection(foreign))
        with caused(AirflowException, BadInventory) as refused:
            arrival.receive(KEY, [{"inventory": line}], never)
        assert not isinstance(refused.value, AirflowFailException)
        assert store.nodes.find() == []
    system = sshd.Sshd(tmp_path / "system")
    system.port = installer.port
    monkeypatch.setenv(sshd.CONNECTION, sshd.connection(system.key_file))
    system.start()
    try:
        arrival.receive(KEY, [{"inventory": line}], never)
    finally:
        system.stop()
    assert store.nodes.get(NODE).host_key == system.key_text()


@pytest.mark.parametrize("key", [KEY, "gpu-0001__PO__7", "GPU 0002__netbox-13", None, "a__\n"])
def test_a_delivery_that_is_not_received_is_mailed_and_noted_of_an_enrolled_node(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    monkeypatch.setenv("MUSTER_MAIL_TO", "oncall@example.org")
    store.nodes.add(NewNode("gpu-0001", "10.0.0.1", host_key("gpu-0001"), "h100-sxm-8"))
    run = SimpleNamespace(partition_key=key)
    for name in ("receive", "qualify"):
        callbacks = dag_of("new_hardware").get_task(name).on_failure_callback
        for each in callbacks if isinstance(callbacks, list) else [callbacks]:
            each({"dag_run": run, "exception": AirflowFailException("sku None cannot be used")})
    (waiting,) = store.outbox.pending()
    assert waiting.key.startswith(f"notice/delivery/{key or ''}/")
    assert "sku None cannot be used" in store.outbox.message(waiting.id).decode()
    noted = store.signs.refusals(datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1))
    assert list(noted) == (["gpu-0001"] if key in (KEY, "gpu-0001__PO__7") else [])


@pytest.mark.usefixtures("fleet")
def test_another_reason_why_a_delivery_is_not_received_is_mailed_on_the_same_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who corrected what the first mail names, and announced it again, waits for the next answer."""
    monkeypatch.setenv("MUSTER_MAIL_TO", "oncall@example.org")
    for why in ("sku None cannot be used", "sku None cannot be used", "host None cannot be used"):
        for waiting in store.outbox.pending():
            store.outbox.sent(waiting.id, store.outbox.message(waiting.id))
        context: Any = {"dag_run": SimpleNamespace(partition_key=KEY), "exception": AirflowFailException(why)}
        arrival.lost(context)
    (waiting,) = store.outbox.pending()
    assert "host None" in store.outbox.message(waiting.id).decode()


def test_a_node_is_awaited_for_hours_without_many_tries() -> None:
    task = dag_of("new_hardware").get_task("receive")
    longest = task.max_retry_delay or task.retry_delay
    delays = [min(longest, task.retry_delay * 2**number) for number in range(task.retries)]
    assert sum(delays, datetime.timedelta()) >= datetime.timedelta(hours=6)
    assert datetime.timedelta(minutes=10) <= longest <= datetime.timedelta(minutes=20)


def test_netbox_announces_a_staged_device_once(fleet: Path) -> None:
    """The payload is shaped as NetBox's documentation of webhooks shows it."""
    example = yaml.safe_load((EXAMPLES / "netbox_webhook.yaml").read_text())
    data = {
        "id": 17, "name": NODE, "status": {"value": "staged"}, "site": {"name": "ams"},
        "location": {"name": "hall 2"}, "rack": {"name": "r12"},
        "primary_ip": {"address": "10.0.0.1/24"}, "custom_fields": {"muster_sku": "h100-sxm-8"},
    }  # fmt: skip
    template = jinja2.Template(example["webhook"]["body_template"])
    racks = [
        json.loads(template.render(data={**data, **other}))["extra"]["inventory"]["rack"]
        for other in ({}, {"location": None}, {"rack": None})
    ]
    assert racks == ["ams/hall 2/r12", "ams/r12", ""]
    event = json.loads(template.render(event="updated", model="device", data=data))
    event["extra"]["inventory"]["host_key"] = host_key(NODE)  # no host answers here
    started: list[str] = []
    for _ in range(2):
        with contextlib.suppress(arrival.AirflowSkipException):
            run = arrival.receive(event["partition_key"], [event["extra"]], started.__contains__)
            started.append(run["trigger_run_id"])
    assert started == ["gpu-0001__delivery-netbox-17"]
    assert (store.nodes.get(NODE).host, store.nodes.get(NODE).rack) == ("10.0.0.1", racks[0])
