"""A machine whose GPUs cool by themselves: what vendors' tools are run on in tests."""

from muster_node.hardware.seam import Device, Fact, RealClock, Sample


class FastClock(RealClock):
    """Sleeping moves the clock and takes no real time."""

    def __init__(self):
        self.slept = 0.0

    def now(self):
        return self.slept

    def sleep(self, seconds):
        self.slept += seconds


class Machine:
    """Two GPUs that cool by a degree with every look, in slots that do not follow their addresses."""

    simulated = False

    def __init__(self, start_c=40.0, floor_c=30.0):
        self.clock, self._c, self._floor = FastClock(), start_c, floor_c

    def devices(self, kind):
        return [Device("gpu5", "gpu", 5), Device("gpu2", "gpu", 2)]

    def telemetry(self):
        self._c = max(self._floor, self._c - 1.0)
        return [Sample("temperature", "gpu5", "°C", self._c)]

    def inventory(self):
        return [
            Fact("pci_address", "gpu5", "text", text="00000000:1B:00.0"),
            Fact("pci_address", "gpu2", "text", text="00000000:43:00.0"),
            Fact("nic_speed", "nic:mlx5_0", "Gb/s", 400.0),
            Fact("ib_port_active", "nic:mlx5_0", "bool", 1.0),
        ]
