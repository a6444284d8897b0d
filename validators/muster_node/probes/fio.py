"""fio on the scratch disk, where it is installed: rates in large blocks, operations and latency in small ones.

Works on one capped file of its own that is removed whatever happens, and refuses as the ``disk`` probe does where the
file would take more than half of the free space. What the disk gives back is verified by that probe, not here.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any, Dict, List, Optional

from muster_node.hardware.seam import SCRATCH_DISK
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.probes.disk import check_room
from muster_node.tools.run import BadOutput, real_only, run_tool
from muster_node.workloads.common import MIB

TESTS = {
    "write 1M": ("write", "1M", 8),
    "read 1M": ("read", "1M", 8),
    "random read 4k": ("randread", "4k", 32),
    "random write 4k": ("randwrite", "4k", 32),
}
"""How each is run: pattern, block, operations under way. The first lays out the file that the others use."""
_GRACE_S = 60.0  # beyond fio's own time limit: for laying out the file and for the last flush
_NS_PER_MS = 1e6


@dataclasses.dataclass(frozen=True)
class FioRun:
    """What one test gave: bytes and operations a second, and the latency in ms that 99 % keep to, if it is told."""

    bytes_per_s: float
    iops: float
    p99_ms: Optional[float]


def parse_fio(text: str, pattern: str) -> FioRun:
    """Read ``fio --output-format=json``. Raises BadOutput where there is none, or where fio had an error."""
    begin = text.find("{")  # warnings may stand before it
    try:
        jobs = json.loads(text[begin:])["jobs"] if begin >= 0 else []
        job = jobs[0]
        side: Dict[str, Any] = job["write" if pattern.endswith("write") else "read"]
        error, rate, iops = int(job["error"]), float(side["bw_bytes"]), float(side["iops"])
        p99 = side.get("clat_ns", {}).get("percentile", {}).get("99.000000")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as wrong:
        raise BadOutput("it has no result of a job") from wrong
    if error:
        raise BadOutput("it failed: %s" % os.strerror(error))
    if rate <= 0 or iops <= 0:
        raise BadOutput("it moved nothing")
    return FioRun(rate, iops, None if p99 is None else float(p99) / _NS_PER_MS)


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
        """Run every test. Raises Skip on simulated hardware or without room, RuntimeError if one gave no result."""
        real_only(context)
        params = context.params
        unknown = [test for test in params["tests"] if test not in TESTS]
        if unknown:
            raise ValueError("there is no test %r (there are: %s)" % (unknown[0], ", ".join(TESTS)))
        directory = pathlib.Path(params["directory"] or context.scratch)
        check_room(directory, int(params["mib"] * MIB))
        path = directory / ("muster-fio-%d.scratch" % os.getpid())
        broken = []
        try:
            for test in params["tests"]:
                context.progress("fio: %s" % test)
                try:
                    _emit(context, test, _measured(context, path, test))
                except BadOutput as error:
                    broken.append("%s: %s" % (test, error))
        finally:
            path.unlink(missing_ok=True)
        if broken:
            raise RuntimeError("fio, %s" % "; ".join(broken))


def _command(path: pathlib.Path, test: str, mib: int, seconds: float) -> List[str]:
    pattern, block, depth = TESTS[test]
    return [
        "fio", "--output-format=json", "--name=muster", "--filename=%s" % path, "--size=%dM" % mib, "--rw=%s" % pattern,
        "--bs=%s" % block, "--iodepth=%d" % depth, "--ioengine=libaio", "--direct=1", "--time_based",
        "--runtime=%g" % seconds, "--end_fsync=1", "--randrepeat=0", "--group_reporting",
    ]  # fmt: skip


def _measured(context: Context, path: pathlib.Path, test: str) -> FioRun:
    seconds = float(context.params["seconds"])
    done = run_tool(context, _command(path, test, int(context.params["mib"]), seconds), seconds + _GRACE_S)
    if done.status is None:
        raise BadOutput("it did not end within %g s" % (seconds + _GRACE_S))
    try:
        return parse_fio(done.out, TESTS[test][0])
    except BadOutput as error:
        raise BadOutput("%s; it said: %s" % (error, done.last_word())) from error


def _emit(context: Context, test: str, found: FioRun) -> None:
    labels = {"test": test}
    context.emit("fio_rate", SCRATCH_DISK.id, value=found.bytes_per_s / 1e6, labels=labels)
    context.emit("fio_iops", SCRATCH_DISK.id, value=found.iops, labels=labels)
    note = "" if found.p99_ms is not None else "fio told no percentiles"
    context.emit("fio_latency_p99", SCRATCH_DISK.id, value=found.p99_ms, labels=labels, note=note)
