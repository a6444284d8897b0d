"""Whose drain is whose, and which node waits, where slurmctld itself has changed what it shows (23.02 and later)."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from muster.admission.backend import Mark
from muster.admission.backends.slurm.backend import Slurm, SlurmSettings
from muster.admission.differences import Do, next_change
from muster.admission.runner import Runner
from muster.errors import LeftAlone
from tests.muster.admission.test_backends import MARK
from tests.muster.admission.test_differences import OUT as QUARANTINED

MOMENT = {"set": True, "infinite": False, "number": 1_735_700_000}
OURS: dict[str, Any] = {
    "state": ["IDLE", "DRAIN"],
    "reason": "muster: burn_in: gpu 3 lost",
    "reason_set_by_user": "muster",
}
AWAY = OURS | {"reason": "muster: burn_in: gpu 3 lost : Not responding", "reason_set_by_user": "slurm"}
FEWER = OURS | {"reason": "gres/gpu count reported lower than configured (7 < 8)", "reason_set_by_user": "slurm"}


class Slurmctld(Runner):
    """Commands of Slurm for one node, in the JSON of ``scontrol``; ``updates``: the changes of each update."""

    def __init__(self, *, user: str = "slurm(64030)", **node: Any) -> None:
        super().__init__(1.0, (("SLURM_CONF", user),))  # what is known of one cluster is not of another
        self.user = user
        drained = {"name": "n0", "features": ["h100"], "extra": "muster: withdrawn 2025-01-01", "alloc_cpus": 0}
        self.node: dict[str, Any] = drained | {"reason_changed_at": MOMENT} | node
        self.updates: list[tuple[str, ...]] = []

    def run(self, *command: str) -> bytes:
        if command[:2] == ("scontrol", "update"):
            self.updates.append(command[3:])
            for change in command[3:]:
                self._change(*change.split("=", 1))
            return b""
        if command == ("scontrol", "show", "config"):
            return f"SlurmdUser              = root(0)\nSlurmUser               = {self.user}\n".encode()
        if command[0] == "squeue":
            return b""
        return json.dumps({"sinfo": [{}]} if command[0] == "sinfo" else {"nodes": [self.node]}).encode()

    def _change(self, field: str, value: str) -> None:
        if field == "State":
            lifted = {"DRAIN": ["DRAIN", "FAIL"], "UNDRAIN": ["DRAIN"], "RESUME": ["DRAIN", "DOWN"]}[value]
            kept = [word for word in self.node["state"] if word not in lifted]
            self.node["state"] = [*(kept or ["IDLE"]), *(["DRAIN"] if value == "DRAIN" else [])]
        elif field == "Reason":
            self.node |= {"reason": value, "reason_set_by_user": "muster"}
        elif field == "AvailableFeatures":
            self.node["features"] = value.split(",")
        else:
            self.node["extra"] = value


def backend_with(slurmctld: Slurmctld) -> Slurm:
    backend = Slurm(SlurmSettings(kind="slurm", user="muster"))
    backend._runner = slurmctld
    return backend


@pytest.mark.parametrize(
    "node",
    [
        AWAY,
        AWAY | {"reason_set_by_user": "64030"},
        AWAY | {"extra": "asset 4711"},
        AWAY | {"reason": "muster: in repair : reboot issued : reboot complete"},
        FEWER,
        FEWER | {"reason": "Low RealMemory (reported:515000 < 100.00% of configured:1030000)"},
    ],
)
def test_a_drain_of_ours_whose_reason_slurmctld_changed_stays_ours(node: dict[str, Any]) -> None:
    slurmctld = Slurmctld(**node)
    backend = backend_with(slurmctld)
    assert backend.look(["n0"])["n0"].ours
    backend.withdraw("n0", "in repair")
    assert (slurmctld.node["reason"], slurmctld.node["reason_set_by_user"]) == ("muster: in repair", "muster")
    slurmctld = Slurmctld(**node)
    backend_with(slurmctld).admit("n0", MARK)
    assert slurmctld.updates[-1] == ("State=UNDRAIN",)


@pytest.mark.parametrize(
    "node",
    [
        OURS | {"reason_set_by_user": "slurm"},
        AWAY | {"reason_set_by_user": "bob"},
        AWAY | {"reason": "fan : Not responding"},
        FEWER | {"state": ["IDLE", "DRAIN", "INVALID_REG"]},
        FEWER | {"reason_set_by_user": "bob"},
        FEWER | {"reason": "bad fan"},
        FEWER | {"extra": "muster: PASS 2025-01-01 certificate c-1"},
        FEWER | {"extra": "asset 4711"},
        FEWER | {"extra": ""},
        OURS | {"reason": "", "reason_set_by_user": None, "reason_changed_at": {"set": False}},
    ],
)
def test_what_may_be_another_persons_drain_stays(node: dict[str, Any]) -> None:
    slurmctld = Slurmctld(**node)
    backend = backend_with(slurmctld)
    backend.withdraw("n0", "in repair")
    with pytest.raises(LeftAlone):
        backend.admit("n0", MARK)
    assert slurmctld.updates == []


def test_a_node_that_slurm_conf_drains_is_shown_so() -> None:
    backend = backend_with(Slurmctld(state=["IDLE", "DRAIN"], reason="", reason_set_by_user=None))
    assert "slurm.conf" in backend.look(["n0"])["n0"].foreign


@pytest.mark.parametrize(
    ("state", "cpus", "waits"),
    [
        (["ALLOCATED", "CLOUD", "POWERING_UP"], 192, True),
        (["MIXED", "CLOUD", "POWERED_DOWN", "POWER_UP"], 8, True),
        (["ALLOCATED", "CLOUD"], 192, False),
        (["ALLOCATED", "CLOUD", "POWER_DOWN"], 192, False),
        (["IDLE", "CLOUD", "POWERED_DOWN"], 0, False),
        (["IDLE", "CLOUD", "POWERING_UP"], 0, False),
    ],
)
def test_the_drain_of_a_node_that_powers_up_for_a_job_waits(state: list[str], cpus: int, waits: bool) -> None:
    """slurmctld would requeue the job."""
    slurmctld = Slurmctld(state=state, alloc_cpus=cpus, reason="", extra="")
    with pytest.raises(LeftAlone) if waits else contextlib.nullcontext():
        backend_with(slurmctld).withdraw("n0", "registered, not admitted yet")
    assert bool(slurmctld.updates) is not waits


@pytest.mark.parametrize("flag", ["RESERVED", "PLANNED"])
@pytest.mark.parametrize("drained", [True, False])
def test_a_promise_is_no_use_of_a_node_that_is_drained(flag: str, drained: bool) -> None:
    """A new node that a person reserved, so that no job begins on it before its admission, is tested."""
    seen = backend_with(Slurmctld(**OURS | {"state": ["IDLE", flag, *(["DRAIN"] if drained else [])]})).look(["n0"])
    assert bool(seen["n0"].allocation) is not drained
    assert bool(seen["n0"].used_by) is not drained


@pytest.mark.parametrize(
    ("state", "free"),
    [
        (["DOWN", "DRAIN"], True),
        (["DOWN", "DRAIN", "NOT_RESPONDING"], True),
        (["IDLE", "DRAIN", "INVALID_REG"], True),
        (["DOWN"], False),
        (["IDLE", "DRAIN", "MAINTENANCE"], False),
        (["DOWN", "DRAIN", "REBOOT_ISSUED"], False),
        (["DOWN", "DRAIN", "A_NEW_FLAG"], False),
        (["DOWN", "DRAIN", "COMPLETING"], False),
    ],
)
def test_a_drained_node_that_is_down_is_free_and_not_idle(state: list[str], free: bool) -> None:
    """After a reboot that took longer than SlurmdTimeout, a test has to prove the repair before the node is opened."""
    seen = backend_with(Slurmctld(**OURS | {"state": state})).look(["n0"])["n0"]
    assert seen.apart
    assert bool(seen.allocation) is not free
    assert not seen.idle.idle


@pytest.mark.parametrize(
    ("state", "explains"), [("MAINTENANCE", True), ("REBOOT_ISSUED", True), ("FAIL", False), ("BLOCKED", False)]
)
def test_what_keeps_a_node_from_being_free_explains_a_restart_only_where_others_may_be_at_work(
    state: str, explains: bool
) -> None:
    seen = backend_with(Slurmctld(**OURS | {"state": [state, "DRAIN"]})).look(["n0"])["n0"]
    assert (bool(seen.worked_on), bool(seen.taken), bool(seen.apart)) == (explains, True, True)


LOST = OURS | {"state": ["DOWN", "DRAIN"], "boot_time": MOMENT}


@pytest.mark.parametrize(
    "node",
    [
        LOST,
        LOST | {"state": ["DOWN", "DRAIN", "RESERVED"]},
        LOST | {"reason": AWAY["reason"], "reason_set_by_user": "slurm"},
        LOST | {"reason": "muster: dead (was: Not responding)"},
        LOST | {"reason": "muster: dead (was: Node unexpectedly rebooted)"},
    ],
)
def test_a_node_that_slurmctld_lost_and_found_is_opened_by_a_test_since_its_last_start(node: dict[str, Any]) -> None:
    slurmctld = Slurmctld(**node)
    backend_with(slurmctld).admit("n0", since(+60))
    assert slurmctld.updates[-1] == ("State=RESUME",)


@pytest.mark.parametrize(
    ("change", "tested_s"),
    [
        ({}, -60),
        ({}, None),
        ({"boot_time": {"set": False, "number": 0}}, +60),
        ({"state": ["DOWN", "DRAIN", "NOT_RESPONDING"]}, +60),
        ({"state": ["DOWN", "DRAIN", "POWERED_DOWN"]}, +60),
        ({"state": ["DOWN", "DRAIN", "A_NEW_FLAG"]}, +60),
        ({"state": ["DOWN"]}, +60),
        ({"state": ["ERROR", "DRAIN"]}, +60),
        ({"reason": "muster: dead (was: psu)"}, +60),
        ({"reason": "muster: dead (was: Not responding to IPMI)"}, +60),
        ({"reason": "muster: dead (was: Not responding, set by alice)"}, +60),
        ({"reason": "muster: dead : Kill task failed", "reason_set_by_user": "slurm"}, +60),
        ({"reason": "gres/gpu count reported lower than configured (7 < 8)", "reason_set_by_user": "slurm"}, +60),
        ({"reason": "psu", "reason_set_by_user": "root"}, +60),
        ({"reason": "muster: dead", "reason_set_by_user": "root"}, +60),
    ],
    ids=str,
)
def test_a_node_that_is_down_otherwise_waits_for_a_person(change: dict[str, Any], tested_s: int | None) -> None:
    slurmctld = Slurmctld(**LOST | change)
    with pytest.raises(LeftAlone):
        backend_with(slurmctld).admit("n0", since(tested_s))
    assert slurmctld.updates == []


def test_a_node_that_is_down_without_a_reason_shows_so_behind_ours() -> None:
    """As with State=DOWN in slurm.conf: it is not taken for one that slurmctld lost."""
    slurmctld = Slurmctld(state=["DOWN"], reason="", reason_set_by_user="", boot_time=MOMENT)
    backend = backend_with(slurmctld)
    backend.withdraw("n0", "burn_in")
    with pytest.raises(LeftAlone):
        backend.admit("n0", since(+60))


@pytest.mark.parametrize(("user", "opened"), [("slurm", True), ("alice", False)])
def test_a_person_who_writes_what_slurmctld_does_is_not_taken_for_it(user: str, opened: bool) -> None:
    slurmctld = Slurmctld(state=["DOWN"], reason="Not responding", reason_set_by_user=user, boot_time=MOMENT)
    backend = backend_with(slurmctld)
    backend.withdraw("n0", "burn_in")
    assert bool(backend.look(["n0"])["n0"].booted) is opened


@pytest.mark.parametrize(
    ("reason", "user", "in_hand"),
    [
        ("psu swap", "alice", True),
        ("Not responding", "alice", True),
        ("psu swap", "root", True),
        ("no = 3 : fan (was: bad)", "alice", True),
        ("psu " * 60, "alice", True),
        ("Not responding", "slurm", False),
        ("batch job complete failure", "64030", False),
        ("", "", False),
    ],
)
def test_a_node_that_a_person_took_down_is_in_hand_also_behind_our_drain_until_it_is_up(
    reason: str, user: str, in_hand: bool
) -> None:
    slurmctld = Slurmctld(state=["DOWN"], reason=reason, reason_set_by_user=user, boot_time=MOMENT)
    backend = backend_with(slurmctld)
    for why in ("", "burn_in", "burn_in", "in repair"):
        if why:
            backend.withdraw("n0", why)
        seen = backend.look(["n0"])["n0"]
        assert (bool(seen.in_hand), bool(seen.apart), seen.ours) == (in_hand, True, bool(why))
        assert not in_hand or user in seen.foreign
        assert next_change(QUARANTINED, seen, "") is (Do.NOTHING if why else Do.CLOSE_AGAIN)
    assert len(slurmctld.updates) == 2
    slurmctld.node["reason"] += " : Not responding"
    assert bool(backend.look(["n0"])["n0"].in_hand) is in_hand
    slurmctld.node["state"] = ["IDLE", "DRAIN"]
    seen = backend.look(["n0"])["n0"]
    assert (seen.in_hand, seen.apart, seen.open) == ("", "", False)


@pytest.mark.parametrize(
    ("reason", "slurm_user", "by", "in_hand"),
    [
        ("Not responding", "root(0)", "root", False),
        ("Kill task failed", "root(0)", "root", False),
        ("Reboot ASAP", "root(0)", "0", False),
        ("psu swap", "root(0)", "root", True),
        ("Prolog error", "slurm(7)", "slurm", False),
        ("psu swap", "slurm(7)", "7", False),
        ("Kill task failed", "slurm(7)", "root", False),
        ("SlurmdSpoolDir is full", "slurm(7)", "0", False),
        ("NO NETWORK ADDRESS FOUND", "slurm(7)", "0", False),
        ("NHC: check_nv_healthmon", "slurm(7)", "root", True),
        ("Kill task failed", "slurm(7)", "alice", True),
    ],
)
def test_what_slurm_closes_itself_is_in_no_persons_hand_and_stays_closed(
    reason: str, slurm_user: str, by: str, in_hand: bool
) -> None:
    """slurmstepd drains as root, whatever SlurmUser is. As root, administrators give reasons too."""
    slurmctld = Slurmctld(user=slurm_user, state=["IDLE", "DRAIN"], reason=reason, reason_set_by_user=by)
    backend = backend_with(slurmctld)
    assert bool(backend.look(["n0"])["n0"].in_hand) is in_hand
    with pytest.raises(LeftAlone):
        backend.admit("n0", MARK)
    backend.withdraw("n0", "burn_in")
    assert slurmctld.updates == []


@pytest.mark.parametrize(
    ("state", "reason", "user"),
    [(["IDLE", "DRAIN"], "firmware", "alice"), (["IDLE", "DRAIN"], "Kill task failed", "root"),
     (["IDLE", "DRAIN"], "", None), (["DOWN", "DRAIN"], "psu", "alice"), (["IDLE", "FAIL"], "fan", "bob")],
)  # fmt: skip
def test_a_node_that_leaves_for_good_has_a_drain_of_ours_that_names_theirs(
    state: list[str], reason: str, user: str | None
) -> None:
    slurmctld = Slurmctld(state=state, reason=reason, reason_set_by_user=user)
    backend = backend_with(slurmctld)
    backend.withdraw("n0", "retired: sold")
    assert slurmctld.updates == []
    for why in ("retired: sold", "retired: sold", "retired: sold to Bob"):
        backend.withdraw("n0", why, for_good=True)
        kept = slurmctld.node["reason"]
        assert kept.startswith(f"muster: {why} (was: ")
        assert reason in kept
        assert (user or "unknown") in kept
    assert len(slurmctld.updates) == 2


_PIECES = st.lists(st.sampled_from([*"a:= (was),", " (was: ", ", set by "]), max_size=20).map("".join)


@hypothesis.given(_PIECES)
def test_nothing_in_a_reason_of_ours_reads_as_slurmctlds(text: str) -> None:
    slurmctld = Slurmctld(state=["IDLE"], reason="")
    backend = backend_with(slurmctld)
    backend.withdraw("n0", text)
    slurmctld.node |= {"state": ["DOWN", "DRAIN"], "boot_time": MOMENT}
    assert backend.look(["n0"])["n0"].booted
    backend.withdraw("n0", f"{'x' * 189}{text}")
    assert backend.look(["n0"])["n0"].booted


def test_what_a_finding_says_is_shown_as_it_is() -> None:
    slurmctld = Slurmctld(state=["IDLE"], reason="")
    why = "burn_in: gpu3 throttled for heat, by its hardware (and 1 more)."
    backend_with(slurmctld).withdraw("n0", why)
    assert slurmctld.node["reason"].endswith(why)


@hypothesis.given(_PIECES)
def test_nothing_in_a_reason_that_ours_keeps_reads_as_a_person_who_took_it_down(text: str) -> None:
    """As of `scontrol reboot nextstate=RESUME reason="bios update, set by Tuesday"`."""
    slurmctld = Slurmctld(state=["IDLE", "REBOOT_ISSUED"], reason=text, reason_set_by_user="alice")
    backend = backend_with(slurmctld)
    backend.withdraw("n0", "quarantine")
    slurmctld.node |= {"state": ["DOWN", "DRAIN"], "boot_time": MOMENT}
    assert backend.look(["n0"])["n0"].in_hand == ""


def test_one_that_serves_and_came_back_is_free_for_the_test_that_opens_it() -> None:
    seen = backend_with(Slurmctld(**LOST)).look(["n0"])["n0"]
    assert seen.idle.idle
    assert seen.stays_closed(since(-60))


def since(seconds: int | None) -> Mark:
    """An admission by a test that began so long after the node's last start, or by none."""
    start = datetime.datetime.fromtimestamp(MOMENT["number"], datetime.UTC)
    tested = None if seconds is None else start + datetime.timedelta(seconds=seconds)
    return dataclasses.replace(MARK, tested_since=tested)
