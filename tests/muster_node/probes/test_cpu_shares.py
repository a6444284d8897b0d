"""What a load on CPUs got of the wall clock, and who had the rest; a real quota where control groups are writable."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

from muster_node.hardware.host import cpu_time
from muster_node.hardware.host.cpu_time import Ledger, Spent
from muster_node.hardware.host.sysfs import Files
from muster_node.hardware.seam import CpuTime, Device
from muster_node.probe import Metric, Probe
from muster_node.probes.cpu_burn import CpuBurn
from muster_node.workloads.under_load import cpu_shares
from tests.muster_criteria.nodes import Case, healthy_raw, shipped

CPUS = [Device(f"cpu{number}", "cpu", number) for number in range(2)]
STAT = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 {user} 0 0 50 50 0 0 {steal} 0 0\ncpu1 {user} 0 0 50 50 0 0 {steal} 0 0\n"
HERTZ = os.sysconf("SC_CLK_TCK")


class Shares(Probe):
    name, stage, doc = "shares", "burn_in", "emits what the machine says"
    metrics: dict[str, Metric] = cpu_shares.METRICS

    def run(self, context):
        cpu_shares.emit_cpu_shares(context)


def machine(wall=100.0, cpu=100.0, **more):
    whole = {"stolen_s": 0.0, "others_s": 0.0, "held_s": 0.0, "throttled_periods": 0, "periods": 0, "quota": None}
    time = CpuTime(wall_s={"cpu0": wall, "cpu1": wall}, cpu_s={"cpu0": cpu, "cpu1": cpu}, cpus=2, **{**whole, **more})
    return SimpleNamespace(simulated=False, cpu_time=lambda: time)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"cpu_share": 100, "cpu_others": 0, "cpu_throttled": 0, "cpu_unexplained": 0, "cpu_quota": 100}),
        ({"cpu": 40.0, "others_s": 500.0}, {"cpu_share": 40, "cpu_others": 60, "cpu_unexplained": 0}),
        ({"cpu": 40.0, "stolen_s": 100.0}, {"cpu_stolen": 50, "cpu_unexplained": 10}),
        (
            {"cpu": 10.0, "held_s": 40.0, "quota": 0.2, "throttled_periods": 90, "periods": 100},
            {"cpu_throttled": 90, "cpu_quota": 10, "cpu_unexplained": 0},
        ),
        ({"cpu": 60.0}, {"cpu_share": 60, "cpu_others": 0, "cpu_throttled": 0, "cpu_unexplained": 40}),
        ({"others_s": None}, {"cpu_others": None, "cpu_unexplained": None}),
        ({"held_s": None}, {"cpu_throttled": None}),
    ],
)
def test_every_loss_has_its_cause(run_probe, given, expected):
    run = run_probe(Shares, machine(**given))
    found = {each.metric: None if each.value is None else round(each.value) for each in run}
    assert {metric: found[metric] for metric in expected} == expected


def test_a_load_of_seconds_is_called_brief(run_probe):
    assert {each.labels["load"] for each in run_probe(Shares, machine(wall=5.0, cpu=5.0))} == {"brief"}
    assert {each.labels["load"] for each in run_probe(Shares, machine())} == {"sustained"}
    assert not run_probe(Shares, SimpleNamespace(simulated=True, cpu_time=lambda: None))


V2 = {
    "proc/self/cgroup": "0::/system.slice/x.service\n",
    "sys/fs/cgroup/system.slice/x.service/cpu.stat": "nr_periods {n}\nnr_throttled {n}\nthrottled_usec {us}\n",
    "sys/fs/cgroup/system.slice/x.service/cpu.max": "max 100000\n",
    "sys/fs/cgroup/system.slice/cpu.stat": "nr_periods {n}\nnr_throttled {n}\nthrottled_usec {us}\n",
    "sys/fs/cgroup/system.slice/cpu.max": "50000 100000\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 5\n",
}
V1 = {
    "proc/self/cgroup": "5:cpu,cpuacct:/job\n0::/\n",
    "sys/fs/cgroup/cpu,cpuacct/job/cpu.stat": "nr_periods {n}\nnr_throttled {n}\nthrottled_time {us}000\n",
    "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
    "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
}


CENTOS_7 = {
    name.replace("/cpu,cpuacct/", "/cpu/"): text.replace("cpu,cpuacct", "cpuacct,cpu") for name, text in V1.items()
}
"""It lists "cpuacct,cpu", mounts "cpu,cpuacct", and links "cpu" to that (k3s-io/k3s#2924, lxc/lxc#3703)."""


@pytest.mark.parametrize("files", [V2, V1, CENTOS_7])
def test_the_quota_of_any_group_above_is_read_before_and_after(tmp_path, files):
    def write(n, us, user, steal):
        for name, text in {**files, "proc/stat": STAT.format(user=user, steal=steal)}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("{n}", str(n)).replace("{us}", str(us)))
        return cpu_time.snapshot(Files(tmp_path), CPUS)

    before = write(5, 1_000_000, 0, 0)
    after = write(25, 4_000_000, 10 * HERTZ, 2 * HERTZ)
    ledger = Ledger()
    ledger.add(CPUS, [Spent(1.0, 8.0, 2.0), Spent(1.5, 8.0, 2.0)], before, after)
    total = ledger.total()
    assert (total.quota, total.held_s, total.throttled_periods, total.periods) == (0.5, 3.0, 20, 20)
    assert (total.wall_s, total.cpu_s) == ({"cpu0": 8.0, "cpu1": 8.0}, {"cpu0": 1.0, "cpu1": 1.5})
    assert (total.others_s, total.stolen_s) == (16.0, 4.0)


CHILD = """
import json, os, pathlib, sys, tempfile
from muster_node.hardware.host.machine import HostHardware
from muster_node.probe import Context, resolve_params
from muster_node.probes.cpu_burn import CpuBurn
import torch
found = []
emit = lambda metric, device, **more: found.append([metric, device, more.get("value"), more.get("labels") or {}])
with tempfile.TemporaryDirectory() as scratch:
    params = resolve_params(CpuBurn, {"seconds": 0.5, "memory_gib": 0.01})
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
    CpuBurn().run(Context(HostHardware(), params, 1, pathlib.Path(scratch), emit, lambda text: None))
print(json.dumps(found))
"""


@pytest.fixture
def throttled_group():
    """A control group that gives 3 % of each CPU. Skips where none can be made."""
    quota = 3_000 * len(os.sched_getaffinity(0))
    for root, settings in (
        ("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": str(quota)}),
        ("/sys/fs/cgroup", {"cpu.max": f"{quota} 100000"}),
    ):
        group = pathlib.Path(root) / f"muster-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            for name, value in settings.items():
                (group / name).write_text(value)
            yield group / "cgroup.procs"
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("control groups with a CPU quota cannot be made here")


@pytest.mark.needs_torch
def test_a_machine_held_down_by_a_quota_fails_though_its_rate_is_a_healthy_ones(throttled_group):
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(throttled_group)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    measured = {metric: (value, labels) for metric, _, value, labels in json.loads(done.stdout.splitlines()[-1])}
    throttled, labels = measured["cpu_throttled"]
    assert throttled > 5
    assert measured["cpu_quota"][0] == pytest.approx(3.0)
    sku = shipped("cpu-generic")
    spoilt = Case(sku, healthy_raw(sku, "burn_in")).set("cpu_throttled", value=throttled).set("cpu_quota", value=3.0)
    for row in spoilt.rows("cpu_throttled"):
        row["labels"] = labels
    judgement = spoilt.judge()
    assert judgement.verdict == "FAIL"
    assert [(each.metric, each.severity, each.action) for each in judgement.findings] == [
        ("cpu_throttled", "critical", "fix software"),
        ("cpu_quota", "warning", "fix software"),
    ]


def test_the_burn_reports_the_shares(run_probe, cpus):
    pytest.importorskip("torch")
    run = run_probe(CpuBurn, seconds=0.3, memory_gib=0.01)
    assert {each.device for each in run.all("cpu_share")} == set(cpus)
    assert all(0 < each.value <= 100 for each in run.all("cpu_share"))
