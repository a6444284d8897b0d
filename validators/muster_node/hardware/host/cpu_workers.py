"""One forked process for each CPU, pinned to it, all started by one signal.

Fork, because a zipapp cannot be imported again by a spawned interpreter, because PyTorch is then loaded once and
shared, and because the parent, which only waits, has run no tensor operation and so has no OpenMP threads that a fork
would lose. Each worker is single-threaded and dies with its parent: a killed probe leaves no load behind.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from multiprocessing.connection import wait
from typing import Any, Callable

from muster_node import processes
from muster_node.hardware.host import cpu_time
from muster_node.hardware.host.cpu_time import Spent
from muster_node.hardware.seam import Clock, Device, Worker
from muster_node.probe import Skip

_READY, _DONE, _SKIP, _ERROR = "ready", "done", "skip", "error"


class WorkerFailed(RuntimeError):
    """A worker raised or died; the message names its CPU and the cause."""


def run_pinned(
    devices: list[Device],
    work: Callable[[Worker], Any],
    clock: Clock,
    tick: Callable[[], None] | None = None,
    tick_s: float = 1.0,
) -> list[tuple[Any, Spent]]:
    """``Hardware.at_once`` for CPUs: what each worker returned, and the time that it got.

    Raises Skip as a worker raised it, WorkerFailed for anything else.
    """
    context = multiprocessing.get_context("fork")
    processes, pipes = [], []
    try:
        for index, device in enumerate(devices):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work_in_child, args=(device, index, len(devices), work, theirs, os.getpid())
            )
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        return _attend(devices, pipes, clock, tick, tick_s)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
        for process in processes:
            process.join()
        for pipe in pipes:
            pipe.close()


def _attend(
    devices: list[Device],
    pipes: list[Any],
    clock: Clock,
    tick: Callable[[], None] | None,
    tick_s: float,
) -> list[Any]:
    results: list[Any] = [None] * len(devices)
    running: dict[Any, int] = {pipe: index for index, pipe in enumerate(pipes)}
    ready = 0
    next_tick = clock.now()
    while running:
        if tick is not None and clock.now() >= next_tick:
            tick()
            next_tick += tick_s
        for pipe in wait(list(running), timeout=None if tick is None else max(0.0, next_tick - clock.now())):
            index = running[pipe]
            kind, content = _receive(pipe)
            if kind == _READY:
                ready += 1
                if ready % len(devices) == 0:
                    for each in pipes:
                        each.send(None)
            elif kind == _DONE:
                results[index] = content
                del running[pipe]
            elif kind == _SKIP:
                raise Skip(content)
            else:
                raise WorkerFailed(f"the worker on {devices[index].id} failed: {content}")
    return results


def _receive(pipe: Any) -> Any:
    try:
        return pipe.recv()
    except (EOFError, ConnectionResetError):
        return _ERROR, "it died without a message (killed, out of memory, or crashed)"


def _work_in_child(
    device: Device, index: int, count: int, work: Callable[[Worker], Any], pipe: Any, parent: int
) -> None:
    processes.die_with_parent(parent)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)

    def ready() -> None:
        pipe.send((_READY, None))
        pipe.recv()

    try:
        os.sched_setaffinity(0, {device.index})
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        cpu_time.begin_worker()
        result = work(Worker(device, index, count, ready))
        pipe.send((_DONE, (result, cpu_time.spent())))
    except Skip as skip:
        pipe.send((_SKIP, str(skip)))
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        pipe.send((_ERROR, f"{type(error).__name__}: {error} ({where})"))
