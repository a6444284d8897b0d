"""The inventory probe passes on the hardware's facts and puts no load on it."""

import pytest

from muster_node.hardware import open_hardware
from muster_node.hardware.seam import Fact
from muster_node.probes.inventory import JOINING, Inventory


def test_every_fact_is_reported(run_probe):
    run = run_probe(Inventory)
    facts = [(fact.name, fact.device) for fact in open_hardware().inventory()]
    assert [(m.metric, m.device) for m in run] == [("kernel_log_time", "node"), *facts]
    assert Inventory.loads is False


def test_unreadable_facts_keep_their_note(run_probe):
    unreadable = [m for m in run_probe(Inventory) if m.value is None and m.text is None]
    assert all(m.note for m in unreadable)


class Booting:
    """Hardware whose GPU joins its NVSwitch fabric ``joins_s`` seconds from now, by a clock of its own."""

    def __init__(self, joins_s):
        self.joins_s, self.at, self.clock = joins_s, 0.0, self

    def now(self):
        return self.at

    def sleep(self, seconds):
        self.at += seconds

    def kernel_log(self):
        return ()

    def inventory(self):
        yield Fact("fabric_state", "gpu0", "state", text="completed" if self.at >= self.joins_s else JOINING)


@pytest.mark.parametrize(
    ("joins_s", "waits_s", "state"), [(60, 150, "completed"), (600, 150, JOINING), (60, 0, JOINING)]
)
def test_a_fabric_that_forms_after_a_boot_is_waited_for_within_bounds(run_probe, joins_s, waits_s, state):
    hardware = Booting(joins_s)
    assert run_probe(Inventory, hardware, fabric_wait_s=waits_s).one("fabric_state", "gpu0").text == state
    assert hardware.at <= waits_s
