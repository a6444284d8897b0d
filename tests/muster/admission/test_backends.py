"""The contract of every admission backend, and what each changes in a real scheduler."""

from __future__ import annotations

import datetime
import getpass
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from muster import store
from muster.admission import service
from muster.admission.backend import AdmissionBackend, Mark, Seen
from muster.admission.clusters import backend_of
from muster.admission.entry import move
from muster.admission.slurm import FEATURE
from muster.errors import BadScheduler, BadSettings, LeftAlone, SchedulerDown
from muster.model.runs import RunKey
from muster.model.states import State
from muster.store.queues import schedulers
from tests.muster import fleet
from tests.support.node_list import NodeList, NodeListSettings
from tests.support.servers import sshd
from tests.support.servers.kubernetes import Cluster
from tests.support.servers.receiver import Receiver
from tests.support.servers.slurm import Slurm
from tests.support.waiting import until

Apart = Callable[[], object]

SLURM = pytest.param("slurm", marks=[pytest.mark.slow, pytest.mark.needs_slurm])
OVER_SSH = pytest.param("slurm over SSH", marks=[*SLURM.marks, pytest.mark.needs_sshd])
KUBERNETES = pytest.param("delta", marks=[pytest.mark.slow, pytest.mark.needs_kubernetes])
MARK = Mark("PASS", datetime.date(2026, 11, 23), "c-1")
REAL = [KUBERNETES, SLURM, OVER_SSH]


@pytest.fixture(params=["records only", "worked example", "webhook", "kubernetes", *REAL])
def backend(request: pytest.FixtureRequest, fleet_db: str) -> Iterator[tuple[AdmissionBackend, str, Apart]]:
    """A backend, the name in it of a node that it may allocate, and what makes that node one to be left alone."""
    if request.param == "slurm":
        slurm: Slurm = request.getfixturevalue("alpha")
        yield backend_of("alpha"), "n0", lambda: slurm.update("n0", "State=DOWN", "Reason=psu")
        return
    if request.param == "delta":
        real = request.getfixturevalue("delta")
        unreachable = {"spec": {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}}
        yield backend_of("delta"), "n0", lambda: real.core.patch_node("n0", unreachable)
        return
    if request.param == "slurm over SSH":
        cluster: Slurm = request.getfixturevalue("alpha")
        patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
        with sshd.running(request.getfixturevalue("tmp_path") / "sshd") as server:
            login = {"host": "127.0.0.1", "port": server.port, "user": server.node().user,
                     "host_key": server.key_text()}  # fmt: skip
            chosen = {"kind": "slurm", "slurm_conf": str(cluster.conf), "login": login}
            patch.setenv("MUSTER_SCHEDULERS", json.dumps({"beta": chosen}))
            patch.setenv("MUSTER_SSH_KEY_FILE", str(server.key_file))
            yield backend_of("beta"), "n0", lambda: cluster.update("n0", "State=DOWN", "Reason=psu")
        return
    if request.param == "webhook":
        receiver: Receiver = request.getfixturevalue("receiver")
        yield backend_of("hook"), "n0", lambda: receiver.nodes["n0"].update(apart="powered down")
        return
    if request.param == "kubernetes":
        standin: Cluster = request.getfixturevalue("kubernetes")
        unknown = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        yield backend_of("kube"), "n0", lambda: standin.write("n0", "kubelet", unknown, status=True)
        return
    if request.param == "worked example":
        path = request.getfixturevalue("tmp_path") / "nodes"
        path.write_text("n0\nn1\n")
        yield NodeList(NodeListSettings(kind="node_list", path=path)), "n0", lambda: None
        return
    store.adoption.adopt([], "Ada", "serves", enrol=[("", fleet.new_node())])
    yield backend_of(""), "gpu-0001", lambda: None


def test_the_contract(backend: tuple[AdmissionBackend, str, Apart]) -> None:
    """What is called twice changes nothing the second time, and a name that is not there is not shown."""
    it, name, _ = backend
    assert it.look([name, "nowhere"]).keys() == {name}
    assert it.look([name])[name].open
    for _ in range(2):
        it.withdraw(name, "failed burn_in")
        withdrawn = it.look([name])[name]
    it.withdraw(name, "failed integrity")  # another reason closes it no further, and is no foreign one
    assert it.look([name])[name] == withdrawn
    for _ in range(2):
        it.admit(name, MARK)
    assert withdrawn.open is not withdrawn.ours
    until(lambda: it.look([name])[name].idle.idle)


@pytest.mark.parametrize("backend", ["webhook", "kubernetes", *REAL], indirect=True)
@pytest.mark.parametrize("closed", [False, True])
def test_a_node_that_is_apart_is_neither_opened_nor_closed(
    backend: tuple[AdmissionBackend, str, Apart], closed: bool
) -> None:
    """Reserved, powered down, not responding: no change of it is confirmed, so that the queue repeats it."""
    it, name, make_apart = backend
    if closed:
        it.withdraw(name, "failed burn_in")
    make_apart()
    until(lambda: bool(it.look([name])[name].apart))
    for change in (lambda: it.admit(name, MARK), lambda: it.withdraw(name, "failed integrity")):
        with pytest.raises(LeftAlone):
            change()


@pytest.mark.slow
@pytest.mark.needs_slurm
class TestSlurm:
    @pytest.fixture(autouse=True)
    def _cluster(self, alpha: Slurm, fleet_db: str) -> None:
        self.cluster, self.backend = alpha, backend_of("alpha")

    def seen(self, name: str = "n0") -> Seen:
        return self.backend.look([name])[name]

    def test_what_an_admission_leaves_beside_the_node(self) -> None:
        self.cluster.update("n0", "AvailableFeatures=h100")
        self.backend.withdraw("n0", "failed burn_in")
        assert "Reason=muster: failed burn_in" in self.cluster.show("n0")
        self.backend.withdraw("n0", "failed integrity")
        assert "Reason=muster: failed integrity" in self.cluster.show("n0")
        self.backend.admit("n0", MARK)
        shown = self.cluster.show("n0")
        assert f"AvailableFeatures=h100,{FEATURE}" in shown
        assert "Extra=muster: PASS 2026-11-23 certificate c-1" in shown
        self.cluster.call("scontrol", "reconfigure")
        assert not self.seen().marked
        until(lambda: self.seen().open)
        self.backend.admit("n0", MARK)
        assert self.seen().marked

    def test_extra_of_somebody_else_stays(self) -> None:
        self.cluster.update("n0", "Extra=asset 4711")
        self.backend.withdraw("n0", "x")
        self.backend.admit("n0", MARK)
        assert "Extra=asset 4711" in self.cluster.show("n0")

    @pytest.mark.parametrize("reason", ["bad fan", "muster - not quite", "fan muster: x"])
    def test_a_foreign_drain_stays_whatever_we_decide(self, reason: str) -> None:
        self.cluster.update("n0", "State=DRAIN", f"Reason={reason}")
        before = self.cluster.show("n0")
        self.backend.withdraw("n0", "failed burn_in")
        with pytest.raises(LeftAlone):
            self.backend.admit("n0", MARK)
        assert self.cluster.show("n0").split("Reason=")[1] == before.split("Reason=")[1]

    def test_our_words_under_another_user_are_foreign(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backend.withdraw("n0", "failed burn_in")
        monkeypatch.setattr(self.backend, "_user", "muster")
        assert not self.seen().ours
        with pytest.raises(LeftAlone):
            self.backend.admit("n0", MARK)

    def test_a_note_on_an_open_node_does_not_stop_a_withdrawal(self) -> None:
        self.cluster.update("n0", "Reason=ticket 12")
        self.backend.withdraw("n0", "failed burn_in")
        assert self.seen().ours

    @pytest.mark.parametrize("state", ["DOWN", "FAIL"])
    def test_a_node_that_somebody_took_down_is_left_alone(self, state: str) -> None:
        self.cluster.update("n0", f"State={state}", "Reason=psu")
        with pytest.raises(LeftAlone):
            self.backend.withdraw("n0", "x")
        assert self.seen().apart
        assert "Reason=psu" in self.cluster.show("n0")
        assert self.seen().allocation.allocated

    def test_a_reserved_node_is_neither_tested_nor_drained(self) -> None:
        self.cluster.call("scontrol", "create", "reservation", "ReservationName=r", "StartTime=now", "Duration=60",
                          "Nodes=n0", "Users=root", "Flags=ignore_jobs")  # fmt: skip
        try:
            until(lambda: bool(self.seen().apart))
            assert not self.seen().idle.idle
            with pytest.raises(LeftAlone):
                self.backend.withdraw("n0", "x")
        finally:
            self.cluster.call("scontrol", "delete", "ReservationName=r")
        until(lambda: self.seen().open)

    def test_a_node_that_does_not_respond_is_left_alone(self) -> None:
        self.cluster.stop("n3")
        try:
            until(lambda: self.cluster.call("scontrol", "update", "NodeName=n3", "State=RESUME", check=False) == ""
                  and bool(self.seen("n3").apart), 60)  # fmt: skip
            with pytest.raises(LeftAlone):
                self.backend.withdraw("n3", "x")
        finally:
            self.cluster.start_node("n3")
            self.cluster.await_nodes(["n3"])

    def test_a_job_is_named_and_survives_the_withdrawal(self) -> None:
        job = self.cluster.call("sbatch", "--parsable", "-w", "n1", "-o", "/dev/null", "--wrap", "sleep 60").strip()
        until(lambda: bool(self.seen("n1").used_by))
        self.backend.withdraw("n1", "revalidation")
        assert f"job {job} of " in self.seen("n1").allocation.by
        assert not self.seen("n1").idle.idle
        assert "R" in self.cluster.call("squeue", "-h", "-j", job, "-o", "%t")
        self.backend.admit("n1", MARK)
        until(lambda: self.seen("n1").open)

    def test_a_line_in_a_jobs_name_is_no_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        chosen = {"kind": "slurm", "slurm_conf": str(self.cluster.conf), "end_corrupted_jobs": True}
        monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": chosen}))
        submit = ("sbatch", "--parsable", "-o", "/dev/null", "--chdir=/", "--wrap", "sleep 60")
        other = self.cluster.call(*submit, "-w", "n2").strip()
        job = self.cluster.call(*submit, "-w", "n1", f"--job-name=a\n{other}|root|x").strip()
        until(lambda: bool(self.seen("n1").used_by) and bool(self.seen("n2").used_by))
        user = getpass.getuser()
        assert self.seen("n1").used_by == f"Slurm job {job} of {user}"
        end_jobs = backend_of("alpha").end_jobs
        assert end_jobs
        assert list(end_jobs("n1")) == [f"{job} (a {other}|root|x) of {user}"]
        assert self.cluster.call("squeue", "-h", "-j", other, "-o", "%t").strip() == "R"

    def test_a_node_whose_job_is_suspended_is_not_idle(self) -> None:
        job = self.cluster.call("sbatch", "--parsable", "-w", "n1", "-o", "/dev/null", "--wrap", "sleep 60").strip()
        until(lambda: bool(self.seen("n1").used_by))
        self.cluster.call("scontrol", "suspend", job)
        until(lambda: "idle" in self.cluster.call("sinfo", "-h", "-n", "n1", "-o", "%T"))
        assert f"job {job} of " in self.seen("n1").used_by
        self.cluster.call("scancel", job)

    @pytest.mark.parametrize("moment", ["the user is looked up", "the certificate is shown"])
    def test_a_drain_between_our_look_and_our_change_stays(self, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Over SSH each command is a login of its own, so seconds may lie between them."""
        self.backend.withdraw("n0", "failed burn_in")
        method = "_our_user" if moment == "the user is looked up" else "_update"
        ordinary, calls = getattr(self.backend, method), []

        def slow(*args: str) -> object:
            found = ordinary(*args)
            if not calls:
                self.cluster.update("n0", "State=DRAIN", "Reason=bad fan")
            calls.append(args)
            return found

        monkeypatch.setattr(self.backend, method, slow)
        with pytest.raises(LeftAlone):
            self.backend.admit("n0", MARK)
        assert "Reason=bad fan" in self.cluster.show("n0")
        assert "DRAIN" in self.cluster.show("n0")

    @pytest.mark.parametrize("tested", ["before", "after"])
    def test_a_person_who_asks_for_a_test_gets_the_node_opened_by_a_later_pass_alone(self, tested: str) -> None:
        self.cluster.update("n0", "State=DRAIN", "Reason=ECC? muster:verify please")
        seen = self.seen()
        assert (seen.verify, seen.idle.idle, seen.ours) == (True, True, False)
        assert seen.foreign_since
        shift = datetime.timedelta(seconds=5 if tested == "after" else -5)
        mark = Mark("PASS", MARK.date, "c-1", seen.foreign_since + shift)
        if tested == "after":
            self.backend.admit("n0", mark)
        else:
            with pytest.raises(LeftAlone):
                self.backend.admit("n0", mark)
        until(lambda: self.seen().open is (tested == "after"))

    def test_a_controller_that_is_away_or_hangs_is_one_error_and_no_empty_cluster(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MUSTER_SCHEDULER_TIMEOUT_S", "2")
        hasty = backend_of("alpha")
        self.cluster.process("slurmctld").send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(SchedulerDown):
                hasty.look(["n0"])
        finally:
            self.cluster.process("slurmctld").send_signal(signal.SIGCONT)
        self.cluster.stop("slurmctld")
        try:
            for act in (lambda: self.backend.look(["n0"]), lambda: self.backend.withdraw("n0", "x")):
                with pytest.raises(SchedulerDown):
                    act()
        finally:
            self.cluster.start_controller()
            self.cluster.await_nodes(self.cluster.names)


UNCONFIGURED: list[dict[str, Any]] = [
    {}, {"alpha": {}}, {"alpha": {"kind": "pbs"}}, {"alpha": {"kind": "slurm", "slurmconf": "/x"}},
    {"alpha": {"kind": "slurm", "login": {"host": "login-1"}}},
]  # fmt: skip


@pytest.mark.parametrize("chosen", UNCONFIGURED)
def test_a_cluster_that_is_not_configured_is_one_sentence(
    chosen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps(chosen))
    with pytest.raises(BadSettings if chosen else BadScheduler):
        backend_of("alpha")


def served(there: str, node: str = "gpu-0001", state: State = State.PRODUCTION) -> None:
    """A node that is qualified or in production, and its place in Slurm."""
    store.nodes.add(fleet.new_node(node))
    store.schedulers.assign(node, "alpha", there, "Ada", "rack 1")
    assert service.carry_out(node) == ""
    fleet.qualify(node)
    if state is State.PRODUCTION:
        move(node, state, "Ada", "needed now")


@pytest.mark.slow
@pytest.mark.needs_slurm
@pytest.mark.parametrize("options", [(), ("-c",)], ids=["with its state", "without its state"])
def test_a_slurmctld_that_restarts_ends_with_what_the_records_say(
    alpha: Slurm, fleet_db: str, options: tuple[str, ...]
) -> None:
    """Without its state it forgets every drain: a quarantined node is drained again, and an admitted one stays open."""
    served("n0")
    served("n1", "gpu-0002")
    alpha.stop("slurmctld")
    move("gpu-0001", State.QUARANTINE, "Ada", "noise")
    waiting = store.schedulers.place("gpu-0001")
    assert waiting
    assert waiting.waits
    alpha.start_controller(*options)
    alpha.await_nodes(alpha.names)
    until(lambda: not service.reconcile() and not store.schedulers.places(waiting=True))
    until(lambda: service.look(["gpu-0002"])["gpu-0002"].open)
    assert service.look(["gpu-0001"])["gpu-0001"].ours
    alpha.stop("slurmctld")
    alpha.start_controller(*options)
    alpha.await_nodes(alpha.names)
    until(lambda: not service.reconcile() and not store.schedulers.places(waiting=True))
    assert service.look(["gpu-0001"])["gpu-0001"].ours
    place = store.schedulers.place("gpu-0001")
    assert place
    assert bool(place.question) is bool(options)


KILLED = """
import os, signal, sys
from muster import store
from muster.admission import entry, service
from muster.rules.transitions import State
where, state = sys.argv[1:]
setattr(*{"before": (service, "_carry_out"), "after": (store.schedulers, "carried_out")}[where],
        lambda *_: os.kill(os.getpid(), signal.SIGKILL))
entry.move("gpu-0001", State(state), "Ada", "decided")
"""
"""Moves a node, and is killed when the records have the change: before the scheduler gets it, or after it confirmed."""


@pytest.mark.slow
@pytest.mark.needs_slurm
@pytest.mark.parametrize("state", [State.PRODUCTION, State.QUARANTINE])
@pytest.mark.parametrize("where", ["before", "after"])
def test_a_controller_that_is_killed_between_records_and_slurm_leaves_what_the_records_say(
    alpha: Slurm, fleet_db: str, monkeypatch: pytest.MonkeyPatch, where: str, state: State
) -> None:
    """The next process carries the change out, once the one that was killed cannot be at it any more."""
    was_open = state is State.QUARANTINE
    served("n3", state=State.PRODUCTION if was_open else State.QUALIFIED)
    until(lambda: not service.look(["gpu-0001"])["gpu-0001"].apart)  # after an UNDRAIN it does not respond for a second
    done = subprocess.run([sys.executable, "-c", KILLED, where, state], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert store.nodes.get("gpu-0001").state is state
    until(lambda: not service.look(["gpu-0001"])["gpu-0001"].apart)
    assert service.look(["gpu-0001"])["gpu-0001"].open is (was_open is (where == "before"))
    assert not service.idle(["gpu-0001"])["gpu-0001"].idle
    assert service.carry_out("gpu-0001"), "the other process may still be at it"
    later = schedulers.access.now() + datetime.timedelta(hours=1)
    monkeypatch.setattr(schedulers.access, "now", lambda: later)
    until(lambda: not service.reconcile() and not store.schedulers.places(waiting=True))
    until(lambda: not service.look(["gpu-0001"])["gpu-0001"].apart)
    seen = service.look(["gpu-0001"])["gpu-0001"]
    assert (seen.open, seen.ours) == (not was_open, was_open)
    assert alpha.show("n3").count("certificate") == (not was_open)


@pytest.mark.slow
@pytest.mark.needs_slurm
def test_a_job_that_arrives_while_a_node_is_claimed_keeps_it(
    alpha: Slurm, fleet_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look that found the node idle and its drain: the test gives way, and the job runs on."""
    served("n2")
    until(lambda: service.idle(["gpu-0001"])["gpu-0001"].idle)
    job = alpha.call("sbatch", "--parsable", "-w", "n2", "-o", "/dev/null", "--wrap", "sleep 60").strip()
    until(lambda: alpha.call("squeue", "-h", "-j", job, "-o", "%t").strip() == "R")
    store.leases.acquire("gpu-0001", RunKey("node_revalidation", "r"))
    with pytest.raises(LeftAlone):
        service.withdraw_for_test("gpu-0001", "revalidation r")
    store.leases.release(RunKey("node_revalidation", "r"), "not begun")
    assert service.carry_out("gpu-0001") == ""
    until(lambda: service.look(["gpu-0001"])["gpu-0001"].open)
    assert alpha.call("squeue", "-h", "-j", job, "-o", "%t").strip() == "R"


@pytest.mark.slow
@pytest.mark.needs_slurm
def test_a_reason_in_slurm_that_is_no_utf8_freezes_no_drain_and_no_admission(alpha: Slurm, fleet_db: str) -> None:
    odd, other = alpha.names[:2]
    alpha.call("scontrol", "update", f"NodeName={odd}", "State=DRAIN", "Reason=ventilateur cass\udce9")
    try:
        seen = backend_of("alpha").look([odd, other])
        assert not seen[odd].open
        assert seen[odd].foreign
        assert seen[other].open
        backend_of("alpha").withdraw(other, "failed")
        assert backend_of("alpha").look([odd, other])[other].ours
    finally:
        alpha.call("scontrol", "update", f"NodeName={odd}", "State=RESUME")
