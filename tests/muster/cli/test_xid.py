"""``muster xid``: the policy as a person reads it, and what another policy would have done with recorded errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from muster import records
from muster.xid_history import returning_xids
from muster_criteria.measured import StageResult, parse_result
from muster_criteria.skus import SHIPPED, load_sku
from muster_node.contract import Measurement
from tests.muster import fleet
from tests.support import airflow_home

assert airflow_home.HOME, "before anything imports Airflow"

Muster = Callable[..., "tuple[int, str, str]"]

pytestmark = pytest.mark.usefixtures("sqlite_db")

POLICY = SHIPPED / "policies" / "nvidia-xid.yaml"


def xid(code: int, device: str = "gpu3", text: str = "what the driver wrote", n: int = 0) -> Measurement:
    labels = {"kind": "xid", "code": str(code), "pci": "0000:1b:00", "at": "12.500000", "n": str(n)}
    return Measurement("xids", "xid", device, "text", text=text, labels=labels)


def told(boot: str, *events: Measurement, serial: str = "") -> tuple[StageResult, bytes]:
    _, raw = fleet.result(serials={"gpu3": serial} if serial else {}, measurements=events)
    sent = json.loads(raw)
    sent["identity"]["boot_id"] = boot
    raw = json.dumps(sent).encode()
    return parse_result(raw), raw


def record(boot: str, *events: Measurement, serial: str = "") -> None:
    """One run of gpu-0001 in one boot that told these errors."""
    lease = records.acquire_lease("gpu-0001", fleet.DAG, f"gpu-0001__{boot}")
    records.begin_run(fleet.DAG, lease.run_id, "gpu-0001", "short", "for a test")
    parsed, raw = told(boot, *events, serial=serial)
    records.record_stage(fleet.DAG, lease.run_id, parsed, fleet.judgement(), raw)
    records.release_leases(fleet.DAG, lease.run_id, "done")


@pytest.fixture
def node(sqlite_db: object) -> None:
    records.add_node(fleet.new_node(sku="h100-sxm-8"))


def test_a_policy_is_shown_with_its_sources_and_reasons(muster: Muster) -> None:
    status, out, _ = muster("xid", "show", "63")
    assert status == 0
    assert "XID 63\tIGNORE\tnone\ta memory row is to be remapped\tNVIDIA's: " in out
    assert "NVIDIA XID catalogue" in out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["xid", "show", "--policy", "nvidia-xyd"], "there is no XID policy 'nvidia-xyd': known are nvidia-xid."),
        (["xid", "replay", "/nowhere/b.yaml"], "/nowhere/b.yaml cannot be read: No such file or directory"),
        (["xid", "show", "4711"], "policy nvidia-xid 2026.1 has no code 4711: it would be MONITOR"),
        (["xid", "replay", "nvidia-xid", "--node", "nobody"], "no node 'nobody' is enrolled"),
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

    status, out, _ = muster("xid", "replay", str(other), "--json")
    assert status == 0
    assert [(each["code"], each["before"], each["after"][0]) for each in json.loads(out)] == [
        (63, ["IGNORE", "none"], "REBOOT")
    ]
    _, out, _ = muster("xid", "replay", str(other))
    assert "XID 63\tIGNORE (none)\tREBOOT (none)" in out
    assert "3 errors: 1 would be treated otherwise, 1 of them more gravely; all in all 1 MONITOR, 2 REBOOT" in out
    _, out, _ = muster("xid", "replay", "nvidia-xid")
    assert out.startswith("both policies agree on every error in the records")


@pytest.mark.usefixtures("node")
def test_nothing_recorded_is_said(muster: Muster) -> None:
    assert muster("xid", "replay", "nvidia-xid")[1] == "no XIDs are recorded\n"


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
    result, _ = told("b-3", xid(119), serial=serials[2])
    policy = load_sku("h100-sxm-8").xid_policy

    evidence = returning_xids("gpu-0001", result, policy)
    assert [each.kind for each in evidence] == (["xid_returns"] if returns else [])
    same_boot, _ = told("b-2", xid(119), serial=serials[1])
    assert returning_xids("gpu-0001", same_boot, policy) == ()
