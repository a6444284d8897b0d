"""A repair from evidence to proof, over a real sshd, and a power cycle by OpenStack's Redfish emulator.

The machine that runs the tests is not rebooted: ``systemctl reboot`` is a stand-in that changes the boot id that the
server shows (MUSTER_BOOT_ID_FILE), after a while, or never. ``nvidia-smi`` is a stand-in that refuses to reset a GPU in
use, with the original's words and status. What else runs on this machine would keep each repair away, so a stand-in
says whether it is in use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from muster import store
from muster.errors import LeaseLost, NodeLeased, SchedulerDown
from muster.integration import closing
from muster.model.nodes import Node
from muster.model.repairs import Bundle, Fault, Outcome
from muster.model.runs import RunKey
from muster.model.states import State
from muster.operators.lifecycle import repair
from muster.remote import repairing, ssh
from muster.remote.login import Credentials
from muster.remote.repairing import Done, Sent
from muster.remote.zipapp import AgentFile
from muster.store.database import access, engine
from muster.store.database.health import SweepRow
from muster_criteria.repair.ladder import Rung
from muster_criteria.sku_files.skus import SHIPPED
from tests.muster import fleet
from tests.support import standin
from tests.support.servers import bmc as bmcs
from tests.support.servers import sshd

pytestmark = pytest.mark.needs_sshd

KEY = RunKey("repair", "this-node__1")
FAULT = {"node": "this-node", "fault": "gpu_memory", "device": "gpu3", "reason": "XID 95 on gpu3"}
RETURN_S = 4.0
SMI = """#!/bin/sh
echo "$@" >>{folder}/calls
[ ! -e {folder}/in-use ] || {{
  echo "GPU 00000000:4E:00.0 is currently in use by one or more other processes (In use by another client)."
  exit 255
}}
echo "GPU 00000000:4E:00.0 was successfully reset."
"""
REBOOT = """#!/bin/sh
echo "$@" >>{folder}/calls
[ -e {folder}/never ] || (sleep 0.5; echo after >{folder}/boot_id) >/dev/null 2>&1 &
"""


@dataclasses.dataclass
class Bench:
    folder: Path
    server: sshd.Sshd

    def connect(self, node: Node) -> ssh.paramiko.SSHClient:
        return ssh.connect(node, Credentials(key_file=str(self.server.key_file)), timeout=30.0)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def node(self) -> Node:
        return store.nodes.get("this-node")

    def carry_out(self, rung: Rung, last_boot: str = "", limit_s: float = RETURN_S) -> Done:
        """Carry a rung out, and look until the node is back or its time is over."""
        done = repairing.carry_out(
            rung, self.node(), Fault("gpu_memory", "gpu3", "gpu 1650423000003"), self.connect, last_boot=last_boot
        )
        began = time.monotonic()
        while isinstance(done, Sent):
            waited = time.monotonic() - began
            done = repairing.returned(self.node(), self.connect, done, waited, limit_s) or done
        return done


@pytest.fixture
def bench(tmp_path: Path, sqlite_db: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("nvidia-smi", SMI), ("systemctl", REBOOT)):
        (tools / name).write_text(text.format(folder=tmp_path))
        (tools / name).chmod(0o700)
    (tmp_path / "boot_id").write_text("before\n")
    policy = (SHIPPED / "policies" / "repair.yaml").read_text()
    rungs = "[reset_gpu, reboot, power_cycle]"
    (tmp_path / "skus" / "policies").mkdir(parents=True)
    switched_on = policy.replace("enabled: []", f"enabled: [{{label: repair, value: auto, rungs: {rungs}}}]")
    (tmp_path / "skus" / "policies" / "repair.yaml").write_text(switched_on)
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path / "skus"))
    env = {"PATH": f"{tools}:/usr/bin:/bin", "MUSTER_BOOT_ID_FILE": str(tmp_path / "boot_id")}
    monkeypatch.setattr(repair, "build_agent", lambda _: AgentFile(*standin.write(tmp_path / "cache")))
    with sshd.running(tmp_path / "node", env=env) as server:
        there = server.node()
        described = fleet.new_node(
            there.name, host=there.host, port=there.port, user=there.user, work_dir=there.work_dir,
            host_key=" ".join(there.host_key.split()[:2]), labels={"repair": "auto"}, serials={"gpu3": "1650423000003"},
            launch={"kind": "python", "python": sys.executable},
        )  # fmt: skip
        store.nodes.add(described)
        store.nodes.move(there.name, State.QUARANTINE, "Ada", "XID 95")
        yield Bench(tmp_path, server)


def begun(fault: dict[str, str] | None = None) -> int:
    """A repair whose evidence was taken."""
    incident = repair.claim(KEY, fault or FAULT)
    store.repairs.keep_bundle(incident, Bundle("/archive/bundle", "ab" * 32, 100))
    return incident


def act(bench: Bench, incident: int) -> dict[str, object]:
    ordered = repair.act(KEY, incident, bench.connect)
    while not repair.returned(ordered, incident, bench.connect, limit_s=RETURN_S):
        time.sleep(0.2)
    return ordered


def test_a_repair_counts_only_when_the_tests_that_can_see_the_fault_passed(bench: Bench) -> None:
    incident = begun()
    done = act(bench, incident)
    assert done["rung"] == "reset_gpu"
    assert bench.calls == ["--gpu-reset -i 1650423000003"]
    assert bench.node().state is State.REGISTERED
    repair.release(KEY)
    (proof,) = repair.proofs(done, incident)
    assert proof["conf"]["level"] == "standard"
    assert store.repairs.prove("this-node") == [], "nothing was tested yet"
    fleet.qualify("this-node", "this-node__short", level="short")
    assert store.repairs.prove("this-node") == [], "at this level the tests do not see the fault"
    open_points = store.admission.decision("this-node").reasons  # type: ignore[union-attr]
    assert any(each.startswith(f"incident {incident} ") for each in open_points)
    fleet.qualify("this-node", "this-node__standard", level="standard")
    open_points = store.admission.decision("this-node").reasons  # type: ignore[union-attr]
    assert not any(each.startswith(f"incident {incident} ") for each in open_points)
    assert store.repairs.prove("this-node") == [incident]
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert (attempt.outcome, attempt.proved) == (Outcome.SUCCEEDED, True)
    assert store.repairs.find("this-node", still_open=True) == []


def test_a_pass_from_before_a_repair_proves_nothing_even_if_the_clock_was_ahead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.nodes.move("this-node", State.TRIAGE, "Ada", "looks sound")
    store.nodes.move("this-node", State.REGISTERED, "Ada", "looks sound")
    now = access.now
    with monkeypatch.context() as ahead:
        ahead.setattr(access, "now", lambda: now() + datetime.timedelta(hours=2))
        fleet.qualify("this-node", "this-node__ahead", level="standard")
    store.nodes.move("this-node", State.QUARANTINE, "Ada", "XID 95")
    incident = begun()
    act(bench, incident)
    assert store.repairs.prove("this-node") == []
    repair.release(KEY)
    fleet.qualify("this-node", "this-node__after", level="standard")
    assert store.repairs.prove("this-node") == [incident]


def test_a_gpu_in_use_is_not_reset_and_costs_no_budget(bench: Bench) -> None:
    (bench.folder / "in-use").touch()
    incident = begun()
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert attempt.outcome is Outcome.TRANSIENT
    assert bench.node().state is State.QUARANTINE, "it does not stay in repair"
    (bench.folder / "in-use").unlink()
    assert act(bench, incident)["rung"] == "reset_gpu", "the same rung: it was not carried out"


@pytest.mark.parametrize(
    "said", ['{"busy": true, "sentence": "foreign GPU processes: python"}', "", '{"busy": 0}', "[]"]
)
def test_a_node_whose_own_processes_use_it_or_may_is_left_alone(bench: Bench, said: str) -> None:
    (bench.server.home / "usage").write_text(said)
    incident = begun()
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []
    assert store.repairs.history(store.repairs.get_incident(incident)) == []
    assert store.repairs.get_incident(incident).asks, "its scheduler calls it free: somebody has to look"


def test_a_driver_that_is_in_use_may_be_half_unloaded_so_the_attempt_counts(bench: Bench) -> None:
    tool = bench.folder / "tools" / "modprobe"
    tool.write_text("#!/bin/sh\necho 'modprobe: FATAL: Module nvidia_drm is in use.' >&2; exit 1\n")
    tool.chmod(0o700)
    assert bench.carry_out(Rung.RELOAD_DRIVER).outcome is Outcome.PERMANENT


def test_a_node_in_shadow_mode_is_a_persons(bench: Bench) -> None:
    store.nodes.move("this-node", State.REGISTERED, "Ada", "it serves already")
    store.adoption.adopt(["this-node"], "Ada", "it serves already")
    with pytest.raises(AirflowFailException):
        repair.claim(KEY, FAULT)


def test_a_node_that_its_scheduler_does_not_call_free_is_left_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident = begun()

    def down(node: str) -> None:
        raise SchedulerDown("slurmctld does not answer")

    monkeypatch.setattr(repair.service, "allocation", down)
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []
    assert store.repairs.history(store.repairs.get_incident(incident)) == []


def test_a_job_that_begins_after_the_reservation_stops_the_act(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    incident, words = begun(), iter(["", "job 17 of ada"])
    monkeypatch.setattr(repair, "allocated", lambda *_: next(words))
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    assert bench.calls == []
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert attempt.outcome is Outcome.TRANSIENT


def test_nothing_is_repaired_without_evidence_or_the_lease(bench: Bench) -> None:
    incident = repair.claim(KEY, FAULT)
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    store.repairs.keep_bundle(incident, Bundle("/archive/bundle", "ab" * 32, 100))
    repair.release(KEY)
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    with pytest.raises(LeaseLost):
        store.repairs.reserve(incident, "reset_gpu", KEY)
    assert bench.calls == []


def test_two_repairs_never_hold_one_node(bench: Bench) -> None:
    begun()
    with pytest.raises(AirflowFailException):
        repair.claim(RunKey("repair", "other"), FAULT)
    with pytest.raises(NodeLeased):
        store.leases.acquire("this-node", RunKey("node_qualification", "x"))


def test_an_attempt_whose_worker_was_lost_counts_and_is_not_repeated(bench: Bench) -> None:
    incident = begun()
    store.repairs.reserve(incident, "reset_gpu", KEY)
    with pytest.raises(NodeLeased):
        store.repairs.reserve(incident, "reset_gpu", KEY)
    with pytest.raises(AirflowFailException):
        act(bench, incident)
    assert bench.calls == []
    assert act(bench, incident)["rung"] == "reboot", "the next rung, since the reset may have been carried out"


def test_a_run_that_is_over_leaves_no_node_in_repair(bench: Bench) -> None:
    """Its tasks were killed, and Airflow's listener or housekeeping releases its node."""
    incident = begun()
    store.repairs.reserve(incident, "reboot", KEY)
    assert closing.release(KEY, "its run failed") == ["this-node"]
    (attempt,) = store.repairs.history(store.repairs.get_incident(incident))
    assert (attempt.outcome, bench.node().state) == (Outcome.PERMANENT, State.QUARANTINE)


def test_a_history_that_cannot_be_read_stops(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    incident = begun()

    def broken(incident: object) -> None:
        raise OSError("the disk")

    monkeypatch.setattr(store.repairs, "history", broken)
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []


def test_a_reboot_is_known_by_another_boot_id_and_a_node_that_never_returns_is_no_success(bench: Bench) -> None:
    done = bench.carry_out(Rung.REBOOT)
    assert (done.outcome, bench.calls) == (Outcome.SUCCEEDED, ["reboot"])
    bench.server.stop()
    assert bench.carry_out(Rung.POWER_CYCLE).outcome is Outcome.TRANSIENT, "no boot id is known of it"
    bench.server.start()
    (bench.folder / "never").touch()
    assert bench.carry_out(Rung.REBOOT).outcome is Outcome.PERMANENT


def test_a_node_that_takes_no_login_is_not_rebooted_over_ssh(bench: Bench) -> None:
    bench.server.stop()
    assert bench.carry_out(Rung.REBOOT).outcome is Outcome.TRANSIENT
    assert bench.carry_out(Rung.RESET_GPU).outcome is Outcome.TRANSIENT


def with_bmc(bench: Bench, url: str) -> None:
    node = bench.node()
    store.nodes.add_all([(
        "", fleet.new_node(node.name, host=node.host, port=node.port, user=node.user, work_dir=node.work_dir,
                           host_key=node.host_key, labels=node.labels, launch=node.launch, bmc={"url": url}),
    )])  # fmt: skip


@contextlib.contextmanager
def powered_by(bench: Bench, url: str) -> Iterator[None]:
    """The node has the power that the emulator's system has: it is gone while that is off, and boots with it."""
    over = threading.Event()

    def follow() -> None:
        with httpx.Client(base_url=url) as bmc:
            path = bmc.get("/redfish/v1/Systems").json()["Members"][0]["@odata.id"]
            on = True
            while not over.wait(0.1):
                if (now := bmc.get(path).json()["PowerState"] == "On") is on:
                    continue
                if now:
                    (bench.folder / "boot_id").write_text("after the power came back\n")
                    bench.server.start()
                else:
                    bench.server.stop()
                on = now

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)
        # A server ends with the thread that started it.
        bench.server.stop()
        bench.server.start()


def test_a_power_cycle_by_the_bmc(bench: Bench) -> None:
    assert bench.carry_out(Rung.POWER_CYCLE).outcome is Outcome.TRANSIENT, "no BMC is enrolled"
    with bmcs.emulator() as url:
        with_bmc(bench, url)
        with powered_by(bench, url):
            done = bench.carry_out(Rung.POWER_CYCLE, limit_s=60.0)
        assert done.outcome is Outcome.SUCCEEDED
        assert "after the power came back" in done.detail
        lost = bench.carry_out(Rung.POWER_CYCLE)
        assert lost.outcome is Outcome.PERMANENT, "the emulator resets its own system alone: this node never boots"
    down = bench.carry_out(Rung.POWER_CYCLE)
    assert down.outcome is Outcome.TRANSIENT, "a BMC that is down got no order"


def test_a_node_that_takes_no_login_is_restarted_by_its_bmc(bench: Bench) -> None:
    bench.server.stop()
    with bmcs.emulator() as url:
        with_bmc(bench, url)
        with powered_by(bench, url):
            done = bench.carry_out(Rung.POWER_CYCLE, "before", limit_s=60.0)
    assert done.outcome is Outcome.SUCCEEDED


def test_an_order_to_a_bmc_is_sent_once_and_an_unclear_answer_counts(bench: Bench) -> None:
    reset = {"#ComputerSystem.Reset": {"target": "/reset", "ResetType@Redfish.AllowableValues": ["PowerCycle"]}}
    documents: dict[str, object] = {
        "/redfish/v1/": {"Systems": {"@odata.id": "/systems"}}, "/systems": {"Members": [{"@odata.id": "/systems/1"}]},
        "/systems/1": {"Actions": reset},
    }  # fmt: skip

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        return (503, {}, b"") if path == "/reset" else (200, {}, json.dumps(documents.get(path, {})).encode())

    with bmcs.answering(reply) as bmc:
        with_bmc(bench, bmc.url)
        assert bench.carry_out(Rung.POWER_CYCLE).outcome is Outcome.PERMANENT
    assert bmc.requests.count("POST /reset") == 1


@pytest.mark.parametrize(("listed", "target"), [
    (1, "/reset"), (["GracefulShutdown"], "/reset"), (["PowerCycle"], "https://elsewhere.example.org/reset"),
])  # fmt: skip
def test_what_a_bmc_does_not_offer_is_not_ordered(bench: Bench, listed: object, target: str) -> None:
    reset = {"#ComputerSystem.Reset": {"target": target, "ResetType@Redfish.AllowableValues": listed}}
    documents: dict[str, object] = {
        "/redfish/v1/": {"Systems": {"@odata.id": "/systems"}}, "/systems": {"Members": [{"@odata.id": "/systems/1"}]},
        "/systems/1": {"Actions": reset},
    }  # fmt: skip
    with bmcs.answering(lambda path: (200, {}, json.dumps(documents.get(path, {})).encode())) as bmc:
        with_bmc(bench, bmc.url)
        found = bench.carry_out(Rung.POWER_CYCLE)
    sent = [each for each in bmc.requests if each == "POST /reset"]
    assert (found.outcome, sent) == (Outcome.TRANSIENT, []) if listed != 1 else (Outcome.PERMANENT, ["POST /reset"])


def test_a_node_that_is_paused_after_the_claim_is_left_alone(bench: Bench) -> None:
    incident = begun()
    store.pauses.pause("this-node", access.now() + datetime.timedelta(days=1), "Ada", "its chassis is open")
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []


def test_a_boot_that_was_seen_before_a_repair_is_not_the_last_one(bench: Bench) -> None:
    incident = begun()
    with engine.writing() as session:
        session.add(SweepRow(node="this-node", boot_id="a", kernel_s=0.0, counters={}, swept_at=access.now()))
    assert repair._last_boot(store.repairs.get_incident(incident)) == "a"
    act(bench, incident)
    assert repair._last_boot(store.repairs.get_incident(incident)) == ""


def test_what_is_switched_off_is_a_persons_after_the_evidence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SKU_PATH", "")
    incident = begun()
    with pytest.raises(AirflowSkipException):
        act(bench, incident)
    assert bench.calls == []
    assert bench.node().state is State.QUARANTINE
    assert store.repairs.get_incident(incident).asks
    assert any("waits for a person" in each.reason for each in store.nodes.events("this-node"))


def test_only_a_node_out_of_service_is_repaired(bench: Bench) -> None:
    store.nodes.move("this-node", State.REGISTERED, "Ada", "repaired by hand")
    with pytest.raises(AirflowFailException):
        repair.claim(KEY, FAULT)
    assert store.leases.get("this-node") is None


def test_a_paused_node_and_an_unknown_fault_are_refused(bench: Bench) -> None:
    with pytest.raises(AirflowFailException):
        repair.claim(KEY, FAULT | {"fault": "no_such"})
    store.pauses.pause("this-node", store.waivers.end_of("2099-12-31"), "Ada", "a technician works on it")
    with pytest.raises(AirflowFailException):
        repair.claim(KEY, FAULT)


def test_the_sudoers_file_allows_what_a_repair_runs_and_no_more() -> None:
    text = (Path(__file__).parents[4] / "docs" / "examples" / "muster-repair.sudoers").read_text()
    listed = text.split("MUSTER_REPAIRS =")[1].split("\n\n")[0].replace("\\\n", "").split(", ")
    allowed = {" ".join(each.split()).replace("/usr/sbin/", "").replace("/usr/bin/", "") for each in listed}
    modules = " ".join(repairing.MODULES)
    assert allowed == {
        "nvidia-smi ^--gpu-reset -i [0-9A-Za-z-]{6,64}$", f"modprobe -r {modules}", "modprobe nvidia",
        "systemctl reboot",
    }  # fmt: skip
