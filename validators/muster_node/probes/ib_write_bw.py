"""perftest's ib_write_bw on each InfiniBand or RoCE port that is up, looped back to itself: port, PCIe and firmware.

The cable to the switch is not part of it; rates between nodes are measured by the cluster probes.
"""

from __future__ import annotations

from muster_node.probe import Context, Metric, Param, Probe, Skip
from muster_node.tools.output import BadOutput
from muster_node.tools.perftest import ib_write_bw, parse_ib_write_bw
from muster_node.tools.run import real_only, result_of, started

_FIRST_PORT = 18515
_START_S = 1.0
_WITH_RDMA = ("InfiniBand", "Ethernet")
"""Link layers whose ports have the reliable connections that ib_write_bw writes over; EFA's says "Unknown"."""


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
        """Measure each port. Raises Skip on simulated hardware and if no such port is up, RuntimeError if one fails."""
        real_only(context)
        facts = list(context.hardware.inventory())
        rates = {fact.device: fact.value for fact in facts if fact.name == "nic_speed" and fact.value}
        active = {fact.device for fact in facts if fact.name == "ib_port_active" and fact.value == 1.0}
        others = {f.device for f in facts if f.name == "ib_link_layer" and f.text and f.text not in _WITH_RDMA}
        up = sorted((active & rates.keys()) - others)
        if not up:
            raise Skip("no InfiniBand or RoCE port is up")
        broken = []
        for place, device in enumerate(up):
            context.progress(f"ib_write_bw on {device}")
            try:
                average = _measured(context, device, _FIRST_PORT + place)
            except BadOutput as error:
                broken.append(f"{device}: ib_write_bw {error}")
                continue
            context.emit("ib_bandwidth", device, value=average)
            context.emit("ib_share", device, value=100.0 * average / (rates[device] or 1.0))
        if broken:
            raise RuntimeError("; ".join(broken))


def _measured(context: Context, device: str, port: int) -> float:
    """Gb/s of one port. Raises BadOutput."""
    sizes = ("-s", str(int(context.params["size"])), "-D", str(int(context.params["seconds"])))
    command = ib_write_bw(device.partition(":")[2], port, *sizes)
    with started(context, command):
        context.hardware.clock.sleep(_START_S)  # until the server listens
        client = [*command, "127.0.0.1"]
        return result_of(context, client, context.params["limit_s"], parse_ib_write_bw, stderr=True)
