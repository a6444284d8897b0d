"""The inventory probe passes on the hardware's facts and puts no load on it."""

from muster_node.hardware import open_hardware
from muster_node.probes.inventory import Inventory


def test_every_fact_is_reported(run_probe):
    run = run_probe(Inventory)
    facts = [(fact.name, fact.device) for fact in open_hardware().inventory()]
    assert [(m.metric, m.device) for m in run] == [("kernel_log_time", "node"), *facts]
    assert Inventory.loads is False


def test_unreadable_facts_keep_their_note(run_probe):
    unreadable = [m for m in run_probe(Inventory) if m.value is None and m.text is None]
    assert all(m.note for m in unreadable)
