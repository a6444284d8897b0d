"""The wording of the agent's messages: one snapshot, renewed by ``make wording``. Probes have their own."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from syrupy.assertion import SnapshotAssertion

from muster_node.agent import gpu_settings, guard, probe_run, process
from muster_node.agent.fence import Fence, Fenced, Occupied
from muster_node.agent.job import check_plan
from muster_node.agent.process import CappedLog, ChildEnd
from muster_node.bounded import Hung, bounded
from muster_node.cluster.rendezvous.block import PARAMS, block_of
from muster_node.contract import Plan
from muster_node.hardware.nvidia.gpus import NvidiaGpus
from muster_node.hardware.seam import Fact, Usage
from muster_node.workloads.under_load.settings import settings
from tests.muster_node.agent.harness import call, plan
from tests.muster_node.hardware.nvml_standin import FakeNvml

USAGES = {
    "idle": Usage(load_1min=0.1, cpu_count=64),
    "login": Usage(users=("eve on pts/0",), load_1min=0.1, cpu_count=64),
    "process": Usage(busy_processes=("trainer (process 77) uses 98 % of a core",), load_1min=1.0, cpu_count=64),
    "GPU process": Usage(gpu_processes=tuple(f"process {n} uses gpu{n} (compute)" for n in range(7)), cpu_count=64),
    "GPU that does not answer": Usage(
        unknown=("the compute processes of gpu3 cannot be listed (NVML: Unknown Error)",)
    ),
}
PLANS = {
    "no JSON": "{",
    "schema": '{"schema": "muster.plan/9"}',
    "key": plan(call("good")).to_json().replace('"level"', '"levle"'),
    "deadline": plan(call("good"), deadline_s=-1).to_json(),
    "timeout": plan(call("good", 0)).to_json(),
    "fence": plan(call("good"), fence="x").to_json(),
    "node": plan(call("good"), node="").to_json(),
    "calls": plan(*[call("good")] * 201).to_json(),
}
SHARED = {
    "rank": 0,
    "members": ["n0", "n1"],
    "master_addr": "n0",
    "master_ports": [29500],
    "session": "s",
}
BLOCKS: dict[str, dict[str, Any]] = {
    "members": {"members": "n0"},
    "one member": {"members": ["n0"]},
    "rank": {"rank": 2},
    "port": {"master_ports": [0]},
    "session": {"session": ""},
    "limit": {"stall_timeout_s": -1},
}
ENDS = {
    "timeout": ChildEnd(-9, process.TIMEOUT, "", 7),
    "cut": ChildEnd(-15, "the job was ended by SIGTERM", "", 7),
    "bad line": ChildEnd(-9, process.REFUSED, "it sent a line that is not JSON: b'x'", 7),
    "unkillable": ChildEnd(None, process.TIMEOUT, "", 2**22 + 1),
    "signal": ChildEnd(-signal.SIGSEGV, "", "", 7),
    "killed": ChildEnd(-signal.SIGKILL, "", "", 7),
    "status": ChildEnd(4, "", "", 7),
    "no result": ChildEnd(0, "", "", 7),
}


def message(call: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, Fenced, Occupied, Hung)) as raised:
        call()
    return f"{type(raised.value).__name__}: {raised.value}"


def guard_messages(tmp_path: Path) -> Iterator[tuple[str, str]]:
    for name, usage in USAGES.items():
        use = guard.assess(usage)
        yield name, use.sentence() if use.busy else "; ".join(use.evidence)

    def no_answer() -> Usage:
        raise OSError("no utmp")

    hardware: Any = SimpleNamespace(usage=no_answer)
    yield "unreadable", guard.look(hardware, patient=False).sentence()


def plan_messages(tmp_path: Path) -> Iterator[tuple[str, str]]:
    for name, text in PLANS.items():
        yield name, message(lambda text=text: check_plan(Plan.from_json(text)))  # type: ignore[misc]


def block_messages(tmp_path: Path) -> Iterator[tuple[str, str]]:
    defaults = {name: param.default for name, param in PARAMS.items()}
    for name, wrong in BLOCKS.items():
        params = {**defaults, **SHARED, **wrong}
        yield name, message(lambda params=params: block_of("p", params, 1))  # type: ignore[misc]


def outcome_messages(tmp_path: Path) -> Iterator[tuple[str, str]]:
    for name, end in ENDS.items():
        log = CappedLog(tmp_path / "01_probe.log")
        log.add(b"cannot find the thing\n")
        listener: Any = SimpleNamespace(end=None)
        yield name, ": ".join(probe_run._judge(end, listener, log, 20.0, oom=name == "killed"))


def fence_messages(tmp_path: Path) -> Iterator[tuple[str, str]]:
    first, second = Fence(tmp_path), Fence(tmp_path)
    first.enter(7, "job-1", tmp_path, lambda: None)
    yield "older token", message(lambda: second.enter(6, "job-0", tmp_path, lambda: None))
    yield "same token", message(lambda: second.enter(7, "job-2", tmp_path, lambda: None))
    first.leave()
    (tmp_path / "fence").write_text("seven")
    yield "no number", message(lambda: second.enter(8, "job-3", tmp_path, lambda: None))


def settings_messages(tmp_path: Path) -> Iterator[tuple[str, str]]:
    before = settings([Fact("power_limit", "gpu3", "W", 700.0), Fact("mig_mode", "gpu3", "bool", 0.0)])
    after = settings([Fact("power_limit", "gpu3", "W", 500.0), Fact("mig_mode", "gpu3", "bool", 1.0)])
    hardware: Any = SimpleNamespace(
        restore_setting=lambda device, name, facts: "it takes a reset of the GPU" if name == "mig_mode" else ""
    )
    for number, note in enumerate(gpu_settings.restore(hardware, before, after)):
        yield str(number), note


def nvml_messages(tmp_path: Path) -> Iterator[tuple[str, str]]:
    for name in ("NOT_SUPPORTED", "GPU_IS_LOST", "NO_PERMISSION", "UNKNOWN"):
        nvml = FakeNvml(count=1)
        nvml.refuse["nvmlDeviceGetEccMode"] = getattr(pynvml, f"NVML_ERROR_{name}")
        yield name, next(fact.note for fact in NvidiaGpus(nvml).inventory() if fact.name == "ecc_mode")


def hang_messages(tmp_path: Path) -> Iterator[tuple[str, str]]:
    yield "stopped", message(lambda: bounded("the inventory", signal.pause, 60.0, lambda: "the job was ended"))


TOPICS = {
    "guard": guard_messages,
    "plan": plan_messages,
    "block": block_messages,
    "outcome": outcome_messages,
    "fence": fence_messages,
    "settings": settings_messages,
    "nvml": nvml_messages,
    "hang": hang_messages,
}


@pytest.mark.parametrize("topic", TOPICS)
def test_wording(topic: str, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    messages = {
        name: re.sub(r"\bpid \d+", "pid N", text.replace(str(tmp_path), "WORK"))
        for name, text in TOPICS[topic](tmp_path)
    }
    assert messages == snapshot
