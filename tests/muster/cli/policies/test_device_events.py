"""``muster device-events``: policies as a person reads them; errors that came back after restarts."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from muster import store
from muster.judging.case import returning_events
from muster.model.events import Evidence
from muster.model.runs import RunKey
from muster.model.states import State
from muster.store.database import access
from muster.store.database.engine import writing
from muster.store.database.models import StageRow
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.sku_files.skus import SHIPPED, load_sku
from muster_node.contract import Measurement
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
        (["device-events", "show", "/nowhere/b.yaml"], "/nowhere/b.yaml cannot be read by the user "),
        (
            ["device-events", "show", "nvidia-xid", "4711"],
            "policy nvidia-xid 2026.1 does not know 4711: it would be MONITOR",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(muster: Muster, args: list[str], sentence: str) -> None:
    status, out, err = muster(*args)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert sentence in err


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
def test_only_boots_within_the_policys_days_count(apart: float, returns: bool) -> None:
    for boot in ("b-1", "b-2"):
        record(boot, xid(109))
        age(apart)
    result, _ = stored("b-3", xid(109))
    evidence = returning_events("gpu-0001", result, load_sku("h100-sxm-8").event_policies)
    assert bool(evidence) is returns


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("state", [State.REPAIR, State.RMA])
def test_what_came_before_a_person_repaired_the_node_does_not_count(state: State) -> None:
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
    record("b-4", xid(109))
    result, _ = stored("b-5", xid(109))
    assert returning_events("gpu-0001", result, policies)
    store.adoption.replace("gpu-0001", "Ada", "another machine", host_key=fleet.host_key("other"))
    assert store.device_events.repaired_for("gpu-0001") is None
    assert store.device_events.standing("gpu-0001", datetime.timedelta(days=7)) == {}, "those were another machine's"


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


def test_a_policy_is_shown_and_a_message_finds_its_entry(muster: Muster) -> None:
    status, out, _ = muster("device-events", "show", "kernel", "nvme nvme0: controller is down", "--json")
    assert status == 0
    assert [each["name"] for each in json.loads(out)["entries"]] == ["disk-lost"]


def test_an_entry_that_nodes_never_send_is_refused(muster: Muster, tmp_path: Path) -> None:
    raw = yaml.safe_load(KERNEL.read_text(encoding="utf-8"))
    off_bus = next(each for each in raw["entries"] if each["name"] == "gpu-off-bus")
    raw["entries"] = [{**off_bus, "matches": ["quietly"], "examples": ["<6>[ 1.0] quietly"]}]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    status, _, err = muster("device-events", "show", str(tmp_path / "mine.yaml"))
    assert status == 1
    assert err.endswith("mine.yaml: gpu-off-bus: nodes do not send '<6>[ 1.0] quietly' as one message.\n")
