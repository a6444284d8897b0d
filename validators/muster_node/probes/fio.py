"""fio on the scratch disk, where it is installed: rates in large blocks, operations and latency in small ones.

It works on one file of its own, which is always removed and takes at most half of the free space. The ``disk`` probe
verifies what the disk returns; this one does not.
"""

from __future__ import annotations

import os
import pathlib

from muster_node.hardware.seam import SCRATCH_DISK
from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.probes.disk import check_room, no_disk
from muster_node.tools.fio import FioRun, parse_fio
from muster_node.tools.output import BadOutput
from muster_node.tools.run import real_only, result_of
from muster_node.workloads.common import MIB

TESTS = {
    "write 1M": ("write", "1M", 8),
    "read 1M": ("read", "1M", 8),
    "random read 4k": ("randread", "4k", 32),
    "random write 4k": ("randwrite", "4k", 32),
}
"""How each is run: pattern, block, operations under way. The first lays out the file that the others use."""
_GRACE_S = 60.0  # beyond fio's own time limit: for laying out the file and for the last flush


class Fio(Probe):
    """fio's own measurements."""

    name = "fio"
    stage = "performance"
    doc = "fio on the scratch disk: sequential rates, random operations a second, latency"
    params = {
        "tests": Param(list(TESTS), "tests to run, in this order"),
        "mib": Param(1024, "size of the scratch file in MiB"),
        "seconds": Param(20.0, "how long each test runs"),
        "directory": Param(None, "where to put the scratch file; None: the probe's own scratch directory"),
    }
    metrics = {
        "fio_rate": Metric("MB/s", "bytes moved per second, by test"),
        "fio_iops": Metric("1/s", "operations per second, by test"),
        "fio_latency_p99": Metric("ms", "latency that 99 % of the operations keep to, by test"),
    }
    needs = ("tool:fio",)

    def run(self, context: Context) -> None:
        """Run every test. Raises Skip if simulated, without a disk or room; RuntimeError if one gave no result."""
        real_only(context)
        params = context.params
        unknown = [test for test in params["tests"] if test not in TESTS]
        if unknown:
            raise ValueError("there is no test {!r} (there are: {})".format(unknown[0], ", ".join(TESTS)))
        directory = pathlib.Path(params["directory"] or context.scratch)
        if why := no_disk(directory):
            raise Skip(why)
        check_room(directory, int(params["mib"] * MIB))
        path = directory / f"muster-fio-{os.getpid()}.scratch"
        broken = []
        try:
            for test in params["tests"]:
                context.progress(f"fio: {test}")
                try:
                    _emit(context, test, _measured(context, path, test))
                except BadOutput as error:
                    broken.append(f"{test}: fio {error}")
        finally:
            path.unlink(missing_ok=True)
        if broken:
            raise RuntimeError("; ".join(broken))


def _command(path: pathlib.Path, test: str, mib: int, seconds: float) -> list[str]:
    pattern, block, depth = TESTS[test]
    return [
        "fio", "--output-format=json", "--name=muster", f"--filename={path}", f"--size={mib}M", f"--rw={pattern}",
        f"--bs={block}", f"--iodepth={depth}", "--ioengine=libaio", "--direct=1", "--time_based",
        f"--runtime={seconds:g}", "--end_fsync=1", "--randrepeat=0", "--group_reporting",
    ]  # fmt: skip


def _measured(context: Context, path: pathlib.Path, test: str) -> FioRun:
    seconds, pattern = float(context.params["seconds"]), TESTS[test][0]
    command = _command(path, test, int(context.params["mib"]), seconds)
    return result_of(context, command, seconds + _GRACE_S, lambda out: parse_fio(out, pattern))


def _emit(context: Context, test: str, found: FioRun) -> None:
    labels = {"test": test}
    context.emit("fio_rate", SCRATCH_DISK.id, value=found.bytes_per_s / 1e6, labels=labels)
    context.emit("fio_iops", SCRATCH_DISK.id, value=found.iops, labels=labels)
    note = "" if found.p99_ms is not None else "fio printed no percentiles"
    context.emit("fio_latency_p99", SCRATCH_DISK.id, value=found.p99_ms, labels=labels, note=note)
