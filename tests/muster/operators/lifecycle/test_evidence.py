"""Evidence of this machine for real, over a real sshd: kernel log, files and tools, and OpenStack's Redfish emulator.

``nvidia-smi`` is a stand-in that hangs, as the original does when the driver hangs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from muster import store
from muster.errors import ControllerFault, UnknownIncident
from muster.judging import incident as records
from muster.model.nodes import NewNode, Node
from muster.model.repairs import Fault, Incident
from muster.operators.lifecycle import evidence
from muster.remote.connection import ssh
from muster.remote.connection.login import Credentials
from muster.reporting import archive, bundles
from tests.muster import fleet
from tests.support.servers import bmc as bmcs
from tests.support.servers import sshd

pytestmark = pytest.mark.needs_sshd

PROFILE = """
profile: {name}
version: "1"
title: A short one
sources: {{here: {{text: "chosen here", date: 2026-11-25}}}}
steps:
  - {{name: kernel.log, command: [dmesg, -r], root: true}}
  - {{name: boot-id.txt, file: /proc/sys/kernel/random/boot_id}}
  - {{name: smi.txt, command: [nvidia-smi, -q], limit_s: 1}}
  - {{name: smi-safe.txt, command: [echo, safe], if_missing: smi.txt}}
  - {{name: not-needed.txt, command: [echo, unneeded], if_missing: boot-id.txt}}
  - {{name: absent.txt, command: [no-such-vendor-tool]}}
  - {{name: long.txt, command: ["yes"], bytes_max: 1000}}
  - {{name: earlier.log, file: /proc/version, needs: [smi.txt, absent.txt]}}
  - {{name: fresh.log, file: /proc/version, needs: [smi.txt, smi-safe.txt]}}
redfish: [/redfish/v1/Systems, /redfish/v1/Chassis]
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[sshd.Sshd]:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text("#!/bin/sh\necho begun\ntrap '' TERM\nsleep 600\n")
    (tools / "nvidia-smi").chmod(0o700)
    with sshd.running(tmp_path / "node", env={"PATH": f"{tools}:/usr/sbin:/usr/bin:/sbin:/bin"}) as started:
        yield started


@pytest.fixture
def node(tmp_path: Path, server: sshd.Sshd, sqlite_db: str, monkeypatch: pytest.MonkeyPatch) -> Node:
    folder = tmp_path / "skus" / "evidence"
    folder.mkdir(parents=True)
    for name in ("generic",):
        written = PROFILE.format(name=name)
        (folder / f"{name}.yaml").write_text(written if name == "generic" else written.split("steps:")[0])
    monkeypatch.setenv("MUSTER_SKU_PATH", str(tmp_path / "skus"))
    monkeypatch.setattr(bundles, "TOTAL_BYTES_MAX", 2**20)
    monkeypatch.setattr(bundles, "FREE_AFTER", 2**20)
    there = server.node()
    store.nodes.add(
        fleet.new_node(
            there.name, host=there.host, port=there.port, user=there.user, work_dir=there.work_dir,
            host_key=" ".join(there.host_key.split()[:2]), launch={"kind": "python", "python": sys.executable},
            serials={"system": "SYS-1", "gpu3": "GPU-3"},
        )
    )  # fmt: skip
    return store.nodes.get(there.name)


def opened(node: Node, device: str = "gpu3") -> Incident:
    return store.repairs.open_incident(node.name, Fault("gpu_reset", device), "XID 95 on gpu3")


def take(server: sshd.Sshd, incident: Incident) -> tuple[Incident, dict[str, bytes]]:
    who = Credentials(key_file=str(server.key_file))
    taken = evidence.take(incident, lambda each: ssh.connect(each, who, timeout=5.0))
    assert taken.bundle is not None
    whole = Path(taken.bundle.path).read_bytes()
    assert (len(whole), hashlib.sha256(whole).hexdigest()) == (taken.bundle.bytes, taken.bundle.sha256)
    with tarfile.open(taken.bundle.path) as tar:
        content = {each.name.split("/", 1)[1]: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]
    return taken, content


def test_a_bundle_of_this_machine_names_what_is_missing_and_hashes_what_is_there(node: Node, server: sshd.Sshd) -> None:
    incident = opened(node)
    assert incident.fault.part == "gpu GPU-3", "the part is followed by its serial"
    assert opened(node).id == incident.id, "one incident for one fault"
    taken, content = take(server, incident)
    manifest = json.loads(content.pop("manifest.json"))
    assert {each["name"] for each in manifest["files"]} == set(content)
    for each in manifest["files"]:
        assert hashlib.sha256(content[each["name"]]).hexdigest() == each["sha256"]
        assert len(content[each["name"]]) == each["bytes"]
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    assert content["generic/boot-id.txt"] == boot_id
    assert content["generic/smi.txt"] == b"begun\n", "what a tool wrote before it hung"
    assert content["generic/smi-safe.txt"] == b"safe\n"
    assert len(content["generic/long.txt"]) == 1000
    assert "generic/not-needed.txt" not in content
    assert "generic/earlier.log" not in content, "what should have written it did not end well"
    assert content["generic/fresh.log"] == Path("/proc/version").read_bytes()
    missing = {each.split(":")[0] for each in manifest["missing"]}
    assert {"generic/smi.txt", "generic/absent.txt", "generic/long.txt", "bmc/redfish.json"} <= missing
    assert any(each.startswith("generic/earlier.log: it may be an earlier report: ") for each in manifest["missing"])
    assert "generic/boot-id.txt" not in missing
    assert manifest["part"] == "gpu GPU-3"
    assert manifest["profiles"] == ["generic 1"]
    records_of = json.loads(content["records.json"])
    assert {"SYS-1", "GPU-3"} == {each["serial"] for each in records_of["parts"]}
    assert taken.bundle is not None
    assert taken.bundle.missing == tuple(manifest["missing"])
    assert Path(taken.bundle.path).stat().st_mode & 0o077 == 0, "for the controller's user alone"
    assert evidence.take(taken) == taken, "evidence is taken once"
    assert store.nodes.events(node.name)[-1].evidence["sha256"] == taken.bundle.sha256


@pytest.mark.parametrize("own", [True, False])
def test_a_bmcs_documents_with_members_are_taken_if_it_is_the_nodes_own(
    node: Node, server: sshd.Sshd, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    serial = store.parts.system_serial(node.name) if own else "S2"
    monkeypatch.setattr(bmcs, "EMULATOR", bmcs.EMULATOR.replace(bmcs.SERIAL, serial))
    with bmcs.emulator() as url:
        store.nodes.add_all([("", dataclasses.replace(_described(node), bmc={"url": url}))])
        _, content = take(server, opened(node))
    documents = json.loads(content.get("bmc/redfish.json", "{}"))
    assert any(path.startswith("/redfish/v1/Systems/") for path in documents) is own


def _described(node: Node) -> NewNode:
    return fleet.new_node(
        node.name, host=node.host, port=node.port, user=node.user, work_dir=node.work_dir, host_key=node.host_key,
        launch=node.launch, serials={},
    )  # fmt: skip


def test_a_node_that_is_gone_leaves_the_records_evidence(node: Node, server: sshd.Sshd) -> None:
    server.stop()
    taken, content = take(server, opened(node))
    assert taken.bundle is not None
    assert taken.bundle.blank
    manifest = json.loads(content["manifest.json"])
    assert set(content) == {"manifest.json", "records.json"}
    assert len([each for each in manifest["missing"] if each.startswith("generic/")]) >= 5


def test_evidence_without_anything_of_the_node_is_taken_again_once_it_answers(node: Node, server: sshd.Sshd) -> None:
    def gone(_: Node) -> NoReturn:
        raise ssh.Unreachable("nothing responds")

    first = evidence.take(opened(node), gone)
    assert evidence.take(first, gone) == first, "it does not answer yet"
    second, content = take(server, first)
    assert "generic/boot-id.txt" in content
    assert first.bundle is not None
    assert second.bundle is not None
    assert (first.bundle.blank, second.bundle.blank) == (True, False)
    assert Path(first.bundle.path).exists(), "what the BMC said then is said no more"
    assert first.bundle.path != second.bundle.path


def test_a_login_that_the_controller_lacks_is_its_fault_and_no_bundle(node: Node) -> None:
    def no_key(_: Node) -> NoReturn:
        raise ControllerFault("the SSH key cannot be read")

    incident = opened(node)
    with pytest.raises(ControllerFault):
        evidence.take(incident, no_key)
    assert store.repairs.get_incident(incident.id).bundle is None
    assert list(bundles.room(incident).iterdir()) == []


def test_a_simulated_node_is_marked_and_no_command_shows_the_machine_below(node: Node, server: sshd.Sshd) -> None:
    store.nodes.add(fleet.new_node("sim-1", simulated=True))
    _, content = take(server, store.repairs.open_incident("sim-1", Fault("gpu_reset"), "XID 95"))
    manifest = json.loads(content["manifest.json"])
    assert manifest["simulated"] is True
    assert set(content) == {"manifest.json", "records.json"}


def test_a_full_disk_is_one_sentence_before_anything_is_taken(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")._replace(free=1)
    monkeypatch.setattr(bundles.shutil, "disk_usage", lambda _: usage)
    incident = opened(node)
    with pytest.raises(ControllerFault):
        evidence.take(incident)
    assert store.repairs.get_incident(incident.id).bundle is None


def test_retention_deletes_old_bundles_and_an_unknown_incident_is_refused(node: Node, server: sshd.Sshd) -> None:
    taken, _ = take(server, opened(node))
    assert taken.bundle is not None
    assert archive.expire(taken.opened_at) == 0
    assert archive.expire(taken.opened_at.replace(year=taken.opened_at.year + 2)) == 1
    with pytest.raises(UnknownIncident):
        store.repairs.get_incident(99)


def test_the_profiles_of_a_node_follow_its_sku_and_labels(node: Node) -> None:
    assert [each.profile for each in records.profiles_of(node)] == ["generic"]
