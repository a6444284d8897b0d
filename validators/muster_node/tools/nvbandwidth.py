"""Output of NVIDIA's nvbandwidth: a list of devices (none or without PCI addresses in some versions), then tests.

A test is "Running NAME.", a title with its unit, a line of column numbers, rows, and a sum.
"""

from __future__ import annotations

import dataclasses
import re

from muster_node.hardware.events import normal_pci
from muster_node.tools.output import BadOutput, rate

_DEVICE = re.compile(r"^(?:Device|Process \d+ \(.*\): device) (\d+): .*\(([0-9A-Fa-f:.]+)\)\s*$")
"""The second form is of builds with MPI, which number devices of one host in the order of the bus."""
_RUNNING = re.compile(r"^Running (\w+)\.")
_TITLE = re.compile(r"^\S.*\(column\).*\((GB/s|ns)\)\s*$")
_SUM = re.compile(r"^SUM (\w+) ([\d.]+)")
_WAIVED = re.compile(r"^Waived\b", re.IGNORECASE)
"""Of a test that is not begun, whose name the tool does not print (its output.cpp, ``addTestcase``)."""
_ERROR = re.compile(r"\b(?:ERROR|CUDA_ERROR_\w+|NVML_ERROR_\w+|ASSERT)\b.*")
_CORRUPT = "Invalid value when checking the pattern"

Matrix = dict[tuple[int, int], float]


@dataclasses.dataclass(frozen=True)
class Test:
    """One test: its unit ("GB/s" or "ns"), and its cells by (row, column); what was not measured has no cell.

    Columns are GPUs. Rows are GPUs if ``between_gpus``, else the host.
    """

    name: str
    unit: str
    cells: Matrix
    between_gpus: bool


@dataclasses.dataclass(frozen=True)
class Bandwidths:
    """PCI address by CUDA device number ({} if not printed), the tests, and those that read back wrong data.

    ``waived``: how many tests this machine has nothing for, such as copies between GPUs where there is one.
    """

    devices: dict[int, str]
    tests: list[Test]
    corrupt: tuple[str, ...] = ()
    waived: int = 0


def parse_nvbandwidth(text: str) -> Bandwidths:
    """Raises BadOutput for a test that is cut short or reports an error; corrupt data is a result."""
    lines = text.splitlines()
    devices = {int(found.group(1)): normal_pci(found.group(2)) for found in map(_DEVICE.match, lines) if found}
    corrupt = _corrupt(lines)
    failed = _ERROR.search(text)
    if failed and not corrupt:
        raise BadOutput("failed", f"failed: {failed.group(0)[:160]}")
    tests, running = [], ""
    for place, line in enumerate(lines):
        found = _RUNNING.match(line)
        running = found.group(1) if found else running
        title = _TITLE.match(line)
        if title and running:
            between = "GPU(row)" in line
            tests.append(Test(running, title.group(1), _matrix(lines[place + 1 :], running, between), between))
            running = ""
    begun = [found.group(1) for found in map(_RUNNING.match, lines) if found]
    for name in begun:
        if name not in {*corrupt, *(test.name for test in tests)}:
            raise BadOutput("cut short", f"broke off in {name}")
    if not tests and not corrupt:
        raise BadOutput("no results", "printed no results")
    return Bandwidths(devices, tests, corrupt, sum(_WAIVED.match(line) is not None for line in lines))


def _corrupt(lines: list[str]) -> tuple[str, ...]:
    """Names of the tests whose copies did not arrive as they were sent."""
    running, found = "", {}  # type: str, dict[str, None]
    for line in lines:
        match = _RUNNING.match(line)
        running = match.group(1) if match else running
        if _CORRUPT in line:
            found[running] = None
    return tuple(found)


def _matrix(lines: list[str], name: str, between_gpus: bool) -> Matrix:
    """The cells below a title. Between GPUs the diagonal is no rate: version 0.1 prints 0.00 there, later ones N/A."""
    columns = [int(word) for word in lines[0].split() if word.isdigit()] if lines else []
    cells: Matrix = {}
    for line in lines[1:]:
        words = line.split()
        if _SUM.match(line):
            return cells
        if words and (not words[0].isdigit() or len(words) != len(columns) + 1):
            break
        for column, word in zip(columns, words[1:]):
            value, row = rate(word), int(words[0])
            if value is not None and not (between_gpus and row == column):
                cells[row, column] = value
    raise BadOutput("cut short", f"broke off in {name}")
