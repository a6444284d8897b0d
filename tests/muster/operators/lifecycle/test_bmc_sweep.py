"""The pass over BMCs, on sushy-tools' emulator: what is due, what hangs, and what the records keep of it."""

from __future__ import annotations

import dataclasses
import datetime
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster import store
from muster.model.health import BMC, BmcCursor, Observation
from muster.model.states import State
from muster.operators.lifecycle import bmc_sweep, sweep
from muster_criteria.health.policy import HealthAction
from muster_criteria.sku_files.skus import SHIPPED
from tests.muster import fleet
from tests.support import unrecorded
from tests.support.servers import bmc as bmcs

pytestmark = pytest.mark.usefixtures("fleet_db")


@pytest.fixture
def silent() -> Iterator[str]:
    """A BMC whose port accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(autouse=True)
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shipped policy, with a limit that a test can wait for."""
    folder = tmp_path / "skus" / "policies"
    folder.mkdir(parents=True)
    text = (SHIPPED / "policies" / "health.yaml").read_text()
    assert "limit_s: 120" in text
    (folder / "health.yaml").write_text(text.replace("limit_s: 120", "limit_s: 20"))
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path / "skus"))


def serve(name: str, url: str = "", **serials: str) -> None:
    bmc = {"url": url} if url else {}
    store.nodes.add(fleet.new_node(name, bmc=bmc, serials=serials))
    fleet.qualify(name)
    store.nodes.move(name, State.PRODUCTION, "Ada", "tested")


def seen(node: str) -> dict[str, Observation]:
    return {each.check: each for each in store.health.of_node(node) if not (each.track and not each.track.bad)}


def again(node: str) -> None:
    """Lets an hour pass for the node's BMC."""
    from muster.store.database.engine import writing
    from muster.store.database.health import BmcRow

    with writing() as session:
        row = session.get(BmcRow, node)
        assert row is not None
        assert row.tried_at is not None
        row.tried_at -= datetime.timedelta(hours=2)


def cursor(node: str) -> BmcCursor:
    return store.bmcs.cursors([node])[node]


def test_sensors_are_states_and_a_new_entry_of_a_log_is_an_event(tmp_path: Path) -> None:
    folder = bmcs.write(tmp_path / "bmc", fans=[bmcs.fan()], supplies=[bmcs.supply()])
    old = bmcs.entry("1", "Critical", "an old fault")
    bmcs.write_log(folder, "Systems/1", "SEL", [old])
    with bmcs.static(folder) as url:
        serve("n1", url)
        serve("without")
        assert bmc_sweep.sweep_bmcs().startswith("1 BMCs, of which 0")
        assert seen("n1") == {}, "what is in order is no observation, and the old entry was judged before"
        assert cursor("n1").read_at is not None
        assert bmc_sweep.sweep_bmcs().startswith("0 BMCs"), "an hour lies between two readings"
        power = folder / "Chassis/1/Power/index.json"
        power.write_text(json.dumps({"PowerSupplies": [bmcs.supply(health="Critical")]}))
        bmcs.write_log(folder, "Systems/1", "SEL", [old, bmcs.entry("2", "Critical", "AC lost", sensor="PSU 1")])
        again("n1")
        bmc_sweep.sweep_bmcs()
    found = seen("n1")
    assert set(found) == {"psu_failed", "bmc_log/critical"}
    assert found["psu_failed"].part == "psu 1/PSU 1"
    assert {each.source for each in found.values()} == {BMC}
    assert (found["bmc_log/critical"].value, found["bmc_log/critical"].action) == ("AC lost", HealthAction.TEST_SOONER)
    assert sweep.act() == []
    assert store.nodes.get("n1").state is State.PRODUCTION


def test_what_another_machines_bmc_shows_is_not_the_nodes(tmp_path: Path) -> None:
    folder = bmcs.write(tmp_path / "bmc", fans=[bmcs.fan(health="Critical")])
    bmcs.write_log(folder, "Systems/1", "SEL", [])
    system = folder / "Systems/1/index.json"
    system.write_text(json.dumps(json.loads(system.read_text()) | {"SerialNumber": "S1"}))
    with bmcs.static(folder) as url:
        for serial in ("S1", "S2"):
            serve(f"n-{serial.lower()}", url, system=serial)
        bmc_sweep.sweep_bmcs()
    assert set(seen("n-s1")) == {"fan_failed"}
    assert set(seen("n-s2")) == {"bmc_silent"}


def test_what_a_bmc_wrote_or_lost_while_its_node_was_out_of_service_is_not_new_after_it(tmp_path: Path) -> None:
    folder = bmcs.write(tmp_path / "bmc", fans=[bmcs.fan()], supplies=[bmcs.supply(), bmcs.supply("PSU 2")])
    entries = [bmcs.entry("1", "Critical", "an old fault")]
    bmcs.write_log(folder, "Systems/1", "SEL", entries)
    with bmcs.static(folder) as url:
        serve("n1", url)
        bmc_sweep.sweep_bmcs()
        store.nodes.move("n1", State.QUARANTINE, "Ada", "it hangs")
        entries += [bmcs.entry("2", "Critical", "AC lost"), bmcs.entry("3", "Warning", "chassis opened")]
        bmcs.write_log(folder, "Systems/1", "SEL", entries)
        power = {"PowerSupplies": [bmcs.supply(), bmcs.supply("PSU 2", None, None, state="Absent")]}
        (folder / "Chassis/1/Power/index.json").write_text(json.dumps(power))
        store.nodes.move("n1", State.REGISTERED, "Ada", "repaired")
        fleet.qualify("n1", "n1__again")
        store.nodes.move("n1", State.PRODUCTION, "Ada", "tested")  # it is read at once, and not up to an hour later
        assert bmc_sweep.sweep_bmcs().startswith("1 BMCs, of which 0")
        assert seen("n1") == {}
        bmcs.write_log(folder, "Systems/1", "SEL", [*entries, bmcs.entry("4", "Critical", "AC lost again")])
        again("n1")
        bmc_sweep.sweep_bmcs()
    assert {check: each.value for check, each in seen("n1").items()} == {"bmc_log/critical": "AC lost again"}


def test_a_bmc_that_hangs_is_a_state_of_its_own_and_costs_no_other(tmp_path: Path, silent: str) -> None:
    with bmcs.static(bmcs.write(tmp_path / "bmc", fans=[bmcs.fan(health="Critical")])) as url:
        serve("hangs", silent)
        serve("well", url)
        told = bmc_sweep.sweep_bmcs()
    assert told.startswith("2 BMCs, of which 1")
    assert set(seen("hangs")) == {"bmc_silent"}
    assert seen("hangs")["bmc_silent"].action is HealthAction.NOTE
    assert set(seen("well")) == {"fan_failed"}
    assert (cursor("hangs").read_at, cursor("hangs").tried_at is None) == (None, False)


def test_a_bmc_whose_answer_cannot_be_recorded_waits_like_others_and_is_known_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = bmcs.write(tmp_path / "bmc", fans=[bmcs.fan()])
    with bmcs.static(folder) as url:
        serve("n1", url)
        bmc_sweep.sweep_bmcs()
        again("n1")
        before = cursor("n1")
        bmcs.write(folder, fans=[bmcs.fan(health="Critical"), bmcs.fan("Fan 2")])
        unrecorded.refuse(monkeypatch, "fan_failed", OverflowError)
        assert bmc_sweep.sweep_bmcs().startswith("1 BMCs")
        assert bmc_sweep.sweep_bmcs().startswith("0 BMCs")
    assert set(seen("n1")) == {"bmc_silent"}
    after = cursor("n1")
    assert after == dataclasses.replace(before, tried_at=after.tried_at)


def test_a_bmc_without_its_password_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    serve("n1")
    monkeypatch.delenv("MUSTER_BMC_LOST", raising=False)
    described = {"url": "https://127.0.0.1:1", "user": "root", "password_env": "MUSTER_BMC_LOST"}
    store.nodes.add_all([("", fleet.new_node("n1", bmc=described))], actor="Ada")
    bmc_sweep.sweep_bmcs()
    assert "MUSTER_BMC_LOST" in seen("n1")["bmc_silent"].value


def test_no_more_is_begun_after_the_time_of_a_pass_and_the_rest_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bmcs.static(bmcs.write(tmp_path / "bmc", fans=[bmcs.fan()])) as url:
        for name in ("a", "b", "c"):
            serve(name, url)
        file = tmp_path / "skus" / "policies" / "health.yaml"
        text = file.read_text()
        file.write_text(text.replace("together: 32, pass_s: 300", "together: 1, pass_s: 0.000001"))
        assert "3 come first in the next pass" in bmc_sweep.sweep_bmcs()
        file.write_text(text.replace("every_s: 3600", "every_s: 0"))
        assert bmc_sweep.sweep_bmcs() == "the health policy reads no BMC"
        file.write_text(text)
        assert bmc_sweep.sweep_bmcs().startswith("3 BMCs, of which 0")
    now = datetime.datetime.now(datetime.UTC)
    hour = datetime.timedelta(hours=1)
    assert store.bmcs.due("abc", 3600, now) == []
    assert {each.node for each in store.bmcs.due("abc", 3600, now + hour)} == set("abc")
    assert {each.node for each in store.bmcs.due("abc", 3600, now - hour)} == set("abc"), "the clock was set back"


def test_a_node_whose_tests_are_paused_or_that_left_service_is_left_alone() -> None:
    serve("out", "http://127.0.0.1:1")
    store.nodes.move("out", State.QUARANTINE, "Ada", "broken")
    assert bmc_sweep.sweep_bmcs().startswith("0 BMCs")
