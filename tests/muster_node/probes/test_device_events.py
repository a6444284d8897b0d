"""The probe of the kernel log: each error and message with device and times; an unreadable log is no empty log."""

from __future__ import annotations

from types import SimpleNamespace

from muster_node.hardware.host.kernel_events import DISTINCT_MAX, folded, parse_events
from muster_node.hardware.seam import Fact
from muster_node.probes.device_events import DeviceEvents

GONE = "<3>[{at}] NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."


def machine(log):
    facts = [Fact("pci_address", "gpu3", "text", text="00000000:1B:00.0")]
    return SimpleNamespace(simulated=False, kernel_log=lambda: log, inventory=lambda: facts)


def test_every_message_has_device_priority_and_times(run_probe):
    log = [GONE.format(at=10.5), GONE.format(at=20.5), "<6>[30.0] usb 1-1: new device", "<3>[40.0] nvme nvme0: zzz"]
    run = run_probe(DeviceEvents, machine(log))
    found = [
        (m.device, m.labels["priority"], m.labels["at"], m.labels["last"], m.samples) for m in run.all("kernel_event")
    ]
    assert found == [("gpu3", "3", "10.500000", "20.500000", 2), ("node", "3", "40.000000", "40.000000", 1)]
    assert run.one("kernel_event_total").value == 3
    assert run.one("kernel_log_begin").value == 10.5
    assert run.one("kernel_log_clock").value > 0.0


def test_a_drivers_error_carries_code_device_time_and_text(run_probe):
    run = run_probe(
        DeviceEvents,
        machine(
            [
                "[9107.5] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
                "[9107.6] NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.",
                "[9108.0] NVRM: Xid (PCI:0000:5e:00): 62, ",
                "[9109.0] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            ]
        ),
    )
    assert [
        (m.device, m.text, m.labels["kind"], m.labels["code"], m.labels["at"], m.samples) for m in run.all("xid")
    ] == [
        ("gpu3", "GPU has fallen off the bus.", "xid", "79", "9107.500000", 2),
        ("node", "(no text)", "xid", "62", "9108.000000", 1),  # its GPU answers no more, so only its address is known
        ("nvswitch0", "Fatal, Link 30 LTSSM Fault Up", "sxid", "20034", "9109.000000", 1),
    ]
    assert run.all("xid")[1].labels["pci"] == "0000:5e:00"
    assert run.one("xid_total").value == 4


def test_an_empty_log_has_no_messages_and_an_unreadable_one_is_noted(run_probe):
    for metric in ("xid_total", "kernel_event_total"):
        assert run_probe(DeviceEvents, machine([])).one(metric).value == 0
        total = run_probe(DeviceEvents, machine(None)).one(metric)
        assert total.value is None
        assert "no privilege" in total.note


def test_numbers_do_not_keep_messages_of_one_form_apart_but_devices_do():
    log = [f"<3>[{at}] blk_update_request: I/O error, dev sd{'ab'[at % 2]}, sector {at * 8}" for at in range(10)]
    assert [event.count for event in folded(parse_events(log))] == [5, 5]


def test_a_storm_of_forms_keeps_the_gravest():
    words = ["".join(chr(ord("g") + int(digit)) for digit in str(number)) for number in range(3 * DISTINCT_MAX)]
    log = [f"<4>[{at}] driver {word}: error" for at, word in enumerate(words)]
    log.insert(5, "<0>[5.5] watchdog: BUG: soft lockup - CPU#3 stuck for 26s!")
    kept = folded(parse_events(log))
    assert len(kept) == DISTINCT_MAX
    assert any("soft lockup" in event.text for event in kept)
    assert kept[-1].text.endswith(f"{words[-1]}: error")
