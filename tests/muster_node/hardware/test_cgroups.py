"""What control groups leave a process of memory: whichever of those above it limits it, in either version."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster_node.agent import facts
from muster_node.hardware.host import cgroups
from muster_node.hardware.host.sysfs import Files

GIB = 1 << 30
SLICE = "sys/fs/cgroup/user.slice/user-1000.slice"
USER_SLICE = {
    "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
    f"{SLICE}/session-3.scope/memory.max": "max\n",
    f"{SLICE}/session-3.scope/memory.current": "1000\n",
    f"{SLICE}/memory.max": f"{8 * GIB}\n",
    f"{SLICE}/memory.current": f"{6 * GIB}\n",
    f"{SLICE}/memory.stat": f"anon {4 * GIB}\ninactive_file {2 * GIB}\nactive_file 0\n",
    f"{SLICE}/memory.events": "oom 5\noom_kill 5\n",
}
STEP = "sys/fs/cgroup/memory/slurm/uid_0/job_1"
SLURM_1 = {
    "proc/self/cgroup": "9:memory:/slurm/uid_0/job_1/step_0\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n",
    f"{STEP}/memory.limit_in_bytes": f"{8 * GIB}\n",
    f"{STEP}/memory.usage_in_bytes": f"{6 * GIB}\n",
    f"{STEP}/memory.stat": f"inactive_file 0\ntotal_inactive_file {2 * GIB}\n",
    f"{STEP}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
}
CONTAINER = {
    "proc/self/cgroup": "0::/../../elsewhere\n",
    "sys/fs/cgroup/memory.max": f"{6 * GIB}\n",
    "sys/fs/cgroup/memory.current": f"{2 * GIB}\n",
    "sys/fs/cgroup/memory.events": "oom_kill 5\n",
}


def tree(root: Path, files: dict[str, str]) -> Files:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Files(root)


HIGH = {**CONTAINER, "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.high": f"{6 * GIB}\n"}


@pytest.mark.parametrize("files", [USER_SLICE, SLURM_1, CONTAINER, HIGH])
def test_the_group_that_leaves_least_is_what_is_free(files: dict[str, str], tmp_path: Path) -> None:
    assert cgroups.free_memory(tree(tmp_path, files)) == 4 * GIB


def test_without_a_limit_all_that_the_machine_has_is_free(tmp_path: Path) -> None:
    own = {name: "max" if name.endswith(".max") else text for name, text in USER_SLICE.items()}
    assert cgroups.free_memory(tree(tmp_path, own)) == float("inf")


@pytest.mark.parametrize("files", [USER_SLICE, SLURM_1, CONTAINER])
def test_a_kill_in_any_of_the_groups_is_counted(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "_FILES", tree(tmp_path, files))
    assert facts.oom_kills(()) == 5


def test_a_load_takes_no_more_than_the_groups_leave(tmp_path: Path) -> None:
    from muster_node.hardware.host.cpu_compute import CpuCompute

    compute = object.__new__(CpuCompute)  # a real one pins this process to a CPU
    compute._files = tree(tmp_path, {**USER_SLICE, "proc/meminfo": "MemAvailable: 2000000000 kB\n"})
    assert compute.free_memory() == 4 * GIB
