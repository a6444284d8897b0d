"""NVIDIA's nvbandwidth, where it is installed: rates between host and GPUs and between GPUs.

It runs after a cool-down, so that the heat of an earlier burn does not slow it.
"""

from __future__ import annotations

import statistics

from muster_node.hardware.events import by_pci
from muster_node.probe import Context, Metric, Param, Probe
from muster_node.tools.nvbandwidth import Bandwidths, Test, parse_nvbandwidth
from muster_node.tools.output import BadOutput
from muster_node.tools.run import COOL_PARAMS, cool_down, real_only, result_of

_WAIVED = "nvbandwidth waived the test"
TESTS = ("host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_read_ce")


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
        "nvbandwidth_corruptions": Metric("count", "1 where a copy did not arrive as it was sent, by test"),
    }
    needs = ("gpu", "tool:nvbandwidth")

    def run(self, context: Context) -> None:
        """Run it once for all tests. Raises Skip on simulated hardware, RuntimeError if a test gave no result."""
        real_only(context)
        note, limit_s = cool_down(context), context.params["limit_s"]
        context.progress("nvbandwidth: {}".format(", ".join(context.params["tests"])))
        command = ["nvbandwidth", "-i", str(int(context.params["samples"])), "-t", *context.params["tests"]]
        try:
            found = result_of(context, command, limit_s, parse_nvbandwidth, lambda found: found.corrupt)
            for name in {**dict.fromkeys(test.name for test in found.tests), **dict.fromkeys(found.corrupt)}:
                context.emit("nvbandwidth_corruptions", "node", value=name in found.corrupt, labels={"test": name})
            names = _names(context, found)
        except BadOutput as error:
            raise RuntimeError(f"nvbandwidth {error}") from error
        for test in found.tests:
            _emit(context, test, names, note)
        for name in _waived(context, found):  # as where no GPU reaches another directly
            for gpu in context.hardware.devices("gpu"):
                context.emit("nvbandwidth_rate", gpu.id, labels={"test": name}, samples=0, note=_WAIVED)
        if found.corrupt:  # it ends at the first corrupt copy
            raise RuntimeError("nvbandwidth ended at corrupt data in {}".format(", ".join(found.corrupt)))
        missing = _missing(context, found, names)
        if missing:
            raise RuntimeError("nvbandwidth measured nothing of {}".format("; ".join(missing)))


def _left_out(context: Context, found: Bandwidths) -> list[str]:
    """The tests to run that gave neither figures nor corrupt data."""
    ran = {*found.corrupt, *(test.name for test in found.tests)}
    return [name for name in context.params["tests"] if name not in ran]


def _waived(context: Context, found: Bandwidths) -> list[str]:
    """The tests that this machine has nothing for: those left out, where the tool says so of as many."""
    left_out = _left_out(context, found)
    return left_out if len(left_out) <= found.waived else []


def _missing(context: Context, found: Bandwidths, names: dict[int, str]) -> list[str]:
    """What was to be measured and has no figure: whole tests, and GPUs in a test."""
    by_test = {test.name: {names[column] for _, column in test.cells} for test in found.tests}
    answering = [device.id for device in context.hardware.devices("gpu")]
    missing = [] if _waived(context, found) else _left_out(context, found)
    for name in by_test:
        without = [gpu for gpu in answering if gpu not in by_test[name]]
        if without:
            missing.append("{} in {}".format(", ".join(without), name))
    return missing


def _names(context: Context, found: Bandwidths) -> dict[int, str]:
    """Device by CUDA number: by the PCI addresses that the tool prints, else by the order of the bus.

    Raises BadOutput if it prints none and counts other GPUs than answer, or one at an address that none has: then the
    numbers cannot be mapped.
    """
    there = by_pci(context.hardware.inventory())
    numbers = {column for test in found.tests for _, column in test.cells}
    if numbers <= found.devices.keys():
        if strange := sorted(found.devices[number] for number in numbers if found.devices[number] not in there):
            raise BadOutput("unknown GPUs", f"measured a GPU at {strange[0]}, where none answers under that address")
        return {number: there[pci] for number, pci in found.devices.items() if pci in there}
    in_bus_order = [device for _, device in sorted(there.items())]
    if not numbers <= set(range(len(in_bus_order))) or len(in_bus_order) != len(context.hardware.devices("gpu")):
        raise BadOutput("unknown GPUs", "numbers GPUs without PCI addresses, and not as many as answer")
    return dict(enumerate(in_bus_order))


def _emit(context: Context, test: Test, names: dict[int, str], note: str) -> None:
    """One figure for each GPU: the median over its peers, so that one bad GPU does not spoil those of all others."""
    metric = "nvbandwidth_latency" if test.unit == "ns" else "nvbandwidth_rate"
    worst = max if test.unit == "ns" else min
    for gpu in sorted({column for _, column in test.cells}):
        cells = {row: value for (row, column), value in test.cells.items() if column == gpu}
        peer = worst(cells, key=lambda row: cells[row])
        slowest = "slowest with {}: {:g} {}".format(names.get(peer, f"device {peer}"), cells[peer], test.unit)
        context.emit(
            metric,
            names[gpu],
            value=statistics.median(cells.values()),
            labels={"test": test.name},
            samples=int(context.params["samples"]),
            note="; ".join(filter(None, (slowest if test.between_gpus else "", note))),
        )
