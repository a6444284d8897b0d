"""Reboots over a real sshd, and power cycles by OpenStack's Redfish emulator, on the bench of ``repairs``."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest

from muster import store
from muster.model.repairs import Outcome
from muster.operators.lifecycle import repair
from muster.remote import repairing
from muster.remote.bmc.redfish_client import Client
from muster.store.database import access, engine
from muster.store.database.health import SweepRow
from muster_criteria.repair.ladder import Rung
from tests.muster import fleet
from tests.muster.operators.lifecycle.repairs import Bench, act, begun
from tests.support.servers import bmc as bmcs

pytestmark = pytest.mark.needs_sshd


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


def test_a_gpu_that_shares_its_boards_serial_is_reset_by_its_uuid(bench: Bench) -> None:
    uuid = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"
    assert bench.carry_out(Rung.RESET_GPU, part=f"gpu 1650000000001/{uuid}").outcome is Outcome.SUCCEEDED
    assert bench.calls == [f"--gpu-reset -i {uuid}"]


def with_bmc(bench: Bench, url: str, **more: str) -> None:
    node = bench.node()
    store.nodes.add_all([(
        "", fleet.new_node(node.name, host=node.host, port=node.port, user=node.user, work_dir=node.work_dir,
                           host_key=node.host_key, labels=node.labels, launch=node.launch, bmc={"url": url, **more}),
    )])  # fmt: skip


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of reset that BMCs are sent."""
    sent: list[str] = []
    post = Client.post

    def noted(self: Client, path: str, body: dict[str, str]) -> tuple[int, str]:
        sent.append(body["ResetType"])
        return post(self, path, body)

    monkeypatch.setattr(Client, "post", noted)
    return sent


@contextlib.contextmanager
def powered_by(bench: Bench, url: str) -> Iterator[None]:
    """The node has the power that the emulator's system has: it is gone while that is off, and boots with it."""
    over = threading.Event()

    def follow() -> None:
        with httpx.Client(base_url=url, timeout=60.0) as bmc:
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
        with_bmc(bench, url, verify="/nowhere/authority.pem")
        unsent = bench.carry_out(Rung.POWER_CYCLE)
        assert unsent.outcome is Outcome.TRANSIENT, "a worker without the authority's file sends nothing"
        assert unsent.detail.startswith("nothing was sent: ")
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


def one_system(
    reset: dict[str, object], offers: object = None, power: str = "On", answer: tuple[int, bytes] = (204, b"")
) -> Callable[[str], tuple[int, dict[str, str], bytes]]:
    """A BMC whose only system, with this action, is the node's. ``offers``: the kinds of reset in its ActionInfo;
    ``answer``: to an order.
    """
    parameters = [{"Name": "Other", "AllowableValues": ["On"]}, {"Name": "ResetType", "AllowableValues": offers}]
    documents: dict[str, object] = {
        "/redfish/v1/": {"Systems": {"@odata.id": "/systems"}}, "/systems": {"Members": [{"@odata.id": "/systems/1"}]},
        "/systems/1": {"SerialNumber": bmcs.SERIAL, "PowerState": power, "Actions": {"#ComputerSystem.Reset": reset}},
        "/info": {"Parameters": parameters},
    }  # fmt: skip

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        status, body = answer if path == "/reset" else (200, json.dumps(documents.get(path, {})).encode())
        return status, {}, body

    return reply


ALL = ["On", "ForceOff", "ForceOn", "ForceRestart", "GracefulRestart", "GracefulShutdown", "PowerCycle", "Nmi"]


BY_INFO, BY_LIST = "@Redfish.ActionInfo", "ResetType@Redfish.AllowableValues"


@pytest.mark.parametrize(("form", "offers", "power", "ordered"), [
    (BY_INFO, ALL, "On", "PowerCycle"),
    (BY_INFO, ["ForceOff", "On"], "On", None),
    (BY_INFO, None, "On", "ForceRestart"),
    (BY_LIST, ALL, "Off", "On"),
    (BY_LIST, ["PowerCycle"], "Off", "PowerCycle"),
    (BY_LIST, ["ForceRestart", "ForceOff"], "On", "ForceRestart"),
    (BY_LIST, None, "Off", "On"),
    (BY_LIST, ["ForceOff"], "Off", None),
])  # fmt: skip
def test_no_order_is_stronger_than_a_power_cycle_and_the_record_names_it(
    bench: Bench, orders: list[str], form: str, offers: object, power: str, ordered: str | None
) -> None:
    """OpenBMC's bmcweb has the kinds of reset (``ALL``) in its ActionInfo alone, and its ForceRestart is a warm one."""
    reset = {"target": "/reset", form: "/info" if form == BY_INFO else offers}
    with bmcs.answering(one_system(reset, offers, power)) as bmc:
        with_bmc(bench, bmc.url)
        found = bench.carry_out(Rung.POWER_CYCLE, limit_s=0.0)
    assert orders == ([ordered] if ordered else [])
    assert found.outcome is (Outcome.PERMANENT if ordered else Outcome.TRANSIENT)
    if ordered:
        assert repairing._KINDS[ordered] in found.detail
    else:
        named = {each for each in repairing._KINDS if re.search(rf"\b{each}\b", found.detail)}
        assert named == set(repairing._KINDS) - ({"On"} if power == "On" else set())


def test_kinds_of_reset_that_cannot_be_read_stop_no_restart(bench: Bench, orders: list[str]) -> None:
    known = one_system({"target": "/reset", BY_INFO: "/info"})
    with bmcs.answering(lambda path: (500, {}, b"") if path == "/info" else known(path)) as bmc:
        with_bmc(bench, bmc.url)
        bench.carry_out(Rung.POWER_CYCLE, limit_s=0.0)
    assert orders == ["ForceRestart"]


REFUSALS = [
    ({"Message": "The request\ncannot be performed."}, "The request cannot be performed."),
    ({"MessageArgs": ["Power is off"], "MessageID": "iLO.0.10.InvalidOperationForSystemState"}, "iLO.0.10.Invalid"),
]
"""DMTF DSP0266, "Error responses", and iLO 4 to a reset of a machine that is off (goldyfruit/ansible-ilo, issue 1)."""


@pytest.mark.parametrize(("message", "said"), REFUSALS)
def test_what_a_bmc_says_when_it_refuses_an_order_is_recorded(
    bench: Bench, message: dict[str, object], said: str
) -> None:
    body = json.dumps({"error": {"code": "Base.1.8.GeneralError", "@Message.ExtendedInfo": [message]}}).encode()
    with bmcs.answering(one_system({"target": "/reset"}, answer=(409, body))) as bmc:
        with_bmc(bench, bmc.url)
        found = bench.carry_out(Rung.POWER_CYCLE)
    assert found.outcome is Outcome.TRANSIENT
    assert f"409: {said}" in found.detail


def test_an_order_to_a_bmc_is_sent_once_and_an_unclear_answer_counts(bench: Bench) -> None:
    with bmcs.answering(one_system({"target": "/reset"}, answer=(503, b""))) as bmc:
        with_bmc(bench, bmc.url)
        assert bench.carry_out(Rung.POWER_CYCLE).outcome is Outcome.PERMANENT
    assert bmc.requests.count("POST /reset") == 1


@pytest.mark.parametrize(("listed", "target"), [
    (1, "/reset"), (["GracefulShutdown"], "/reset"), (["PowerCycle"], "https://elsewhere.example.org/reset"),
])  # fmt: skip
def test_what_a_bmc_does_not_offer_is_not_ordered(bench: Bench, listed: object, target: str) -> None:
    reset = {"target": target, "ResetType@Redfish.AllowableValues": listed}
    with bmcs.answering(one_system(reset)) as bmc:
        with_bmc(bench, bmc.url)
        found = bench.carry_out(Rung.POWER_CYCLE, limit_s=0.0)
    sent = [each for each in bmc.requests if each == "POST /reset"]
    assert (found.outcome, sent) == (Outcome.TRANSIENT, []) if listed != 1 else (Outcome.PERMANENT, ["POST /reset"])


@pytest.mark.parametrize(("recorded", "system", "sent"), [
    ("S1", {"SerialNumber": "s1 "}, 1),
    ("S1", {"SerialNumber": "S2"}, 0),
    ("S1", {}, 0),
    ("S1", {"SerialNumber": ["S1"]}, 0),
    ("", {"SerialNumber": "S1"}, 0),
    ("", {"SerialNumber": ""}, 0),
    ("TAG1", {"SerialNumber": "CN0001", "SKU": "TAG1"}, 1),  # Dell
])  # fmt: skip
def test_only_the_bmc_of_the_nodes_own_machine_gets_an_order(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, recorded: str, system: dict[str, object], sent: int
) -> None:
    monkeypatch.setattr(store.parts, "system_serial", lambda _: recorded)
    documents: dict[str, object] = {
        "/redfish/v1/": {"Systems": {"@odata.id": "/systems"}}, "/systems": {"Members": [{"@odata.id": "/systems/1"}]},
        "/systems/1": {**system, "Actions": {"#ComputerSystem.Reset": {"target": "/reset"}}},
    }  # fmt: skip
    with bmcs.answering(lambda path: (200, {}, json.dumps(documents.get(path, {})).encode())) as bmc:
        with_bmc(bench, bmc.url)
        found = bench.carry_out(Rung.POWER_CYCLE, limit_s=0.0)
    assert bmc.requests.count("POST /reset") == sent
    assert found.outcome is (Outcome.PERMANENT if sent else Outcome.TRANSIENT)


@pytest.mark.parametrize(("baseboard", "sent"), [
    ({"SerialNumber": "165"}, 1),
    ({"SerialNumber": bmcs.SERIAL}, 1),  # it offers no reset
    ({"SerialNumber": "165", "Actions": {"#ComputerSystem.Reset": {"target": "/gpus"}}}, 1),
    ({"SerialNumber": bmcs.SERIAL, "Actions": {"#ComputerSystem.Reset": {"target": "/gpus"}}}, 0),
])  # fmt: skip
def test_a_baseboard_of_gpus_that_is_a_system_of_its_own_is_no_other_machine(
    bench: Bench, baseboard: dict[str, object], sent: int
) -> None:
    """As of a DGX H100, whose BMC lists the host and the HGX baseboard."""
    documents: dict[str, object] = {
        "/redfish/v1/": {"Systems": {"@odata.id": "/systems"}},
        "/systems": {"Members": [{"@odata.id": "/systems/HGX_Baseboard_0"}, {"@odata.id": "/systems/DGX"}]},
        "/systems/HGX_Baseboard_0": baseboard,
        "/systems/DGX": {"SerialNumber": bmcs.SERIAL, "Actions": {"#ComputerSystem.Reset": {"target": "/reset"}}},
    }  # fmt: skip
    with bmcs.answering(lambda path: (200, {}, json.dumps(documents.get(path, {})).encode())) as bmc:
        with_bmc(bench, bmc.url)
        found = bench.carry_out(Rung.POWER_CYCLE, limit_s=0.0)
    assert [each for each in bmc.requests if each.startswith("POST /")] == ["POST /reset"] * sent
    assert found.outcome is (Outcome.PERMANENT if sent else Outcome.TRANSIENT)


@pytest.mark.parametrize(("serial", "sent"), [(bmcs.SERIAL, 1), ("165", 0)])
def test_a_baseboard_that_answers_with_an_error_keeps_no_machine_from_its_restart(
    bench: Bench, serial: str, sent: int
) -> None:
    documents: dict[str, object] = {
        "/redfish/v1/": {"Systems": {"@odata.id": "/systems"}},
        "/systems": {"Members": [{"@odata.id": "/systems/HGX_Baseboard_0"}, {"@odata.id": "/systems/DGX"}]},
        "/systems/DGX": {"SerialNumber": serial, "Actions": {"#ComputerSystem.Reset": {"target": "/reset"}}},
    }  # fmt: skip

    def reply(path: str) -> tuple[int, dict[str, str], bytes]:
        return 500 if "HGX" in path else 200, {}, json.dumps(documents.get(path, {})).encode()

    with bmcs.answering(reply) as bmc:
        with_bmc(bench, bmc.url)
        found = bench.carry_out(Rung.POWER_CYCLE, limit_s=0.0)
    assert bmc.requests.count("POST /reset") == sent
    assert found.outcome is (Outcome.PERMANENT if sent else Outcome.TRANSIENT)
    assert sent or "500 Internal Server Error to /systems/HGX_Baseboard_0" in found.detail


def test_a_boot_that_was_seen_before_a_repair_is_not_the_last_one(bench: Bench) -> None:
    incident = begun()
    with engine.writing() as session:
        session.add(
            SweepRow(node="this-node", machine=1, boot_id="a", kernel_s=0.0, counters={}, swept_at=access.now())
        )
    assert repair._last_boot(store.repairs.get_incident(incident)) == "a"
    act(bench, incident)
    assert repair._last_boot(store.repairs.get_incident(incident)) == ""
