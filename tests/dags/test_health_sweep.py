"""The sweep over a real sshd: a node with a kernel log, one whose server hangs, one that refuses, and what follows.

The log is what ``dmesg -r`` of a program of this test's own prints: /dev/kmsg is closed to the node side, as it is to a
user without privileges, so that no line has to be written into the log of the machine that runs the tests.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from muster import store
from muster.admission import service
from muster.errors import BadSettings
from muster.judging import health
from muster.model.health import Observation, Report
from muster.model.nodes import NewNode
from muster.model.states import State
from muster.operators.lifecycle import sweep
from muster.remote.sweeping import Answer
from muster_criteria.health.policy import HealthAction
from muster_criteria.health.readings import Reading
from muster_criteria.sku_files.skus import SHIPPED
from tests.muster import fleet as nodes
from tests.support import node_list
from tests.support.servers import sshd

pytestmark = pytest.mark.needs_sshd

NODE = "this-node"
LOG = """<6>[    0.000000] Linux version 6.8.0-1021-nvidia (buildd@lcy02) #22 SMP PREEMPT_DYNAMIC
<4>[   12.104422] nvidia-nvlink: Nvlink Core is being initialized, major device number 510
<6>[   13.400180] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.127.08
<30>[  20.000000] systemd[1]: Failed to start something of user space
"""
BROKEN = """<3>[ {now:.6f}] NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU is lost.
<3>[ {now:.6f}] NVRM: GPU 0000:4e:00.0: GPU has fallen off the bus.
<3>[ {now:.6f}] mce: Uncorrected hardware memory error in user-access at 7f3a2b000
"""
NO_KMSG = """
import os
_open = os.open
def closed(path, *args, **options):
    if path == "/dev/kmsg":
        raise PermissionError(path)
    return _open(path, *args, **options)
os.open = closed
"""


def found_list(folder: Path) -> Path:
    """The scheduler's list of nodes."""
    return folder / "nodes"


@dataclasses.dataclass
class Bench:
    """A fleet of this machine, in service, and the log that it shows."""

    folder: Path
    server: sshd.Sshd

    @property
    def list(self) -> Path:
        return found_list(self.folder)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def seen(self, node: str = NODE) -> dict[str, Observation]:
        return {each.check: each for each in store.health.of_node(node) if not (each.track and not each.track.bad)}


@pytest.fixture
def bench(tmp_path: Path, server: sshd.Sshd, monkeypatch: pytest.MonkeyPatch) -> Bench:
    path = found_list(tmp_path)
    path.write_text("".join(f"r1n{each}\n" for each in range(5)))
    monkeypatch.setenv("MUSTER_SCHEDULERS", json.dumps({"alpha": node_list.chosen(path)}))
    found = Bench(tmp_path, server)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dmesg").write_text(f"#!/bin/sh\ncat {found.log}\n")
    (programs / "dmesg").chmod(0o700)
    (programs / "sitecustomize.py").write_text(NO_KMSG)
    found.log.write_text(LOG)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "PYTHONPATH": str(programs)}
    serve(server.node(NODE), {"kind": "python", "python": sys.executable, "env": env}, "r1n0")
    return found


def serve(node: sshd.Node, launch: dict[str, object], place: str, **labels: str) -> None:
    """Enrols a node and admits it, as after a passed test; without a place no scheduler knows it."""
    new = NewNode(
        name=node.name, host=node.host, port=node.port, user=node.user or "",
        host_key=" ".join(node.host_key.split()[:2]), sku="cpu-generic", launch=launch, work_dir=node.work_dir,
        labels=labels,
    )  # fmt: skip
    store.nodes.add_all([("", new)], actor="Ada")
    nodes.qualify(node.name)
    store.nodes.move(node.name, State.PRODUCTION, "Ada", "tested")
    if place:
        store.schedulers.assign(node.name, "alpha", place, "Ada", "rack 1")
        service.carry_out(node.name)


def uptime() -> float:
    """Seconds since boot."""
    return float(Path("/proc/uptime").read_text().split()[0])


def lost(node: str, check: str, bad: bool | None = None) -> None:
    """What a sweep of the node shows."""
    seen = Reading(check, "gpu3", value="gone", severity="ISOLATE", bad=bad)
    health.record([Report(node, "sweep", (seen,), "b1")], {node: "h100-sxm-8"})


def test_a_kernel_log_is_read_once_and_what_is_grave_drains_the_node(bench: Bench) -> None:
    sweep.sweep_nodes()
    first = bench.seen()
    assert not any(check.startswith(("kernel/", "xid/")) for check in first), first
    cursor = store.health.cursors([NODE])[NODE]
    assert cursor.kernel_s == pytest.approx(20.0)
    before = BROKEN.format(now=uptime() - 60).replace(" 79,", " 48,")
    bench.log.write_text(LOG + before + BROKEN.format(now=uptime()))
    sweep.sweep_nodes()
    seen = bench.seen()
    assert {"xid/79", "kernel/gpu-off-bus", "kernel/machine-check"} <= set(seen)
    assert "xid/48" not in seen, "what was before it entered service is a test's to judge"
    assert seen["xid/79"].boot_id == cursor.boot_id
    sweep.sweep_nodes()
    assert bench.seen()["xid/79"].count == 1, "a line is read once"
    assert store.nodes.get(NODE).state is State.PRODUCTION, "reading moves no node"
    (told,) = sweep.act()
    assert told.startswith(f"{NODE} left service")
    assert store.nodes.get(NODE).state is State.QUARANTINE
    (line,) = [each for each in bench.list.read_text().splitlines() if each.startswith("r1n0 ")]
    assert any(check in line for check in ("xid/79", "kernel/gpu-off-bus", "kernel/machine-check"))
    assert sweep.act() == []
    assert sweep.sweep_nodes().startswith("0 nodes"), "a node out of service is not swept"


def test_absence_is_an_observation_and_half_a_fleet_of_them_is_not_the_nodes(bench: Bench) -> None:
    for number, key in enumerate(("foreign", "login"), 1):
        at = dataclasses.replace(bench.server.node(f"closed{number}"), host_key=bench.server.key_text(key))
        serve(at, {}, f"r1n{number}")
    assert sweep.sweep_nodes().startswith("3 nodes, of which 2 did not answer")
    assert "host key" in bench.seen("closed1")["unreachable"].value
    assert not bench.seen("closed1")["unreachable"].most.leaves  # its scheduler shows it as up
    assert "unreachable" not in bench.seen()
    assert sweep.act() == []
    assert store.nodes.get("closed1").state is State.PRODUCTION
    bench.list.unlink()  # its scheduler could have switched it off
    sweep.sweep_nodes()
    assert bench.seen("closed1")["unreachable"].count == 1


def test_of_watched_nodes_all_is_noted_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bench.folder / "skus" / "policies"
    folder.mkdir(parents=True)
    text = (SHIPPED / "policies" / "health.yaml").read_text()
    (folder / "health.yaml").write_text(text.replace("mode: quarantine", "mode: watch"))
    monkeypatch.setenv("MUSTER_SKU_PATH", str(bench.folder / "skus"))
    lost(NODE, "gpu_lost", True)
    assert sweep.act() == []
    (new,) = store.health.of_node(NODE)
    assert new.action is HealthAction.NOTE


def test_a_broken_policy_is_one_sentence_and_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bench.folder / "skus" / "policies"
    folder.mkdir(parents=True)
    (folder / "health.yaml").write_text("policy: health\nversion: 1\n")
    monkeypatch.setenv("MUSTER_SKU_PATH", str(bench.folder / "skus"))
    for call in (sweep.sweep_nodes, sweep.act):
        with pytest.raises(BadSettings) as refused:
            call()
        assert "health.yaml" in str(refused.value)
    assert store.health.of_node(NODE) == []


def test_a_lying_node_and_a_storm(bench: Bench) -> None:
    """An answer without end, one that claims to be simulated, and 50,000 messages between two sweeps."""
    node, cursor = store.nodes.get(NODE), store.health.cursors([NODE])
    tally = sweep.Tally()
    simulated = b'{"schema": 1, "simulated": true, "boot_id": "b1", "facts": []}'
    for raw in (b"[" * 100_000, b"\xff", simulated):
        sweep.record([Answer(node, raw)], cursor, tally)
        assert bench.seen()["unreadable_answer"].value
    bench.log.write_text(
        LOG
        + "".join(
            f"<3>[ {uptime() + each / 1000:.6f}] I/O error, dev nvme0n1, sector {each}\n" for each in range(50_000)
        )
    )
    sweep.sweep_nodes()
    kernel = [each for check, each in bench.seen().items() if check.startswith("kernel/")]
    assert len(kernel) == 1
    assert kernel[0].count > 1000
