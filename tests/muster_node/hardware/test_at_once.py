"""Work on several devices at once: pinned processes on CPUs, threads elsewhere."""

import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from muster_criteria.sku_files.skus import load_sku
from muster_criteria.stages import LEVELS
from muster_node.hardware.host.cpu_workers import WorkerFailed
from muster_node.hardware.host.machine import HostHardware
from muster_node.hardware.seam import Device
from muster_node.hardware.workers import LATE_S, START_LIMIT_S, NotEnded, Threads
from muster_node.probe import Skip
from muster_node.probes.transfers import Found
from muster_node.workloads.each_device import DeviceError
from muster_node.workloads.products.pulses import PATTERNS

GPUS = [Device(f"gpu{slot}", "gpu", slot) for slot in range(3)]


@pytest.fixture
def hardware():
    return HostHardware()


def test_each_worker_is_a_process_pinned_to_its_cpu(hardware):
    devices = hardware.devices("cpu")

    def work(worker):
        worker.ready()
        return os.getpid(), os.sched_getaffinity(0), worker.index, worker.count

    found = hardware.at_once(devices, work)
    assert [affinity for _, affinity, _, _ in found] == [{device.index} for device in devices]
    assert [index for _, _, index, _ in found] == list(range(len(devices)))
    assert {count for _, _, _, count in found} == {len(devices)}
    assert len({pid for pid, *_ in found} | {os.getpid()}) == len(devices) + 1
    assert len(os.sched_getaffinity(0)) == len(devices), "the caller must not stay pinned"


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_the_start_signal_waits_for_all_and_works_again(hardware, kind):
    devices = hardware.devices("cpu")[:1] * 3 if kind == "cpu" else GPUS

    def work(worker):
        rounds = []
        for _ in range(2):
            time.sleep(0.1 * worker.index)
            called = time.monotonic()
            worker.ready()
            rounds.append((called, time.monotonic()))
        return rounds

    for workers in zip(*hardware.at_once(devices, work), strict=True):
        assert max(called for called, _ in workers) <= min(passed for _, passed in workers)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_failure_names_its_rank_and_hangs_no_other(hardware, kind):
    devices = hardware.devices("cpu")[:1] * 3 if kind == "cpu" else GPUS

    def work(worker):
        if worker.index == 1:
            raise ValueError("lane 7 differs")
        worker.ready()  # would wait for ever

    with pytest.raises((WorkerFailed, ValueError)):
        hardware.at_once(devices, work)


def test_a_worker_that_has_ended_is_not_awaited(hardware):
    def work(worker):
        worker.ready()
        for _ in range(worker.index):
            worker.ready()
        return worker.index

    assert hardware.at_once(GPUS, work) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_skip_stays_skip(hardware, kind):
    def work(worker):
        raise Skip("no such thing here")

    with pytest.raises(Skip):
        hardware.at_once(hardware.devices("cpu")[:1] if kind == "cpu" else GPUS, work)


def test_a_worker_that_dies_is_an_error_with_the_cpu_in_it(hardware):
    device = hardware.devices("cpu")[0]

    def work(worker):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerFailed, check=lambda error: device.id in str(error)):
        hardware.at_once([device], work)


def test_ticks_in_the_caller_while_work_runs(hardware):
    caller, ticks = threading.get_ident(), []
    devices = hardware.devices("cpu")[:1]

    def work(worker):
        time.sleep(0.5)
        return worker.device.id

    for group in (devices, GPUS):
        ticks.clear()
        found = hardware.at_once(group, work, tick=lambda: ticks.append(threading.get_ident()), tick_s=0.1)
        assert found == [device.id for device in group]
        assert len(ticks) >= 3
        assert set(ticks) == {caller}


@pytest.mark.parametrize("failed", [DeviceError("ECC"), Found.never("ECC")], ids=["error", "copies"])
def test_only_work_that_was_done_tells_how_long_it_takes(monkeypatch, failed):
    """One GPU fails at once, one does its work, and one hangs."""
    now, done, never = [0.0], threading.Event(), threading.Event()
    monkeypatch.setattr("muster_node.hardware.workers.time", SimpleNamespace(monotonic=lambda: now[0]))
    jobs = [lambda ready: failed, lambda ready: done.wait(), lambda ready: never.wait()]
    threads = Threads(jobs, 1.0)
    threads._threads[0].join()
    now[0] = 1000.0
    assert not threads.overdue(1.0)
    done.set()
    threads._threads[1].join()
    now[0] = 5000.0
    assert threads.overdue(1.0)
    assert threads.results() == [failed, True, NotEnded(5000.0)]
    never.set()


@pytest.mark.parametrize("failed", [0, 2])
def test_known_work_that_hangs_is_left_behind_where_no_other_did_its_work(monkeypatch, failed):
    """Alone on its GPU, or after an NVLink fault has ended the work of all others."""
    now, never = [0.0], threading.Event()
    monkeypatch.setattr("muster_node.hardware.workers.time", SimpleNamespace(monotonic=lambda: now[0]))
    threads = Threads([lambda ready: DeviceError("NVLink")] * failed + [lambda ready: never.wait()], 300.0, 600.0)
    for thread in threads._threads[:failed]:
        thread.join()
    now[0] = 1020.0
    assert not threads.overdue(120.0)
    now[0] = 1021.0
    assert threads.overdue(120.0)
    assert threads.results() == [DeviceError("NVLink")] * failed + [NotEnded(1021.0)]
    never.set()


@pytest.mark.parametrize("probe", ["gpu_burn", "thermal_soak"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_gpu_that_hangs_is_left_behind_before_the_time_limit_of_its_probe(monkeypatch, probe, level):
    """The probe's limit would end what the other GPUs measured too."""
    (use,) = (uses.probes[probe] for uses in load_sku("h100-sxm-8").programme.stages.values() if probe in uses.probes)
    now, done, never = [0.0], threading.Event(), threading.Event()
    monkeypatch.setattr("muster_node.hardware.workers.time", SimpleNamespace(monotonic=lambda: now[0]))
    params = use.params_at(level)
    jobs = [lambda ready: done.wait(), lambda ready: never.wait()]
    threads = Threads(jobs, START_LIMIT_S, params["seconds"])
    now[0] = params["seconds"] + 60.0
    done.set()
    threads._threads[0].join()
    assert not threads.overdue(LATE_S)
    now[0] = use.timeout_at(level) - len(PATTERNS) * params.get("pulse_s", 0) - params.get("cooldown_s", 0)
    assert threads.overdue(LATE_S)
    never.set()


def test_workers_die_with_their_parent(hardware, tmp_path):
    """A killed probe must leave no load behind."""
    note = tmp_path / "pid"
    parent = os.fork()
    if parent == 0:

        def work(worker):
            note.write_text(str(os.getpid()))
            time.sleep(60)

        try:
            hardware.at_once(hardware.devices("cpu")[:1], work)
        finally:
            os._exit(0)
    deadline = time.monotonic() + 10
    while not (note.exists() and note.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    worker = int(note.read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    stat = Path(f"/proc/{worker}/stat")
    while stat.exists() and " Z " not in stat.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
