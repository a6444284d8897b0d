"""``muster device-events``: policies as a person reads them, and what another would have done with recorded events."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster import store
from muster.cli.policies.device_events import load
from muster.judging.event_history import compare, returning_events
from muster.model.events import Evidence
from muster.model.runs import RunKey
from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import writing
from muster.store.database.models import StageRow
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.sku_files.skus import SHIPPED, load_sku
from muster_node.contract import Measurement
from muster_node.hardware.host.kernel_events import labels_of, parse_events
from tests.muster import fleet

Muster = Callable[..., "tuple[int, str, str]"]

pytestmark = pytest.mark.usefixtures("sqlite_db")

POLICY = SHIPPED / "policies" / "nvidia-xid.yaml"


def xid(code: int, device: str = "gpu3", text: str = "what the driver wrote", n: int = 0) -> Measurement:
    labels = {"kind": "xid", "code": str(code), "pci": "0000:1b:00", "at": "12.500000", "n": str(n)}
    return Measurement("device_events", "xid", device, "text", text=text, labels=labels)


def stored(boot: str, *events: Measurement, serial: str = "") -> tuple[StageResult, bytes]:
    _, raw = fleet.result(serials={"gpu3": serial} if serial else {}, measurements=events)
    sent = json.loads(raw)
    sent["identity"]["boot_id"] = boot
    raw = json.dumps(sent).encode()
    return parse_result(raw), raw


def record(boot: str, *events: Measurement, serial: str = "") -> None:
    """One run of gpu-0001 in one boot with these errors."""
    lease = store.leases.acquire("gpu-0001", RunKey(fleet.DAG, f"gpu-0001__{boot}"))
    store.runs.begin(RunKey(fleet.DAG, lease.run_id), "gpu-0001", "short", "for a test")
    parsed, raw = stored(boot, *events, serial=serial)
    fleet.record(RunKey(fleet.DAG, lease.run_id), parsed, fleet.judgement(), raw)
    store.leases.release(RunKey(fleet.DAG, lease.run_id), "done")


@pytest.fixture
def node(sqlite_db: object) -> None:
    store.nodes.add(fleet.new_node(sku="h100-sxm-8"))


def test_a_policy_is_shown_with_its_sources_and_reasons(muster: Muster) -> None:
    status, out, _ = muster("device-events", "show", "nvidia-xid", "63")
    assert status == 0
    assert "XID 63\tIGNORE\tnone\ta memory row is to be remapped\talways\tNVIDIA's: " in out
    assert "NVIDIA XID catalogue" in out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["device-events", "show", "nvidia-xyd"],
            "there is no policy 'nvidia-xyd': known are kernel, nvidia-xid.",
        ),
        (["device-events", "compare", "/nowhere/b.yaml"], "/nowhere/b.yaml cannot be read by the user "),
        (
            ["device-events", "show", "nvidia-xid", "4711"],
            "policy nvidia-xid 2026.1 does not know 4711: it would be MONITOR",
        ),
        (["device-events", "compare", "nvidia-xid", "--node", "nobody"], "no node 'nobody' is enrolled"),
    ],
)
def test_what_is_wrong_is_one_sentence(muster: Muster, args: list[str], sentence: str) -> None:
    status, out, err = muster(*args)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert sentence in err


@pytest.mark.usefixtures("node")
def test_another_version_is_replayed_over_history(muster: Muster, tmp_path: Path) -> None:
    record("b-1", xid(63), xid(79, n=1))
    record("b-2", xid(94))
    other = tmp_path / "b.yaml"
    stricter = POLICY.read_text().replace('version: "2026.1"', 'version: "B"')
    stricter = stricter.replace(
        "meaning: a memory row is to be remapped\n    severity: IGNORE", "meaning: a row\n    severity: REBOOT"
    )
    other.write_text(stricter)

    status, out, _ = muster("device-events", "compare", str(other), "--json")
    assert status == 0
    assert [(each["code"], each["before"], each["after"][1]) for each in json.loads(out)] == [
        (63, ["63", "IGNORE", "none"], "REBOOT")
    ]
    _, out, _ = muster("device-events", "compare", str(other))
    assert "XID 63\twhat the driver wrote\tIGNORE (none)\tREBOOT (none)" in out
    assert "3 events: 1 would be treated differently, 1 of them as more severe; in all 1 MONITOR, 2 REBOOT" in out
    _, out, _ = muster("device-events", "compare", "nvidia-xid")
    assert out.startswith("both policies agree on every event in the records")


ESCALATION = (
    "escalation: {boots: 3, within_days: 7, severity: ISOLATE, action: inspect, from_severity: RESET, source: gpud}"
)


@pytest.fixture
def escalating(tmp_path: Path) -> Callable[..., str]:
    """escalating(boots=2) is the path of a policy that is nvidia-xid but for its escalation."""

    def _made(**keys: Any) -> str:
        given = {"boots": 3, "severity": "ISOLATE", "action": "inspect", "from_severity": "RESET"} | keys
        text = ", ".join(f"{key}: {value}" for key, value in given.items())
        assert ESCALATION in POLICY.read_text()
        path = tmp_path / "escalating.yaml"
        path.write_text(POLICY.read_text().replace(ESCALATION, f"escalation: {{{text}, source: gpud}}"))
        return str(path)

    return _made


def changed_responses(muster: Muster, *args: str) -> list[tuple[str, list[str], list[str], list[int]]]:
    status, out, err = muster("device-events", "compare", *args, "--json")
    assert status == 0, err
    return [(each["run"][-3:], each["before"][1:], each["after"][1:], each["boots"]) for each in json.loads(out)]


@pytest.mark.usefixtures("node")
def test_a_policy_that_differs_only_in_its_escalation_is_seen_from_that_boot_on(
    muster: Muster, escalating: Callable[..., str]
) -> None:
    """As it would have been ruled then: what came later has no say, and one boot's stages count once."""
    for boot in ("b-1", "b-2", "b-3"):
        record(boot, xid(119), xid(119, n=1), xid(63, n=2))
    isolated = ["ISOLATE", "inspect"]
    decided = [each for each in changed_responses(muster, "nvidia-xid", "--all") if each[1][0] != "IGNORE"]
    usual = decided[0][1]
    assert (
        decided
        == [("b-1", usual, usual, [0, 0])] * 2
        + [("b-2", usual, usual, [0, 0])] * 2
        + [("b-3", isolated, isolated, [3, 3])] * 2
    )
    assert usual[0] in ("REBOOT", "RESET")

    sooner = escalating(boots=2)
    assert changed_responses(muster, sooner) == [("b-2", usual, isolated, [0, 2])] * 2
    _, out, _ = muster("device-events", "compare", sooner)
    assert f"XID 119\twhat the driver wrote\t{usual[0]} ({usual[1]})\tISOLATE (inspect, back in 2 boots)" in out
    assert "9 events: 2 would be treated differently, 2 of them as more severe" in out
    assert changed_responses(muster, escalating(boots=4)) == [("b-3", isolated, usual, [3, 0])] * 2
    assert changed_responses(muster, escalating(action="rma")) == [("b-3", isolated, ["ISOLATE", "rma"], [3, 3])] * 2
    assert changed_responses(muster, escalating(boots=3)) == []


@pytest.mark.usefixtures("node")
def test_what_came_before_the_time_asked_for_still_counts(muster: Muster, escalating: Callable[..., str]) -> None:
    record("b-1", xid(119))
    between = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%S.%f}"
    record("b-2", xid(119))

    assert len(changed_responses(muster, "nvidia-xid", "--all")) == 2
    (later,) = changed_responses(muster, escalating(boots=2), "--since", between)
    assert (later[0], later[2][0], later[3]) == ("b-2", "ISOLATE", [0, 2])


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(("serials", "escalates"), [(("s-1", "s-1"), True), (("s-1", "s-2"), False)])
def test_another_gpu_in_the_slot_does_not_escalate(
    muster: Muster, escalating: Callable[..., str], serials: tuple[str, str], escalates: bool
) -> None:
    record("b-1", xid(119), serial=serials[0])
    record("b-2", xid(119), serial=serials[1])

    assert bool(changed_responses(muster, escalating(boots=2))) == escalates


@pytest.mark.usefixtures("node")
def test_one_node_does_not_escalate_for_another_nor_a_machine_for_the_one_before(
    muster: Muster, escalating: Callable[..., str]
) -> None:
    record("b-1", xid(119))
    record("b-2", xid(119))
    recorded = store.device_events.recorded()
    assert [each.former for each in recorded] == [False, False]
    policy = load(escalating(boots=2))
    before = {"h100-sxm-8": policy}
    of = {"same": {}, "another": {"node": "gpu-0002"}, "former": {"former": True}}
    escalated = {
        name: compare([dataclasses.replace(recorded[0], **fields), recorded[1]], before, policy)[1].after.boots
        for name, fields in of.items()
    }
    assert escalated == {"same": 2, "another": 0, "former": 0}


@pytest.mark.usefixtures("node")
def test_errors_of_the_machine_that_bore_the_name_before_are_known_as_such() -> None:
    record("b-1", xid(119))
    store.adoption.replace("gpu-0001", "Ada", "new machine", host_key=fleet.host_key("new"))
    record("b-2", xid(119))

    assert [(each.boot_id, each.former) for each in store.device_events.recorded()] == [("b-1", True), ("b-2", False)]
    assert [each.boot_id for each in store.device_events.recorded(node="gpu-0001")] == ["b-2"]


@pytest.mark.usefixtures("node")
def test_a_ruling_graver_than_the_escalation_stands(muster: Muster, escalating: Callable[..., str]) -> None:
    for boot in ("b-1", "b-2"):
        record(boot, xid(119))

    usual = changed_responses(muster, "nvidia-xid", "--all")[1][1]
    assert changed_responses(muster, escalating(boots=2, severity="MONITOR")) == []
    (changed,) = changed_responses(muster, escalating(boots=2, severity=usual[0], action="rma"))
    assert changed[2] == [usual[0], "rma"]


@pytest.mark.usefixtures("node")
def test_nothing_recorded_is_stated(muster: Muster) -> None:
    assert muster("device-events", "compare", "nvidia-xid")[1] == "no such events are recorded\n"


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(
    ("serials", "returns"), [(("s-1", "s-1", "s-1"), True), (("s-1", "s-1", "s-2"), False), (("", "", ""), True)]
)
def test_an_error_that_follows_its_gpu_through_two_reboots_is_evidence(
    serials: tuple[str, str, str], returns: bool
) -> None:
    """A GPU that was swapped since does not inherit the errors of the one before."""
    record("b-1", xid(119), serial=serials[0])
    record("b-2", xid(119), serial=serials[1])
    result, _ = stored("b-3", xid(119), serial=serials[2])
    policy = load_sku("h100-sxm-8").event_policies

    evidence = returning_events("gpu-0001", result, policy)
    assert [each.kind for each in evidence] == (["event_returns"] if returns else [])
    same_boot, _ = stored("b-2", xid(119), serial=serials[1])
    assert returning_events("gpu-0001", same_boot, policy) == ()


def age(days: float) -> None:
    """Let everything that is recorded be so much older."""
    with writing() as session:
        for row in session.query(StageRow):
            row.recorded_at -= datetime.timedelta(days=days)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize(("apart", "returns"), [(200.0, False), (4.0, False), (3.0, True)])
def test_only_boots_within_the_policys_days_count(
    muster: Muster, escalating: Callable[..., str], apart: float, returns: bool
) -> None:
    for boot in ("b-1", "b-2"):
        record(boot, xid(109))
        age(apart)
    result, _ = stored("b-3", xid(109))
    evidence = returning_events("gpu-0001", result, load_sku("h100-sxm-8").event_policies)
    assert bool(evidence) is returns
    record("b-3", xid(109))
    boots = [each[-1][1] for each in changed_responses(muster, escalating(boots=3), "--all")]
    assert boots == [0, 0, 3 if returns else 0]


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("state", [State.REPAIR, State.RMA])
def test_what_came_before_a_person_repaired_the_node_does_not_count(
    muster: Muster, escalating: Callable[..., str], state: State
) -> None:
    record("b-1", xid(109))
    record("b-2", xid(109))
    for step in (State.QUARANTINE, State.TRIAGE, state):
        store.nodes.move("gpu-0001", step, "Ada", "gpu3 is exchanged")
    result, _ = stored("b-3", xid(109))
    policies = load_sku("h100-sxm-8").event_policies
    assert returning_events("gpu-0001", result, policies), "no repair is over yet"
    assert store.device_events.repaired_for("gpu-0001") is None
    unrepaired = store.clock.now()
    store.nodes.move("gpu-0001", State.REGISTERED, "Ada", "gpu3 was exchanged")
    assert store.device_events.repaired_for("gpu-0001") is not None
    assert store.device_events.repaired_for("gpu-0001", unrepaired) is None
    assert returning_events("gpu-0001", result, policies) == ()
    record("b-3", xid(109))
    assert [each[-1][1] for each in changed_responses(muster, escalating(boots=2), "--all")] == [0, 2, 0]
    record("b-4", xid(109))
    result, _ = stored("b-5", xid(109))
    assert returning_events("gpu-0001", result, policies)
    store.adoption.replace("gpu-0001", "Ada", "another machine", host_key=fleet.host_key("other"))
    assert store.device_events.repaired_for("gpu-0001") is None


@pytest.mark.usefixtures("node")
def test_a_restart_by_a_program_is_no_repair_after_which_errors_count_from_zero() -> None:
    record("b-1", xid(109))
    record("b-2", xid(109))
    for step in (State.QUARANTINE, State.TRIAGE):
        store.nodes.move("gpu-0001", step, "Ada", "it is restarted")
    by_itself = Evidence(repair="attempt/1", reason="reboot")
    with writing() as session:
        for step in (State.REPAIR, State.REGISTERED):
            access.move(session, access.node_row(session, "gpu-0001"), step, "muster-repair", "reboot", by_itself)
    assert store.device_events.repaired_for("gpu-0001") is None
    result, _ = stored("b-3", xid(109))
    assert returning_events("gpu-0001", result, load_sku("h100-sxm-8").event_policies)


KERNEL = SHIPPED / "policies" / "kernel.yaml"
STALL = "<3>[ 50.0] rcu: INFO: rcu_sched self-detected stall on CPU"
LOST = "<4>[ 500.0] nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10"


def record_log(*lines: str) -> None:
    """One run of gpu-0001 whose stage began 100 s after boot and found these messages."""
    measured = [Measurement("inventory", "kernel_log_time", "node", "s", value=100.0)]
    for number, event in enumerate(parse_events(lines)):
        labels = labels_of(event, number)
        measured.append(Measurement("device_events", "kernel_event", "node", "text", text=event.text, labels=labels))
    _, raw = fleet.result(serials={}, measurements=measured)
    key = RunKey(fleet.DAG, "gpu-0001__r")
    store.leases.acquire("gpu-0001", key)
    store.runs.begin(key, "gpu-0001", "short", "for a test")
    fleet.record(key, parse_result(raw), fleet.judgement(), raw)
    store.leases.release(key, "done")


def test_a_policy_is_shown_and_a_message_finds_its_entry(muster: Muster) -> None:
    status, out, _ = muster("device-events", "show", "kernel", "nvme nvme0: controller is down", "--json")
    assert status == 0
    assert [each["name"] for each in json.loads(out)["entries"]] == ["disk-lost"]


def test_another_kernel_policy_is_replayed_over_the_records(muster: Muster, tmp_path: Path) -> None:
    store.nodes.add(fleet.new_node(sku="h100-sxm-8"))
    record_log(STALL, LOST)
    raw = yaml.safe_load(KERNEL.read_text(encoding="utf-8"))
    raw["version"] = "2"
    for entry in raw["entries"]:
        if entry["name"] == "disk-lost":
            entry["severity"] = "MONITOR"
    other = tmp_path / "mine.yaml"
    other.write_text(yaml.safe_dump(raw), encoding="utf-8")
    status, out, _ = muster("device-events", "compare", str(other), "--all", "--json")
    assert status == 0
    assert [(each["before"], each["after"], each["during"], each["changed"]) for each in json.loads(out)] == [
        (["lockup", "RESET", "inspect"], ["lockup", "RESET", "inspect"], False, False),
        (["disk-lost", "ISOLATE", "inspect"], ["disk-lost", "MONITOR", "inspect"], True, True),
    ]


def test_an_entry_that_nodes_never_send_is_refused(muster: Muster, tmp_path: Path) -> None:
    raw = yaml.safe_load(KERNEL.read_text(encoding="utf-8"))
    off_bus = next(each for each in raw["entries"] if each["name"] == "gpu-off-bus")
    raw["entries"] = [{**off_bus, "matches": ["quietly"], "examples": ["<6>[ 1.0] quietly"]}]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    status, _, err = muster("device-events", "show", str(tmp_path / "mine.yaml"))
    assert status == 1
    assert err.endswith("mine.yaml: gpu-off-bus: nodes do not send '<6>[ 1.0] quietly' as one message.\n")
