"""``muster kernel``: the policy as a person reads it, and what another one would have done with recorded messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from muster import store
from muster.model.runs import RunKey
from muster_criteria.measured import parse_result
from muster_criteria.sku_files.skus import SHIPPED
from muster_node.contract import Measurement
from muster_node.hardware.host.kernel_events import labels_of, parse_events
from tests.muster import fleet

Muster = Callable[..., "tuple[int, str, str]"]

pytestmark = pytest.mark.usefixtures("sqlite_db")

POLICY = SHIPPED / "policies" / "kernel.yaml"
STALL = "<3>[ 50.0] rcu: INFO: rcu_sched self-detected stall on CPU"
LOST = "<4>[ 500.0] nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10"


def record(*lines: str) -> None:
    """One run of gpu-0001 whose stage began 100 s after boot and found these messages."""
    measured = [Measurement("inventory", "kernel_log_time", "node", "s", value=100.0)]
    for number, event in enumerate(parse_events(lines)):
        labels = labels_of(event, number)
        measured.append(Measurement("kernel_events", "kernel_event", "node", "text", text=event.text, labels=labels))
    _, raw = fleet.result(serials={}, measurements=measured)
    key = RunKey(fleet.DAG, "gpu-0001__r")
    store.leases.acquire("gpu-0001", key)
    store.runs.begin(key, "gpu-0001", "short", "for a test")
    fleet.record(key, parse_result(raw), fleet.judgement(), raw)
    store.leases.release(key, "done")


def test_a_policy_is_shown_and_a_message_finds_its_entry(muster: Muster) -> None:
    status, out, _ = muster("kernel", "show", "nvme nvme0: controller is down", "--json")
    assert status == 0
    assert [each["name"] for each in json.loads(out)["entries"]] == ["disk-lost"]


def test_another_version_is_replayed_over_the_records(muster: Muster, tmp_path: Path) -> None:
    store.nodes.add(fleet.new_node(sku="h100-sxm-8"))
    record(STALL, LOST)
    raw = yaml.safe_load(POLICY.read_text(encoding="utf-8"))
    raw["version"] = "2"
    for entry in raw["entries"]:
        if entry["name"] == "disk-lost":
            entry["severity"] = "MONITOR"
    other = tmp_path / "mine.yaml"
    other.write_text(yaml.safe_dump(raw), encoding="utf-8")
    status, out, _ = muster("kernel", "compare", str(other), "--all", "--json")
    assert status == 0
    assert [(each["before"], each["after"], each["during"], each["changed"]) for each in json.loads(out)] == [
        (["lockup", "RESET", "inspect"], ["lockup", "RESET", "inspect"], False, False),
        (["disk-lost", "ISOLATE", "inspect"], ["disk-lost", "MONITOR", "inspect"], True, True),
    ]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["kernel", "show", "--policy", "nowhere"],
            "there is no policy 'nowhere': known are health, kernel, nvidia-xid.",
        ),
        (["kernel", "compare", "/nowhere/b.yaml"], "/nowhere/b.yaml cannot be read: No such file or directory"),
        (["kernel", "compare", "kernel", "--node", "nobody"], "no node 'nobody' is enrolled"),
    ],
)
def test_what_is_wrong_is_one_sentence(muster: Muster, args: list[str], sentence: str) -> None:
    status, out, err = muster(*args)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert sentence in err


def test_an_entry_that_nodes_never_send_is_refused(muster: Muster, tmp_path: Path) -> None:
    raw = yaml.safe_load(POLICY.read_text(encoding="utf-8"))
    raw["entries"] = [{**raw["entries"][0], "matches": ["quietly"], "examples": ["<6>[ 1.0] quietly"]}]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    status, _, err = muster("kernel", "show", "--policy", str(tmp_path / "mine.yaml"))
    assert status == 1
    assert err.endswith("mine.yaml: gpu-off-bus: nodes do not send '<6>[ 1.0] quietly' as one message.\n")
