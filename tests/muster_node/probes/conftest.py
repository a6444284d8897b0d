"""A harness that runs one probe on this machine's real hardware, or on what the test gives."""

import dataclasses
import json
import os
import stat

import pytest

from muster_criteria.context.suspicion import RERUNS
from muster_node.hardware import open_hardware
from muster_node.probe import Context, resolve_params


@dataclasses.dataclass(frozen=True)
class Measured:
    metric: str
    device: str
    value: float | None
    text: str | None
    labels: dict[str, str]
    samples: int
    spread: float | None
    note: str


SENT_AT_ONCE = frozenset(RERUNS) - {"full_entropy_mismatches"} | {"collective_mismatches", "pulse_mismatches"}
"""What is wrong by itself; in which bits a device differs from its siblings is known once all have theirs."""


class Run(list):
    """Everything a probe emitted, in order."""

    def all(self, metric, **labels):
        return [m for m in self if m.metric == metric and labels.items() <= m.labels.items()]

    def one(self, metric, device=None, **labels):
        found = [m for m in self.all(metric, **labels) if device in (None, m.device)]
        assert len(found) == 1, f"{metric} on {device} with {labels}: {len(found)} found"
        return found[0]


@pytest.fixture
def cpus():
    return [device.id for device in open_hardware().devices("cpu")]


@pytest.fixture
def run_probe(tmp_path):
    """``run_probe(ProbeClass, hardware=None, seed=7, into=None, **params)`` returns what it emitted.

    ``into``: a list that receives it also where the probe raises.
    """

    def run(probe, hardware=None, seed=7, into=None, **params):
        emitted, at_once = Run(), tmp_path / f"{probe.name}-so-far"
        at_once.write_text("")

        def emit(metric, device, value=None, text=None, labels=None, samples=1, spread=None, note="", so_far=False):
            assert metric in probe.metrics, f"{probe.name} emitted {metric}, which it does not declare"
            assert value is None or text is None
            assert so_far or value is not None or text is not None or note, f"{metric}: neither a value nor a reason"
            if so_far:  # also by processes that the probe forks
                with at_once.open("a") as file:
                    file.write(json.dumps([metric, device, labels or {}]) + "\n")
                return
            measured = Measured(metric, device, value, text, labels or {}, samples, spread, note)
            emitted.append(measured)
            if into is not None:
                into.append(measured)

        scratch = tmp_path / probe.name
        scratch.mkdir(exist_ok=True)
        probe().run(
            Context(hardware or open_hardware(), resolve_params(probe, params), seed, scratch, emit, lambda text: None)
        )
        sent = [json.loads(line) for line in at_once.read_text().splitlines()]
        for row in emitted:
            # The probe may be ended before it reports its figures.
            wrong = row.metric in SENT_AT_ONCE and row.value
            assert not wrong or [row.metric, row.device, row.labels] in sent, f"{row} was not sent when it was seen"
        return emitted

    return run


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """``tool("nvbandwidth", output, status=1)`` puts a program on the PATH that writes this and ends with that."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    monkeypatch.setenv("PATH", f"{bin_dir}{os.pathsep}{os.environ['PATH']}")

    def make(name, output="", script="cat", status=0):
        (bin_dir / f"{name}.txt").write_text(output)
        path = bin_dir / name
        path.write_text(f"#!/bin/sh\n{script} {bin_dir / name}.txt\nexit {status}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return make
