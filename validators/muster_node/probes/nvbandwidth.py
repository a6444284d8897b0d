"""NVIDIA's nvbandwidth, where it is installed: rates between host and GPUs and between GPUs, GPU by GPU.

It is run after a cool-down: straight after a burn it measures the heat that the burn left.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from typing import Dict, List, Optional, Tuple

from muster_node.hardware.host.xid_log import normal_pci
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.tools.run import COOL_PARAMS, BadOutput, cool_down, gpus_by_pci, real_only, run_tool

TESTS = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce")
_DEVICE = re.compile(r"^Device (\d+): .*\(([0-9A-Fa-f:.]+)\)\s*$")
_RUNNING = re.compile(r"^Running (\w+)\.")
_TITLE = re.compile(r"^(?:memcpy|memory) .*\((GB/s|ns)\)\s*$")
_SUM = re.compile(r"^SUM (\w+) ([\d.]+)")
_ERROR = re.compile(r"\b(?:ERROR|CUDA_ERROR_\w+|NVML_ERROR_\w+)\b.*")

Matrix = Dict[Tuple[int, int], float]


@dataclasses.dataclass(frozen=True)
class Test:
    """One test: its unit, and its cells by (row, column); rows are the host or GPUs, columns GPUs. N/A has no cell."""

    name: str
    unit: str
    cells: Matrix
    to_gpus: bool
    """Whether rows are GPUs too."""


def parse_nvbandwidth(text: str) -> Tuple[Dict[int, str], List[Test]]:
    """(CUDA's device number → PCI address, tests). Raises BadOutput where a test broke off or reports an error."""
    lines = text.splitlines()
    devices = {int(found.group(1)): normal_pci(found.group(2)) for found in map(_DEVICE.match, lines) if found}
    failed = _ERROR.search(text)
    if failed:
        raise BadOutput("it failed: %s" % failed.group(0)[:160])
    tests, begun = [], ""
    for place, line in enumerate(lines):
        running = _RUNNING.match(line)
        begun = running.group(1) if running else begun
        title = _TITLE.match(line)
        if title and begun:
            tests.append(Test(begun, title.group(1), _matrix(lines[place + 1 :], begun), "GPU(row)" in line))
            begun = ""
    if begun and begun not in {test.name for test in tests}:
        raise BadOutput("it breaks off in %s" % begun)
    if not tests:
        raise BadOutput("it has no results")
    return devices, tests


def _matrix(lines: List[str], name: str) -> Matrix:
    """The cells below a title: a line of column numbers, then rows, then the sum that ends the test."""
    if not lines:
        raise BadOutput("it breaks off in %s" % name)
    columns = [int(word) for word in lines[0].split() if word.isdigit()]
    cells: Matrix = {}
    for line in lines[1:]:
        found = _SUM.match(line)
        if found:
            return cells
        words = line.split()
        if not words:
            continue
        if not words[0].isdigit():
            break
        for column, word in zip(columns, words[1:]):
            value = _number(word)
            if value is not None:
                cells[int(words[0]), column] = value
    raise BadOutput("it breaks off in %s" % name)


def _number(word: str) -> Optional[float]:
    try:
        return float(word)
    except ValueError:  # N/A: a GPU with itself
        return None


class Nvbandwidth(Probe):
    """Copy rates as NVIDIA's own tool measures them."""

    name = "nvbandwidth"
    stage = "performance"
    doc = "nvbandwidth: rates between host and each GPU, and between GPUs"
    params = {
        "tests": Param(list(TESTS), "nvbandwidth's names of the tests to run"),
        "samples": Param(3, "repeats of each test, of which the tool reports the median"),
        "limit_s": Param(600.0, "seconds for all tests"),
        **COOL_PARAMS,
    }
    metrics = {
        "nvbandwidth_rate": Metric("GB/s", "rate by test; between GPUs the median over peers, the slowest in the note"),
        "nvbandwidth_latency": Metric("ns", "latency by test, the median over peers"),
    }
    needs = ("gpu", "tool:nvbandwidth")

    def run(self, context: Context) -> None:
        """Run it once for all tests. Raises Skip on simulated hardware, RuntimeError on output that cannot be read."""
        real_only(context)
        note = cool_down(context)
        context.progress("nvbandwidth: %s" % ", ".join(context.params["tests"]))
        command = ["nvbandwidth", "-i", str(int(context.params["samples"])), "-t", *context.params["tests"]]
        done = run_tool(context, command, context.params["limit_s"])
        if done.status is None:
            raise RuntimeError("nvbandwidth did not end within %g s" % context.params["limit_s"])
        try:
            numbered, tests = parse_nvbandwidth(done.out)
        except BadOutput as error:
            raise RuntimeError("nvbandwidth: %s; it said: %s" % (error, done.last_word())) from error
        slots = gpus_by_pci(context.hardware)
        names = {number: slots.get(pci, "gpu%d" % number) for number, pci in numbered.items()}
        for test in tests:
            _emit(context, test, names, note)


def _emit(context: Context, test: Test, names: Dict[int, str], note: str) -> None:
    """One figure for each GPU: the median over its peers, so that one bad GPU does not spoil those of all others."""
    metric = "nvbandwidth_latency" if test.unit == "ns" else "nvbandwidth_rate"
    worst = max if test.unit == "ns" else min
    for gpu in sorted({column for _, column in test.cells}):
        cells = {row: value for (row, column), value in test.cells.items() if column == gpu}
        peer = worst(cells, key=lambda row: cells[row])
        slowest = "slowest with %s: %g %s" % (names.get(peer, "gpu%d" % peer), cells[peer], test.unit)
        context.emit(
            metric,
            names.get(gpu, "gpu%d" % gpu),
            value=statistics.median(cells.values()),
            labels={"test": test.name},
            samples=int(context.params["samples"]),
            note="; ".join(filter(None, (slowest if test.to_gpus else "", note))),
        )
