"""perftest's ib_write_bw on each InfiniBand or RoCE port that is up, looped back to itself: port, PCIe and firmware.

The wire to the next switch is not part of it: that is measured between nodes.
"""

from __future__ import annotations

import re
from typing import Dict, Optional

from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.tools.run import BadOutput, real_only, run_tool, started

_HEADER = re.compile(r"BW average\[(Gb/sec|MB/sec|MiB/sec)\]")
_TO_GBITS = {"Gb/sec": 1.0, "MB/sec": 8e-3, "MiB/sec": 8 * 1.048576e-3}
_FIRST_PORT = 18515
_START_S = 1.0


def parse_ib_write_bw(text: str) -> float:
    """Average bandwidth in Gb/s, of the largest size. Raises BadOutput where there is none."""
    unit = _HEADER.search(text)
    if unit is None:
        raise BadOutput("it has no table")
    rates: Dict[int, float] = {}
    for line in text[unit.end() :].splitlines():
        words = line.split()
        if len(words) >= 4 and words[0].isdigit() and words[1].isdigit():
            average = _number(words[3])
            if average is not None:
                rates[int(words[0])] = average
    if not rates:
        raise BadOutput("its table has no line")
    return rates[max(rates)] * _TO_GBITS[unit.group(1)]


def _number(word: str) -> Optional[float]:
    try:
        return float(word)
    except ValueError:
        return None


class IbWriteBw(Probe):
    """RDMA writes of each port to itself."""

    name = "ib_write_bw"
    stage = "performance"
    doc = "ib_write_bw on each active InfiniBand or RoCE port, looped back"
    params = {
        "seconds": Param(5, "how long each port is measured"),
        "size": Param(65536, "bytes of each message"),
        "limit_s": Param(60.0, "seconds for each port"),
    }
    metrics = {
        "ib_bandwidth": Metric("Gb/s", "average bandwidth"),
        "ib_share": Metric("%", "average bandwidth as a share of the port's rate"),
    }
    needs = ("tool:ib_write_bw",)

    def run(self, context: Context) -> None:
        """Measure each port. Raises Skip on simulated hardware and where no port is up, RuntimeError if one fails."""
        real_only(context)
        facts = list(context.hardware.inventory())
        rates = {fact.device: fact.value for fact in facts if fact.name == "nic_speed" and fact.value}
        active = {fact.device for fact in facts if fact.name == "ib_port_active" and fact.value == 1.0}
        up = sorted(active & rates.keys())
        if not up:
            raise Skip("no InfiniBand or RoCE port is up")
        broken = []
        for place, device in enumerate(up):
            context.progress("ib_write_bw on %s" % device)
            try:
                average = _measured(context, device, _FIRST_PORT + place)
            except BadOutput as error:
                broken.append("%s: %s" % (device, error))
                continue
            context.emit("ib_bandwidth", device, value=average)
            context.emit("ib_share", device, value=100.0 * average / (rates[device] or 1.0))
        if broken:
            raise RuntimeError("; ".join(broken))


def _measured(context: Context, device: str, port: int) -> float:
    """Gb/s of one port. Raises BadOutput."""
    name, _, number = device.partition(":")[2].partition("/")
    command = ["ib_write_bw", "-d", name, "-i", number or "1", "-p", str(port), "-F", "--report_gbits"]
    command += ["-s", str(int(context.params["size"])), "-D", str(int(context.params["seconds"]))]
    with started(context, command):
        context.hardware.clock.sleep(_START_S)  # until the server listens
        done = run_tool(context, [*command, "127.0.0.1"], context.params["limit_s"])
    if done.status is None:
        raise BadOutput("it did not end within %g s" % context.params["limit_s"])
    try:
        return parse_ib_write_bw(done.out)
    except BadOutput as error:
        raise BadOutput("%s; it said: %s" % (error, done.last_word())) from error
