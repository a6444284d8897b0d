"""Write and read rates of the scratch disk, with a check that it returns the written data.

Works on one capped scratch file of its own, past the page cache where the file system allows (O_DIRECT). Never touches
a device or a file that was there before, and refuses where the file would take more than half of the free space.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import mmap
import os
import pathlib
import random
from collections.abc import Iterator

from muster_node.agent import jobdir
from muster_node.hardware.seam import SCRATCH_DISK, Clock
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.workloads.common import MIB, seed_of, spread
from muster_node.workloads.rerun import DOC as RERUN_DOC
from muster_node.workloads.rerun import Rerun, report_reruns

_BLOCK = 4 * MIB
_RERUNS = 3
_MEMORY = ("tmpfs", "ram", "zram", "rootfs", "devtmpfs")
"""Beginnings of the names of file systems in memory, and of disks in memory."""
_ZFS_DIRECT = pathlib.Path("/sys/module/zfs/parameters/zfs_dio_enabled")
"""1 where ZFS reads past its own cache if asked, from OpenZFS 2.3 on. Earlier ones take O_DIRECT and read the cache."""


class Disk(Probe):
    """Sequential write and read of a scratch file, verified block by block."""

    name = "disk"
    stage = "performance"
    doc = "Sequential rates of the scratch disk, and digests of what it returns"
    params = {
        "mib": Param(256, "size of the scratch file in MiB"),
        "directory": Param(None, "where to put the scratch file; None: the probe's own scratch directory"),
    }
    metrics = {
        "disk_write_rate": Metric("MB/s", "bytes written per second, the final flush to the device included"),
        "disk_read_rate": Metric("MB/s", "bytes read per second"),
        "disk_mismatches": Metric("count", "blocks of 4 MiB that came back different"),
        "disk_rerun": Metric("count", RERUN_DOC),
    }

    def run(self, context: Context) -> None:
        """Measure. Raises Skip where less than twice the file's size is free or the directory cannot be written."""
        directory = pathlib.Path(context.params["directory"] or context.scratch)
        why = no_disk(directory) if context.hardware.devices("disk") else "the machine has no disk of its own"
        if why:
            for metric in self.metrics:
                context.emit(metric, SCRATCH_DISK.id, samples=0, note=why)
            return
        blocks = max(1, int(context.params["mib"]) * MIB // _BLOCK)
        check_room(directory, blocks * _BLOCK)
        path = directory / f"muster-disk-{os.getpid()}.scratch"
        context.progress(f"writing and reading {blocks * _BLOCK // MIB} MiB in {directory}")
        clock, seed = context.hardware.clock, seed_of(context.seed, "disk")
        _create(path)
        try:
            with _opened(path, os.O_WRONLY) as (descriptor, _):
                written, digests = _write(descriptor, blocks, seed, clock)
            with _opened(path, os.O_RDONLY) as (descriptor, direct):
                read, wrong, again = _read(descriptor, digests, clock, context)
        finally:
            path.unlink(missing_ok=True)
        note = "" if direct else "the file system has no direct reads; the page cache was asked to drop the file first"
        for metric, times in (("disk_write_rate", written), ("disk_read_rate", read)):
            rates = [_BLOCK / 1e6 / seconds for seconds in times.blocks]
            value = blocks * _BLOCK / 1e6 / (sum(times.blocks) + times.flush)
            context.emit(metric, SCRATCH_DISK.id, value=value, samples=blocks, spread=spread(rates), note=note)
        context.emit("disk_mismatches", SCRATCH_DISK.id, value=wrong, samples=blocks)
        report_reruns(context, "disk_rerun", SCRATCH_DISK.id, {}, {SCRATCH_DISK.id: again})


@dataclasses.dataclass(frozen=True)
class _Times:
    """Seconds for each block, and for the flush at the end."""

    blocks: list[float]
    flush: float = 0.0


def no_disk(directory: pathlib.Path) -> str:
    """Why what is written there reaches no disk of this machine; "" if it may. Memory too takes direct writes."""
    kind = jobdir.file_system(directory)
    if kind.startswith(_MEMORY):
        return f"{directory} lies in memory ({kind}): no disk was tested"
    if jobdir.is_shared(kind):
        return f"{directory} lies on another machine ({kind}): no disk of this one was tested"
    if kind == "zfs" and _text(_ZFS_DIRECT) != "1":
        return f"{directory} lies on a ZFS that answers reads from memory ({kind}): no disk was tested"
    return ""


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def check_room(directory: pathlib.Path, size: int) -> None:
    """Raises Skip where ``size`` bytes would take more than half of what is free, or their number is unknown."""
    try:
        status = os.statvfs(directory)
    except OSError as error:
        raise Skip(f"the scratch directory cannot be used: {error}") from error
    free = status.f_bavail * status.f_frsize
    if free < 2 * size:
        raise Skip(f"only {free // MIB} MiB are free in {directory}, {2 * size // MIB} are needed")


def _create(path: pathlib.Path) -> None:
    """Creates an empty file; raises FileExistsError if it exists."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except PermissionError as error:
        raise Skip(f"the scratch directory cannot be written: {error}") from error


@contextlib.contextmanager
def _opened(path: pathlib.Path, flags: int) -> Iterator[tuple[int, bool]]:
    """The file's descriptor, and whether it bypasses the page cache."""
    try:
        descriptor, direct = os.open(path, flags | os.O_DIRECT), True
    except OSError:  # tmpfs and some network file systems
        descriptor, direct = os.open(path, flags), False
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        yield descriptor, direct
    finally:
        os.close(descriptor)


def _write(descriptor: int, blocks: int, seed: int, clock: Clock) -> tuple[_Times, list[bytes]]:
    generator, seconds, digests = random.Random(seed), [], []
    with mmap.mmap(-1, _BLOCK) as buffer:  # page-aligned, as direct writes demand
        for _ in range(blocks):
            buffer[:] = generator.randbytes(_BLOCK)
            digests.append(hashlib.sha256(buffer).digest())
            start = clock.now()
            if os.write(descriptor, buffer) != _BLOCK:
                raise OSError("the disk took only a part of a block")
            seconds.append(clock.now() - start)
    start = clock.now()
    os.fsync(descriptor)
    return _Times(seconds, clock.now() - start), digests


def _read(descriptor: int, digests: list[bytes], clock: Clock, context: Context) -> tuple[_Times, int, Rerun]:
    """Times, the number of wrong blocks, and the first of them read again."""
    seconds, again = [], Rerun()  # type: list[float], Rerun
    with mmap.mmap(-1, _BLOCK) as buffer:

        def differs(number: int) -> bool:
            start = clock.now()
            count = os.preadv(descriptor, [buffer], number * _BLOCK)
            seconds.append(clock.now() - start)
            return count != _BLOCK or hashlib.sha256(buffer).digest() != digests[number]

        bad: list[int] = []
        for number in range(len(digests)):
            if differs(number):
                bad.append(number)
                context.emit("disk_mismatches", SCRATCH_DISK.id, value=len(bad), samples=number + 1, so_far=True)
        times = _Times(seconds[:])
        for _ in range(_RERUNS if bad else 0):
            os.posix_fadvise(descriptor, bad[0] * _BLOCK, _BLOCK, os.POSIX_FADV_DONTNEED)
            again.add(differs(bad[0]))
    return times, len(bad), again
