"""The contract of every admission backend, and what each changes in a real scheduler."""

from __future__ import annotations

import dataclasses
import datetime
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from muster import store
from muster.admission import backends, service
from muster.admission.backend import AdmissionBackend, Mark
from muster.admission.clusters import backend_of
from muster.admission.entry import move
from muster.errors import BadScheduler, BadSettings, LeftAlone
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
            patch.setenv(sshd.CONNECTION, sshd.connection(server.key_file))
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
    assert dataclasses.replace(it.look([name])[name], drain=withdrawn.drain) == withdrawn
    for _ in range(2):
        it.admit(name, MARK)
    assert withdrawn.open is not withdrawn.ours
    until(lambda: it.look([name])[name].idle.idle)


@pytest.mark.parametrize("backend", ["webhook", "kubernetes", *REAL], indirect=True)
@pytest.mark.parametrize("closed", [False, True])
def test_a_node_that_is_apart_is_not_opened_and_closed_for_when_it_returns(
    request: pytest.FixtureRequest, backend: tuple[AdmissionBackend, str, Apart], closed: bool
) -> None:
    """Down, not ready, unreachable. A receiver that says that a node is not to be touched gets no change of it."""
    it, name, make_apart = backend
    if closed:
        it.withdraw(name, "failed burn_in")
    make_apart()
    until(lambda: bool(it.look([name])[name].apart))
    with pytest.raises(LeftAlone):
        it.admit(name, MARK)
    if request.node.callspec.params["backend"] == "webhook":
        with pytest.raises(LeftAlone):
            it.withdraw(name, "failed integrity")
        return
    for _ in range(2):
        it.withdraw(name, "failed integrity")
    seen = it.look([name])[name]
    assert seen.apart
    assert seen.ours or (closed and seen.foreign), "Slurm keeps one reason, the last one"


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


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("import no_such_library", ModuleNotFoundError),
        ("", AttributeError),
        ("BACKEND = None", TypeError),
        ("1 +", SyntaxError),
    ],
)
def test_a_backend_that_cannot_be_loaded_is_one_sentence_with_the_cause(
    text: str, cause: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its kind is known: what is missing is a library of its own, or ``BACKEND``."""
    (tmp_path / "pbs.py").write_text(text)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": {"kind": "pbs"}}))
    try:
        with pytest.raises(BadSettings) as refused:
            backend_of("alpha")
    finally:
        sys.modules.pop("muster.admission.backends.pbs", None)
    assert isinstance(refused.value.__cause__, cause)
    assert str(refused.value).startswith("MUSTER_SCHEDULERS: alpha: the backend pbs cannot be loaded: ")


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


@pytest.mark.slow
@pytest.mark.needs_slurm
def test_an_admission_that_slurmctld_forgets_is_repeated_and_a_later_drain_of_ours_stays(
    alpha: Slurm, fleet_db: str
) -> None:
    """Killed before it has saved what it confirmed, it returns with the drain that the admission had lifted."""
    served("n0", state=State.QUALIFIED)
    alpha.stop("slurmctld")  # which saves its state
    shutil.copytree(alpha.folder / "state", alpha.folder / "before")
    alpha.start_controller()
    alpha.await_nodes(alpha.names)
    move("gpu-0001", State.PRODUCTION, "Ada", "needed now")
    until(lambda: not store.schedulers.places(waiting=True) and service.look(["gpu-0001"])["gpu-0001"].open)
    alpha.stop("slurmctld")
    shutil.rmtree(alpha.folder / "state")
    shutil.copytree(alpha.folder / "before", alpha.folder / "state")
    alpha.start_controller()
    alpha.await_nodes(alpha.names)
    assert service.look(["gpu-0001"])["gpu-0001"].ours
    until(lambda: not service.reconcile() and service.look(["gpu-0001"])["gpu-0001"].open)
    backend_of("alpha").withdraw("n0", "failed burn_in")  # by a controller whose records this one has lost
    assert len(service.reconcile()) == 1
    assert service.look(["gpu-0001"])["gpu-0001"].ours


KILLED = """
import os, signal, sys
from muster import store
from muster.admission import carrying, entry
from muster.rules.lifecycle.transitions import State
where, state = sys.argv[1:]
setattr(*{"before": (carrying, "_carry_out"), "after": (store.schedulers, "carried_out")}[where],
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
