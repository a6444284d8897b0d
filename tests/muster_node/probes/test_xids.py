"""The XID probe: code, device, time and text of each message; an unreadable log is no empty log."""

from __future__ import annotations

from types import SimpleNamespace

from muster_node.hardware.seam import Fact
from muster_node.probes.xids import Xids


def machine(log):
    facts = [
        Fact("pci_address", "gpu3", "text", text="00000000:1B:00.0"),
        Fact("gpu_uuid", "gpu3", "text", text="GPU-1"),
    ]
    return SimpleNamespace(simulated=False, kernel_log=lambda: log, inventory=lambda: facts)


def test_every_message_carries_code_device_time_and_text(run_probe):
    run = run_probe(
        Xids,
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
    assert run_probe(Xids, machine([])).one("xid_total").value == 0
    total = run_probe(Xids, machine(None)).one("xid_total")
    assert total.value is None
    assert "no privilege" in total.note
